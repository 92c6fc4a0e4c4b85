"""The engine's output: relayed byte for byte, listened to on the way.

Nothing is concluded from what it says.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import select
import threading
import time

LAST_LINES = 40
LINES_KEPT = {"jit": 1500, "fatal": 300, "hint": 200}
LONGEST_LINE = 4000
#: For a reader that doesn't take the engine's last output.
LAST_OUTPUT_S = 10.0
#: A pipe without an end and without anything in it for this long belongs to a process that nobody can kill.
QUIET_S = 0.3
POLL_S = 0.03
#: vLLM's JIT monitor (vllm/utils/jit_monitor.py: Triton, CuTe DSL, TileLang, autotuning), which also says once what it
#: "will" do. Each line of an engine core begins with `(EngineCore pid=…)`: that alone is no sign.
LINES = {
    "jit": re.compile(r"(compil\w*|autotun\w*) during inference(?! will)", re.IGNORECASE),
    "fatal": re.compile(
        r"(^|\s)[\w.]*(Error|Exception)\b:|EngineDeadError|Engine ?core (?!pid=).*(failed|died)|CUDA out of memory"
        r"|CUDA error|no kernel image|error: (unrecognized|argument|the following arguments)|core dumped"
        r"|Segmentation fault|illegal memory access|Address already in use|No space left on device"
        r"|Watchdog caught collective operation timeout|watchdog (thread )?got stuck for",
        re.IGNORECASE,
    ),
    "hint": re.compile(
        r"non-default args|Using .* attention backend|[GC]PU KV cache size|Maximum concurrency for"
        r"|torch\.compile took|Directly load|Compiling model again due to|Graph capturing finished"
        r"|init engine \(|JIT monitor activated|max_num_batched_tokens=|Loading weights took"
        r"|Starting vLLM server|Initializing a V1 LLM engine|KV cache scaling factor 1\.0",
    ),
}


class Listener:
    """Picks lines of interest out of the engine's output, and keeps the last ones; for several threads."""

    def __init__(self, path: str, hidden: list[str]) -> None:
        self._path = path
        self._hidden = hidden
        self._left = dict(LINES_KEPT)
        self._rest: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)

    def feed(self, source: int, chunk: bytes) -> None:
        """Take what came out of one pipe."""
        with self._lock:
            *lines, rest = (self._rest.get(source, b"") + chunk).split(b"\n")
            # An endless line is cut, and of a progress bar only the last state counts.
            self._rest[source] = rest[rest.rfind(b"\r", 0, -1) + 1 :][: 16 * LONGEST_LINE]
            for line in lines:
                self._hear(line)

    def last_lines(self) -> list[str]:
        """Give the last lines, the unfinished ones included."""
        with self._lock:
            unfinished = [text for rest in self._rest.values() if (text := self._text(rest))]
            return [*self._last, *unfinished][-LAST_LINES:]

    def note(self, kind: str, text: str) -> None:
        """Add one line for the sidecar, as long as there is room for its kind."""
        if self._left[kind] > 0:
            self._left[kind] -= 1
            line = json.dumps({"kind": kind, "text": text}) + "\n"
            with contextlib.suppress(OSError), open(self._path, "a", encoding="utf-8") as stream:
                stream.write(line)

    def _hear(self, line: bytes) -> None:
        text = self._text(line)
        if text:
            self._last.append(text)
            kind = next((kind for kind, pattern in LINES.items() if pattern.search(text)), None)
            if kind:
                self.note(kind, text)

    def _text(self, line: bytes) -> str:
        text = line.rstrip().rpartition(b"\r")[2][:LONGEST_LINE].decode("utf-8", "replace")
        for value in self._hidden:
            text = text.replace(value, "***")
        return text


class Relay(threading.Thread):
    """Passes one pipe of the engine on."""

    def __init__(self, source: int, target: int, listener: Listener) -> None:
        super().__init__(daemon=True)
        self._source, self._target, self._listener = source, target, listener
        self._broken = self._quiet = False
        self.start()

    def run(self) -> None:
        """Relay until the last writer has closed the pipe."""
        while True:
            self._quiet = not select.select([self._source], [], [], 0)[0]
            chunk = os.read(self._source, 1 << 16)
            self._quiet = False
            if not chunk:
                break
            # Heard first: an engine's last words are told although nobody reads its log.
            self._listener.feed(self._source, chunk)
            self._pass_on(chunk)
        os.close(self._source)

    def finish(self) -> None:
        """Wait until all is passed on, but not for a reader that hangs or a writer that nobody can kill."""
        deadline = time.monotonic() + LAST_OUTPUT_S
        quiet_since = time.monotonic()
        while self.is_alive() and time.monotonic() < deadline and time.monotonic() - quiet_since < QUIET_S:
            if not self._quiet:
                quiet_since = time.monotonic()
            self.join(POLL_S)

    def _pass_on(self, chunk: bytes) -> None:
        """Write all of it. A reader that is gone must not end the engine: then it is only listened to."""
        while chunk and not self._broken:
            try:
                chunk = chunk[os.write(self._target, chunk) :]
            except BlockingIOError:
                select.select([], [self._target], [])
            except OSError:
                self._broken = True
