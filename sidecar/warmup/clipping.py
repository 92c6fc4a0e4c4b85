"""What an engine's limits leave of the sizes of a step, and the sentences that say what was clipped.

Knows lengths and batches, not what they are used for.
"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.warmup.sizes import Limits, Sizes, resolve_all
from sidecar.warmup.steps import StepBase


class Clipping:
    """Clips sizes for one engine. `kv_share`: how much of the KV cache one may fill (0..1)."""

    def __init__(self, limits: Limits, kv_share: float) -> None:
        self._limits = limits
        self._kv_share = kv_share
        self.sentences: list[str] = []

    def output(self, wanted: int) -> int:
        """Leave at least half of the model's length to the prompt."""
        return max(1, min(wanted, self._limits.max_model_len // 2))

    def lengths(self, step: StepBase, sizes: Sizes, output: int, at_most: int | None = None) -> list[int]:
        """Resolve prompt lengths and clip them to what the model takes beside `output` tokens."""
        room = max(1, self._limits.max_model_len - output)
        if at_most is not None:
            room = min(room, at_most)
        resolved = resolve_all(sizes, self._limits)
        beyond = [size for size in resolved if size > room]
        if beyond:
            limit = f"the model takes {self._limits.max_model_len} with {output} of output"
            if at_most is not None and room == at_most:
                limit = f"the step has at_most: {at_most}"
            self.note(step, f"prompts of {listed(beyond)} tokens are clipped to {room}: {limit}")
        return sorted({min(size, room) for size in resolved})

    def batches(self, step: StepBase, sizes: Sizes, tokens_each: int) -> list[int]:
        """Resolve numbers of concurrent requests and clip them to the engine's sequences and KV cache."""
        resolved = resolve_all(sizes, self._limits)
        seats = self._limits.max_num_seqs
        beyond = [size for size in resolved if size > seats]
        if beyond:
            self.note(
                step,
                f"{listed(beyond)} concurrent requests are clipped to {seats}, the engine's max_num_seqs",
            )
        room = self.room(tokens_each)
        crowded = [size for size in resolved if min(size, seats) > room]
        if crowded:
            self.note(
                step,
                f"{listed(crowded)} concurrent requests of {tokens_each} tokens are clipped to {room}: "
                f"the KV cache holds {self._limits.kv_tokens} tokens",
            )
        return sorted({min(size, seats, room) for size in resolved})

    def room(self, tokens_each: int) -> int:
        """Give how many requests of so many tokens fit into the KV cache; all seats when its size is unknown."""
        if self._limits.kv_tokens is None:
            return self._limits.max_num_seqs
        return max(1, int(self._limits.kv_tokens * self._kv_share) // max(1, tokens_each))

    def left(self, used: int) -> int | None:
        """Give the tokens of the KV cache that are left, None when its size is unknown."""
        if self._limits.kv_tokens is None:
            return None
        return int(self._limits.kv_tokens * self._kv_share) - used

    def note(self, step: StepBase, sentence: str) -> None:
        """Keep a sentence about a step, once."""
        line = f"{step.title}: {sentence}."
        if line not in self.sentences:
            self.sentences.append(line)


def times(count: int, what: str) -> str:
    """Write so many of something, one without a number."""
    return what if count == 1 else f"{count} x {what}"


def listed(numbers: Iterable[int]) -> str:
    """Write numbers, of many the ends only."""
    ordered = sorted(numbers)
    if len(ordered) <= 4:
        return ", ".join(map(str, ordered))
    return f"{ordered[0]}, {ordered[1]} … {ordered[-1]} ({len(ordered)} sizes)"
