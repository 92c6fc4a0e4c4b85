"""The tasks of the cache worker, one after the other in one process under the disk shim, its faults set anew for each.

Run by `disk.Subject` only. Reads one JSON task a line; answers one JSON object a line.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import sys
import time
import traceback
from typing import Any

from sidecar.caches import worker
from sidecar.caches.commit import commit
from sidecar.caches.messages import RestoreResult


def main() -> None:
    """Answer tasks until standard input ends."""
    os.umask(worker.UMASK)
    disk = ctypes.CDLL(os.environ["LD_PRELOAD"])
    pass_time_by()
    for line in sys.stdin:
        task = json.loads(line)
        disk.disk_arm(task["faults"].encode())
        try:
            said = answered(task)
        except BaseException:
            said = {"raised": traceback.format_exc()}
        said["calls"] = [disk.disk_calls(n) for n in range(len(task["faults"].split(",")))]
        disk.disk_arm(b"")
        print(json.dumps(said), flush=True)


def pass_time_by() -> None:
    """Make pauses before another try cost no time, and the monotonic clock move all the same."""
    real, slept = time.monotonic, [0.0]
    time.sleep = lambda seconds: slept.append(slept.pop() + seconds)
    time.monotonic = lambda: real() + slept[0]


def answered(task: dict[str, Any]) -> dict[str, Any]:
    """Do one task as the worker does; a restore is committed as a daemon without a launcher would."""
    result = worker.work(task, worker.Reporter(io.BytesIO(), time.monotonic))
    if task["task"] == "restore":
        said = RestoreResult.from_json(result)
        report = commit(task["request"]["live_cache"], said.commit, said.clear)
        return {**result, "committed": report.committed, "failed": report.failed}
    return result


if __name__ == "__main__":
    main()
