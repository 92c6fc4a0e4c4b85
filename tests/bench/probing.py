"""Probes as the kubelet sends them: a fresh connection each, over plain sockets, timed one by one.

Which daemon is probed, and which phase a probe fell into, is not known here.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

#: A kubelet gives up after a second by default.
TIMEOUT_S = 5.0


def ask(port: int, path: str) -> int:
    """Send one probe and read its answer to the end; give the status code, 0 when there is no daemon."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.sendall(request)
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
    except OSError:
        return 0
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


@dataclass(frozen=True)
class Sample:
    """One probe: the wall-clock second at which it was due, how long it took, how late the bench woke up for it.

    The last two in seconds. A bench that wakes up late says that the machine is busy, whoever is to blame for that.
    """

    at: float
    seconds: float
    late: float


class Prober:
    """Probe paths in turn from a thread, `rate` times a second in all, while `with` lasts.

    A probe that keeps the next one waiting makes that one late, and its time counts from when it was due: a stall
    is seen by as many probes as would have come meanwhile.
    """

    def __init__(self, port: int, paths: Sequence[str], rate: float) -> None:
        self.samples: list[Sample] = []
        self.unanswered = 0
        self._port, self._paths, self._interval = port, tuple(paths), 1.0 / rate
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        due, number = time.monotonic(), 0
        while not self._end.is_set():
            now, late = time.monotonic(), 0.0
            if now < due:
                self._end.wait(due - now)
                # Waking up late is the bench's own fault and is not charged to the daemon.
                late, due = time.monotonic() - due, time.monotonic()
            wall = time.time() - (time.monotonic() - due)
            code = ask(self._port, self._paths[number % len(self._paths)])
            if code:
                self.samples.append(Sample(wall, time.monotonic() - due, late))
            else:
                self.unanswered += 1
            due, number = due + self._interval, number + 1

    def within(self, begin: float, end: float) -> list[Sample]:
        """Give the probes that were due between two wall-clock seconds."""
        return [sample for sample in self.samples if begin <= sample.at <= end]


def quantile(values: Sequence[float], share: float) -> float:
    """Give the value that a share of the values does not exceed; NaN when there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def median(values: Sequence[float]) -> float:
    """Give the median; NaN when there is none."""
    return statistics.median(values) if values else float("nan")
