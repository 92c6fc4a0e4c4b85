"""The process that talks to NVML: one wish on a line of standard input, one reading on a line of standard output.

Started by `reader.py` only. It ends when its input does, and after every trouble, so that the next reading begins with
a new process: a library that was replaced, or a driver that forgot its clients, is found anew.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from sidecar.gpu.nvml import NvmlTroubleError, Session

#: What NVML's return codes mean for whoever reads metrics. nvml.h, nvmlReturn_t.
KINDS = {0: "no_gpu", 4: "no_permission", 9: "no_driver", 12: "no_library", 15: "lost", 18: "mismatch", 999: "unknown"}
OTHER = "other"


def main() -> int:
    """Answer wishes until the input ends or NVML is in trouble."""
    release = "--release" in sys.argv[1:]
    try:
        import pynvml
    except ImportError:
        _say({"trouble": "the package nvidia-ml-py is not installed", "kind": "no_library"})
        return 0
    session = Session(pynvml, time.monotonic, release=release)
    for line in sys.stdin:
        want = json.loads(line)["want"]
        try:
            snapshot = session.read(want)
        except NvmlTroubleError as trouble:
            _say({"trouble": str(trouble), "kind": KINDS.get(trouble.code, OTHER)})
            return 0
        _say({"reading": snapshot.to_json()})
        if snapshot.troubles or snapshot.lost:
            return 0
    return 0


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main())
