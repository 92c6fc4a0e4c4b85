"""Figures with their targets, as a Markdown table and as JSON. Nothing is measured here."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One measured number. `target` is the most it should be, None where there is none; `note` says of how many."""

    part: str
    name: str
    value: float
    unit: str
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> str:
        """Say whether the target is met; empty without one."""
        return "" if self.target is None else "yes" if self.value <= self.target else "**no**"


def table(figures: Sequence[Figure]) -> str:
    """Make a Markdown table, a row a figure."""
    rows = ["| what | measured | target | met | of |", "|---|---|---|---|---|"]
    for each in figures:
        target = "" if each.target is None else f"≤ {each.target:g} {each.unit}"
        value = f"{each.value:.3g} {each.unit}" if each.value < 1000 else f"{each.value:.0f} {each.unit}"
        rows.append(f"| {each.part}: {each.name} | {value} | {target} | {each.met} | {each.note} |")
    return "\n".join(rows)


def machine() -> str:
    """Say in a line where and when this was measured, and how busy the machine was."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "CPU"
    )
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return (
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, {os.cpu_count()} × {model}, "
        f"Linux {platform.release()}, Python {platform.python_version()}, load {load}"
    )


def save(path: Path, figures: Sequence[Figure]) -> None:
    """Write the figures as JSON."""
    rows = [asdict(each) | {"met": None if each.target is None else each.value <= each.target} for each in figures]
    path.write_text(json.dumps({"machine": machine(), "figures": rows}, indent=1) + "\n", encoding="utf-8")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
