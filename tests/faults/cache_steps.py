"""A restore, commit or publish in a process of its own that dies at a chosen disk step.

The task `gather` is a publish that takes two packs for too many, and moves their files.

Run by the tests of this folder: `python cache_steps.py TASK LIVE STORE DIE_AT`. Prints the steps it passed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from sidecar.caches import compaction
from sidecar.caches.commit import commit
from sidecar.caches.messages import PublishRequest, RestoreRequest
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import RestoreTools, restore
from tests.fakes.live_cache import facts


class Countdown:
    """Count disk steps and kill this process at the chosen one, as a node's failure would."""

    def __init__(self, die_at: int) -> None:
        self.steps: list[str] = []
        self._die_at = die_at

    def __call__(self, step: str) -> None:
        """Take note of a step that is done."""
        self.steps.append(step)
        if len(self.steps) == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(task: str, live: str, store: str, die_at: int) -> None:
    """Do the task, dying after step number `die_at` (0: never)."""
    step = Countdown(die_at)
    if task == "restore":
        tools = RestoreTools(clock=time.monotonic, sleep=time.sleep, checkpoint=step)
        request = RestoreRequest(store=store, live_cache=live, facts=facts(), attempt=f"1-{os.getpid()}-00000000")
        result = restore(request, tools)
        report = commit(live, result.commit, result.clear, step)
        said = {"outcome": result.outcome, "failed": report.failed}
    else:
        if task == "gather":
            compaction.PACKS = compaction.AT_LEAST = 1
        wishes = PublishTools(clock=time.monotonic, now=time.time, sleep=time.sleep, checkpoint=step)
        said = publish(PublishRequest(store=store, live_cache=live, facts=facts(), attempt="p"), wishes).to_json()
    print(json.dumps({"steps": step.steps, **said}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
