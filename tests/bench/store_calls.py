"""Publish and restore through the worker, as the daemon does it, and give up with a sentence when it goes wrong.

As a program it does one call in a process of its own and tells what that cost: `store_calls TASK` with the request
on standard input. No tree is made here.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sidecar.caches.client import CacheClient, worker_command
from sidecar.caches.messages import PublishRequest, PublishResult, RestoreRequest, RestoreResult
from tests.bench.peaks import FamilyPeak, peak_of_this

DEADLINE_S = 3600.0
TICK_S = 0.002


@dataclass(frozen=True)
class Cost:
    """What a call cost: seconds, CPU seconds, the longest pause of the event loop beside it, and bytes of memory.

    `cpu_s` is what the worker computed with what it forked, which a busy machine changes less than `seconds`. `client`
    is the peak of the process that called, `worker` that of the worker with what it forked; `packed` are the bytes that
    a publish added.
    """

    seconds: float
    cpu_s: float
    pause_s: float
    client: int
    worker: int
    packed: int


def publish(caches: CacheClient, request: PublishRequest) -> PublishResult:
    """Publish, or exit with why nothing was."""
    return _published(asyncio.run(caches.publish(request, DEADLINE_S)))


def restore(caches: CacheClient, request: RestoreRequest) -> RestoreResult:
    """Stage everything, or exit with why not."""
    return _restored(asyncio.run(caches.restore(request, DEADLINE_S)))


def apart(request: PublishRequest | RestoreRequest, worker_environment: Mapping[str, str] | None = None) -> Cost:
    """Do a call in a process of its own, or exit with why it failed; the variables are the worker's only."""
    task = "publish" if isinstance(request, PublishRequest) else "restore"
    asked = json.dumps({"request": request.to_json(), "environment": dict(worker_environment or {})})
    command = [sys.executable, "-m", "tests.bench.store_calls", task]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the {task} failed: {done.stderr.strip()}")
    return Cost(**json.loads(done.stdout))


def _published(result: PublishResult) -> PublishResult:
    if result.outcome != "published" or result.skipped:
        raise SystemExit(f"the store could not be filled: {result.sentence} {dict(result.skipped)}")
    return result


def _restored(result: RestoreResult) -> RestoreResult:
    if result.outcome not in ("hit", "partial") or result.rejected:
        raise SystemExit(f"not everything was restored: {result.sentence} {dict(result.rejected)}")
    return result


async def _watched(call: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """Await a call and measure the longest time that the loop did not get round to anything else, in seconds."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            longest = max(longest, time.monotonic() - before - TICK_S)

    ticking = asyncio.ensure_future(tick())
    result = await call
    ticking.cancel()
    return result, longest


def main() -> None:
    """Do the call that standard input describes, and print its cost."""
    asked = json.load(sys.stdin)
    settings = [f"{name}={value}" for name, value in asked["environment"].items()]
    command = ["env", *settings, *worker_command()]
    caches = CacheClient(time.monotonic, command if settings else None)
    packed = 0
    with FamilyPeak() as family:
        began = time.monotonic()
        if sys.argv[1] == "publish":
            call = caches.publish(PublishRequest.from_json(asked["request"]), DEADLINE_S)
            published, pause = asyncio.run(_watched(call))
            packed = _published(published).bytes
        else:
            restoring = caches.restore(RestoreRequest.from_json(asked["request"]), DEADLINE_S)
            restored, pause = asyncio.run(_watched(restoring))
            _restored(restored)
        seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    print(json.dumps(asdict(Cost(seconds, cpu, pause, peak_of_this(), family.bytes, packed))))


if __name__ == "__main__":
    main()
