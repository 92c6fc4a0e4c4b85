"""Things done to a store, each in a process of its own that dies at a chosen disk step.

Run by `test_store_crash.py`, which writes a line of JSON for each (task, place, live cache, step, argument, environment) and
reads one back: the steps that were passed, or nothing when it died. Forked from one process, because starting one for each takes
a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping

from sidecar.caches import archive_file, cleaning, compaction
from sidecar.caches.messages import Limits, PublishRequest
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.store import open_store
from tests.fakes.live_cache import facts
from tests.faults.cache_steps import Countdown


class Overtaken:
    """Steps of a publisher; when it is about to take its first number, another one has just taken that."""

    def __init__(self, step: Countdown, place: str, live: str, others: str) -> None:
        self._step, self._place, self._live, self._others = step, place, live, others

    def __call__(self, what: str) -> None:
        """Pass a step."""
        if what == "generation directory" and self._others:
            # Every pod has its live cache under the same path, which is in the key.
            os.rename(self._live, f"{self._live}.first")
            os.rename(self._others, self._live)
            request = PublishRequest(store=self._place, live_cache=self._live, facts=facts(), attempt="r", settle_s=0)
            publish(request, PublishTools(clock=time.monotonic, now=time.time, sleep=time.sleep))
            os.rename(self._live, self._others)
            os.rename(f"{self._live}.first", self._live)
            self._others = ""
        self._step(what)


def main(task: str, place: str, live: str, die_at: int, argument: str, environment: Mapping[str, str]) -> None:
    """Do the task, dying after step number `die_at` (0: never).

    `gather` is a publish that takes two packs for too many, `rebase` one that is overtaken by another pod, what that has in
    its live cache being in the folder `argument`.
    """
    os.environ.update(environment)
    step = Countdown(die_at)
    # One thread, so that steps come in one order.
    cleaning.JOBS = 1
    if task in ("publish", "sign", "gather", "rebase"):
        if task == "gather":
            compaction.PACKS = compaction.AT_LEAST = 1
        overtaken = Overtaken(step, place, live, argument) if task == "rebase" else step
        wishes = PublishTools(clock=time.monotonic, now=time.time, sleep=time.sleep, checkpoint=overtaken)
        key = argument if task == "sign" else ""
        request = PublishRequest(store=place, live_cache=live, facts=facts(), attempt="p", settle_s=0, signing_file=key)
        said = publish(request, wishes).outcome
    elif task == "clean":
        store = open_store(place, "read-write", time.sleep, step)
        limits = Limits(grace_s=float(argument), count=1)
        said = cleaning.clean(store, limits, dry=False, now=lambda: time.time() + 9000).sentence
    elif task == "import":
        with open(argument, "rb") as source:
            found = archive_file.bring(open_store(place, "read-write", time.sleep, step), source, lambda _d, _t: None)
        said = ",".join(each.outcome for each in found)
    else:
        raise ValueError(task)
    print(json.dumps({"steps": step.steps, "said": said}), flush=True)


def serve() -> None:
    """Do what is asked, line by line."""
    # Loaded once; its threads are started by each process that asks a bucket.
    with contextlib.suppress(ImportError):
        import obstore  # noqa: F401
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                main(*json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            print("null", flush=True)
        elif status:
            print('"failed"', flush=True)


if __name__ == "__main__":
    serve()
