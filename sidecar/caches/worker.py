"""The child process that does one restore or publish: a request on standard input, JSON lines on standard output.

It is started by `client` only. It ends when its standard input does: a daemon that died has no use for the rest.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from sidecar.caches.publish_messages import Progress, PublishRequest
from sidecar.errors import WarmupError

# What only some tasks need is imported with them: imports are a third of what a publish of little takes.
if TYPE_CHECKING:
    from sidecar.caches.messages import (
        BootsRequest,
        BootsResult,
        CleanRequest,
        CleanResult,
        HoldRequest,
        ReachRequest,
        RecordRequest,
        RecordResult,
    )

#: So many boots that became ready prove a generation; more records would only pile up.
READY_RECORDS = 3
#: So many boots that made a generation, and are no proof of it, are kept for what they tell of the engine.
MADE_RECORDS = 20
#: So many reports of what engines died of are kept, the newest: what fewer don't tell, more don't either.
KILLER_RECORDS = 20
PROGRESS_S = 0.1
# How soon a process that holds claims notices that the daemon is gone.
HOLD_LOOK_S = 0.5
# Group-writable, closed to others: the engine may run as another user of the same group.
UMASK = 0o007


class Reporter:
    """Write progress, at most every `PROGRESS_S` seconds, and the result as JSON lines."""

    def __init__(self, stream: BinaryIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._next = 0.0

    def progress(self, progress: Progress) -> None:
        """Report how far the work is, unless that was done just now and the end is not reached."""
        now = self._clock()
        if now >= self._next or progress.bytes_done == progress.bytes_total:
            self._next = now + PROGRESS_S
            self._write({"kind": "progress", **progress.to_json()})

    def result(self, result: dict[str, Any]) -> None:
        """Report the result, which ends the conversation."""
        self._write({"kind": "result", "result": result})

    def _write(self, said: dict[str, Any]) -> None:
        self._stream.write(json.dumps(said).encode() + b"\n")
        self._stream.flush()


def work(task: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Do one task and return its result as JSON. Raises ValueError when the request can't be read."""
    if task["task"] == "publish":
        from sidecar.caches.publish import PublishTools, publish

        wishes = PublishTools(clock=time.monotonic, now=time.time, sleep=time.sleep, on_progress=reporter.progress)
        return publish(PublishRequest.from_json(task["request"]), wishes).to_json()
    from sidecar.caches.messages import BootsRequest, CleanRequest, ReachRequest, RecordRequest, RestoreRequest

    if task["task"] == "clean":
        return clean(CleanRequest.from_json(task["request"])).to_json()
    if task["task"] == "reach":
        return reach(ReachRequest.from_json(task["request"])).to_json()
    if task["task"] == "record":
        return record(RecordRequest.from_json(task["request"])).to_json()
    if task["task"] == "boots":
        return boots(BootsRequest.from_json(task["request"])).to_json()
    from sidecar.caches.forks import processes
    from sidecar.caches.restore import RestoreTools, restore

    tools = RestoreTools(clock=time.monotonic, sleep=time.sleep, on_progress=reporter.progress, jobs=processes())
    return restore(RestoreRequest.from_json(task["request"]), tools).to_json()


def hold(request: HoldRequest) -> None:
    """Keep claims up until SIGTERM gives them back. A daemon that dies ends this process, and the claims lapse."""
    from sidecar.caches.holding import hold as keep
    from sidecar.caches.store import open_store

    def asked_back(seconds: float) -> bool:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if signal.sigtimedwait({signal.SIGTERM}, HOLD_LOOK_S) is not None:
                return True
            if select.select([0], [], [], 0)[0] and not os.read(0, 1):
                sys.exit(1)
        return False

    keep(request, asked_back, lambda: open_store(request.store, "read-write", time.sleep))


def record(request: RecordRequest) -> RecordResult:
    """Write one record into the store; what goes wrong is told in the result."""
    from sidecar.caches.messages import RecordResult
    from sidecar.caches.store import open_store

    try:
        store = open_store(request.store, "read-write", time.sleep)
        if request.kind == "fallback":
            store.remember_fallback(request.scope, request.key, request.name, request.record)
        elif request.kind == "acquittal":
            store.acquit(request.scope, request.key, request.generation, str(request.record.get("boot")))
        elif request.kind == "boot":
            ends = store.boot_ends(request.scope, request.key)
            if request.record.get("outcome") == "ready" and ends[request.generation, "ready"] >= READY_RECORDS:
                store.mark_used(request.scope, request.key)
                return RecordResult()
            made = [name for name in store.notes(request.scope, request.key, ("boots",)) if ".made." in name]
            if request.record.get("outcome") == "made" and len(made) >= MADE_RECORDS:
                return RecordResult()
            store.record_boot(request.scope, request.key, request.name, request.record)
            if request.record.get("outcome") == "killer":
                store.forget_deaths(request.scope, request.key, keep=KILLER_RECORDS)
        else:
            store.quarantine(request.scope, request.key, request.generation, request.record)
    except WarmupError as error:
        return RecordResult(trouble=str(error))
    return RecordResult()


def reach(request: ReachRequest) -> RecordResult:
    """List the store's keys; what keeps it from being read is told in the result."""
    from sidecar.caches.messages import RecordResult
    from sidecar.caches.store import open_store

    try:
        open_store(request.store, "read-only", time.sleep).keys("exact")
    except WarmupError as error:
        return RecordResult(trouble=str(error))
    return RecordResult()


def clean(request: CleanRequest) -> CleanResult:
    """Clean the store up if it is time to; what goes wrong is told in the result."""
    from sidecar.caches.cleaning import clean as remove
    from sidecar.caches.messages import CleanResult
    from sidecar.caches.store import open_store
    from sidecar.caches.trust import KeyFiles, trust

    try:
        store = open_store(request.store, "read-write", time.sleep)
        store.trust = trust(KeyFiles(request.keys_file, request.signing_file), time.time)
        # A time to come was written before the store's clock was set back.
        if 0 <= (age_s := store.last_cleaned_s()) < request.interval_s:
            return CleanResult(age_s=age_s)
        began, found = time.monotonic(), remove(store, request.limits, dry=False, now=time.time)
        return CleanResult(
            sentence=found.sentence,
            done=True,
            age_s=time.monotonic() - began,
            generations=len(found.generations),
            bytes=found.bytes,
            bytes_kept=found.bytes_kept,
            bytes_over=found.bytes_over,
        )
    except WarmupError as error:
        return CleanResult(sentence=str(error), failed=True)


def boots(request: BootsRequest) -> BootsResult:
    """Read the records of earlier boots; a store that is away has none."""
    from sidecar.caches.messages import BootsResult
    from sidecar.caches.store import open_store

    with suppress(WarmupError):
        store = open_store(request.store, "read-only", time.sleep)
        if request.what == "fallbacks":
            return BootsResult(records=tuple(store.fallbacks(request.scope, request.key)))
        return BootsResult(records=tuple(store.boots(request.scope, request.key, request.most)))
    return BootsResult()


def end_with(stream: BinaryIO) -> None:
    """Watch standard input in the background and end the process when the daemon's end of it closes."""

    # Not through the stream: the interpreter can't end while a thread holds its lock.
    descriptor = stream.fileno()

    def watch() -> NoReturn:
        while os.read(descriptor, 1):
            continue
        os._exit(1)

    threading.Thread(target=watch, name="daemon-watch", daemon=True).start()


def main() -> int:
    """Read one request, do it, and report the result."""
    os.umask(UMASK)
    # It ends after one task, and looking for cycles among some 100,000 entries takes a tenth of the time.
    gc.disable()
    reporter = Reporter(sys.stdout.buffer, time.monotonic)
    task = json.loads(sys.stdin.buffer.readline())
    if task["task"] == "hold":
        from sidecar.caches.messages import HoldRequest

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        hold(HoldRequest.from_json(task["request"]))
        return 0
    end_with(sys.stdin.buffer)
    reporter.result(work(task, reporter))
    return 0


if __name__ == "__main__":
    sys.exit(main())
