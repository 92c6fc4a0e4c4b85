"""Looks at a pod from outside, with nothing of the product: files of a live cache, live requests, the readiness probe.

Nothing is asserted here.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.integration.pod import API_KEY

#: What vLLM on CPU compiles: shared objects that g++ builds for Inductor.
KERNEL = "*.so"
#: A compile stall is 1.4 to 2.3 s on two free cores.
REQUEST_S = 120.0
#: Seconds between two looks at the probe.
EVERY_S = 0.05

LOG_PROBABILITIES: Mapping[str, Any] = {"logprobs": 5}
#: Not a JSON schema: a model with random weights fills it with spaces until its tokens are used up.
STRUCTURED_PATTERN = "[A-Z][a-z]{2,5}"
STRUCTURED: Mapping[str, Any] = {"structured_outputs": {"regex": STRUCTURED_PATTERN}}
#: See `engine_plugin/late_feature.py`.
LATE_FEATURE: Mapping[str, Any] = {"vllm_xargs": {"late": 1}}


def kernel_files(live_cache: Path) -> dict[str, tuple[int, int]]:
    """List the kernels in a live cache by path, with size and modification time in ns."""
    found = {}
    for path in live_cache.rglob(KERNEL):
        status = path.stat()
        found[str(path.relative_to(live_cache))] = (status.st_size, status.st_mtime_ns)
    return found


def ask_engine(url: str, prompt: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Send one completion as a user would and give the first choice. Raises URLError when it is refused."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 16, **extra}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"},
    )
    with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
        choice = json.load(answer)["choices"][0]
    assert isinstance(choice, dict)
    return choice


class ReadinessWatch:
    """Asks `/readyz` every 50 ms from a thread of its own and keeps each change: monotonic seconds and status code."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/readyz"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="readiness watch")
        self.changes: list[tuple[float, int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            code = self._ask()
            if not self.changes or self.changes[-1][1] != code:
                self.changes.append((time.monotonic(), code))

    def _ask(self) -> int:
        try:
            with urllib.request.urlopen(self._url, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def times_of(self, code: int, since: float = 0.0) -> list[float]:
        """Give when the probe changed to a code, monotonic seconds."""
        return [at for at, seen in self.changes if seen == code and at >= since]

    def seen(self, since: float, until: float) -> set[int]:
        """Give every code that the probe answered between two moments, monotonic seconds."""
        before = [code for at, code in self.changes if at <= since][-1:]
        return {*before, *(code for at, code in self.changes if since < at < until)}
