"""What is seen while the demo runs: the picture, whoever draws it, and the drawing as plain lines.

The drawing on a terminal is in `live_view.py`. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sidecar.demo.engine_setup import Progress
from sidecar.web import words

#: Seconds between two lines about the same thing where there is no terminal.
TELL_EVERY_S = 15.0


@dataclass
class StartPicture:
    """One start as it looks now. `status` is the sidecar's own picture, empty for the engine alone."""

    title: str
    state: str = "running"
    wall_s: float = 0.0
    cpu_s: float | None = None
    kernels: int | None = None
    health_s: float | None = None
    ready_s: float | None = None
    doing: str = "starting"
    status: Mapping[str, Any] = field(default_factory=dict)

    def steps(self) -> list[Mapping[str, Any]]:
        """List the warm-up steps that the sidecar told about."""
        warmup = self.status.get("warmup")
        steps = warmup.get("steps") if isinstance(warmup, Mapping) else None
        return [step for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []

    def timeline(self) -> list[tuple[str, float]]:
        """List the phases so far with their seconds."""
        spans = self.status.get("timeline")
        found = [span for span in spans if isinstance(span, Mapping)] if isinstance(spans, list) else []
        return [(str(span.get("phase")), words.number(span.get("seconds")) or 0.0) for span in found]


class View(Protocol):
    """Whoever shows the demo."""

    def note(self, text: str) -> None:
        """Show a sentence that stays."""

    def preparing(self, progress: Progress) -> None:
        """Show how far the engine's preparation is."""

    def update(self, start: StartPicture) -> None:
        """Show how a start looks now; called about twice a second."""

    def close(self) -> None:
        """Leave the terminal as it should be left."""


class PlainView:
    """One line for each thing that changed, and one every 15 s, for logs and pipes."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._told: dict[str, str] = {}
        self._told_at = float("-inf")
        self._at: dict[str, float] = {}
        self._preparing = ""

    def note(self, text: str) -> None:
        """Print the sentence."""
        self._echo(text)

    def preparing(self, progress: Progress) -> None:
        """Print each new phase, and the same one again every 15 s."""
        if progress.phase == self._preparing and progress.seconds - self._told_at < TELL_EVERY_S:
            return
        self._preparing, self._told_at = progress.phase, progress.seconds
        self._echo(f"{progress.seconds:7.1f} s  {describe(progress)}")

    def update(self, start: StartPicture) -> None:
        """Print what is new: phase or activity, and each step when its state changes."""
        self._tell(start, "doing", start.doing)
        if start.wall_s - self._at.get(start.title, 0.0) >= TELL_EVERY_S:
            cpu = f"{start.cpu_s:.0f} CPU s of the engine, " if start.cpu_s is not None else ""
            self._say(start, f"{cpu}{words.count(start.kernels)} kernels compiled so far")
        for step in start.steps():
            state = str(step.get("state"))
            if state not in ("pending", "running"):
                self._tell(start, f"step {step.get('name')}", _step_line(step), changed=state)

    def close(self) -> None:
        """Nothing is left open."""

    def _tell(self, start: StartPicture, what: str, text: str, changed: str = "") -> None:
        key = f"{start.title}/{what}"
        if self._told.get(key) != (changed or text):
            self._told[key] = changed or text
            self._say(start, text)

    def _say(self, start: StartPicture, text: str) -> None:
        self._at[start.title] = start.wall_s
        self._echo(f"{start.wall_s:7.1f} s  {start.title}: {text}")


def _step_line(step: Mapping[str, Any]) -> str:
    times = f"first {words.seconds(step.get('ttft_first_s'))}, last {words.seconds(step.get('ttft_last_s'))}"
    kernels = words.count(step.get("kernels"))
    return f"step {step.get('name')} {step.get('state')}: TTFT {times}, kernels {kernels}"


def describe(progress: Progress) -> str:
    """Give one line about the engine's preparation."""
    amount = ""
    if progress.done and progress.unit == "bytes":
        amount = f", {words.size(progress.done)}"
    elif progress.done:
        amount = f", {progress.done}" + (f" of {progress.total}" if progress.total else "") + f" {progress.unit}"
    return f"preparing the engine: {progress.phase}{amount} {progress.detail}".rstrip()
