"""A profile whose mix was learned, as YAML with a plot of each distribution in its comments.

Learns nothing; that is `learning.py`.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.bench.plot import drawn, of_counts
from sidecar.warmup.recorded import Distribution, RecordedMix

PLOT_WIDTH, COMMENT_WIDTH = 48, 116
#: Where the shipped profiles for GPUs begin to search, in tokens.
SHORTEST = 8
_TITLES = {
    "prompt_tokens": "Prompts, tokens",
    "output_tokens": "Outputs, tokens",
    "concurrency": "Requests at once",
}


@dataclass(frozen=True)
class Told:
    """What the comments say: where it is all from, and sentences about what to know of it."""

    source: str
    notes: Sequence[str] = ()


def profile_text(mix: RecordedMix, extends: str, told: Told) -> str:
    """Write the profile. What was seen is searched whole; draws follow how often it was seen."""
    parts = mix.parts
    lines = [
        *_comment(f"Made by `warmup-sidecar profiles learn` from {told.source}: {mix.requests:,.0f} requests."),
        *_comment("Read it through, change what you know better, and set WARMUP_PROFILE to its path."),
        *(line for note in told.notes for line in _comment(note)),
        f"description: {json.dumps(f'What users send, learned from {told.source}.', ensure_ascii=False)}",
        "version: 1",
        f"extends: {json.dumps(extends, ensure_ascii=False)}",
        "",
        "mix:",
        "  # What is searched for kernels: up to the longest and the most that were seen. It begins below the shortest prompt,",
        "  # since a cached prefix leaves less of a prompt to be read.",
        *(f"  {name}: {{from: {_start(name, part)}, to: {part.bounds[-1]}}}" for name, part in parts.items()),
        "  # How many of each size, as [upper bound, how many]: what random draws follow.",
        "  learned:",
        f"    requests: {round(mix.requests, 1):g}" if mix.requests < 1e6 else f"    requests: {round(mix.requests)}",
    ]
    for name, part in parts.items():
        lines += [f"    # {line}" for line in (f"{_TITLES[name]}: {_middle(part)}", *_plot(part))]
        lines += _pairs(name, part)
    return "\n".join(lines) + "\n"


def _start(name: str, part: Distribution) -> int:
    """Say where a span begins."""
    return 1 if name == "concurrency" else min(SHORTEST, part.quantile(0.0))


def _middle(part: Distribution) -> str:
    return f"{part.quantile(0.5):,} in the middle, {part.quantile(0.95):,} at the 95th percentile"


def _plot(part: Distribution) -> list[str]:
    return drawn(of_counts(list(zip(part.bounds, part.counts, strict=True))), PLOT_WIDTH)


def _pairs(name: str, part: Distribution) -> list[str]:
    """Write the counts, as many on a line as it holds."""
    lines = [""]
    for bound, count in part.to_json():
        pair = f"[{bound}, {count:.15g}],"
        if len(lines[-1]) + len(pair) > COMMENT_WIDTH - 8:
            lines.append("")
        lines[-1] += f" {pair}" if lines[-1] else pair
    return [f"    {name}: [", *(f"      {line}" for line in lines), "    ]"]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), COMMENT_WIDTH - 2)]
