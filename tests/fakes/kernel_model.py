"""Hidden kernels of a scripted engine: which sizes of a step need which, and which share of a traffic mix has them all.

Knows no time and no HTTP; steps are made in `kernel_batching.py`.
"""

from __future__ import annotations

import hashlib
import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

#: Where kernels lie below a live cache, in the layout of DeepGEMM.
FOLDER = "deep_gemm/cache"
#: Narrow regions are so wide, as a share of their size; no grid that a person would write down finds them.
NARROW = (0.02, 0.06)
#: Kernels of narrow regions have numbers from here on.
NARROW_FROM = 1000


class Step(NamedTuple):
    """One step of the engine: tokens and sequences in it, and whether all of them only decode."""

    tokens: int
    sequences: int
    decodes_only: bool


@dataclass(frozen=True)
class Bands:
    """Sizes cut into regions: `starts` ascending, each with the kernel that serves from there on."""

    starts: tuple[int, ...]
    kernels: tuple[int, ...]

    def at(self, size: int) -> int:
        """Name the kernel that serves a size."""
        return self.kernels[bisect_right(self.starts, size) - 1]

    @property
    def count(self) -> int:
        """Count the different kernels."""
        return len(set(self.kernels))

    @property
    def breakpoints(self) -> int:
        """Count the sizes at which another kernel takes over."""
        return len(self.starts) - 1

    @classmethod
    def drawn(cls, rng: random.Random, low: int, high: int, coarse: int, narrow: int) -> Bands:
        """Draw `coarse` breakpoints, and `narrow` regions of a few per cent within what these cut."""
        cuts = [1]
        for _ in range(coarse):
            cut = _between(rng, low, high)
            if all(_apart(cut, each) for each in cuts):
                cuts.append(cut)
        starts = {start: index for index, start in enumerate(sorted(cuts))}
        found = cls(tuple(starts), tuple(starts.values()))
        for number in range(narrow):
            start = _between(rng, max(low, 3), high)
            end = max(start + 1, round(start * (1 + rng.uniform(*NARROW))))
            # Apart from everything else, so that nothing is cut into slivers.
            if end > high or not all(_apart(start, each) and _apart(end, each) for each in found.starts):
                continue
            # Beyond it, what served before it serves again: nothing about its neighbours tells of it.
            kept = {
                each: kernel
                for each, kernel in zip(found.starts, found.kernels, strict=True)
                if not start <= each < end
            }
            kept[end] = found.at(end)
            kept[start] = NARROW_FROM + number
            found = cls(tuple(sorted(kept)), tuple(kept[each] for each in sorted(kept)))
        return found


@dataclass
class KernelModel:
    """The kernels of one random engine. `have`: those in its cache, `compiled`: those made since, in order.

    `tokens` choose by the tokens of any step, `batches` by the sequences of a step that only decodes; a step that
    reads several sequences has kernels by both: `wide` by tokens, `crowds` by sequences.
    """

    seed: int
    tokens: Bands
    batches: Bands
    wide: Bands
    crowds: Bands
    folder: Path | None = None
    have: set[str] = field(default_factory=set)
    compiled: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def drawn(cls, seed: int, *, max_tokens: int, max_batch: int, folder: Path | None = None) -> KernelModel:
        """Draw an engine from a seed; kernels that lie in `folder` already are in its cache."""
        rng = random.Random(seed)
        model = cls(
            seed,
            tokens=Bands.drawn(rng, 8, max_tokens, rng.randint(6, 40), rng.randint(2, 10)),
            batches=Bands.drawn(rng, 2, max_batch, rng.randint(2, 6), rng.randint(0, 4)),
            wide=Bands.drawn(rng, 64, max_tokens, rng.randint(1, 3), 0),
            crowds=Bands.drawn(rng, 2, max_batch, rng.randint(1, 3), 0),
            folder=folder,
        )
        if folder is not None and folder.is_dir():
            model.have |= {each.name for each in folder.iterdir() if (each / "kernel.cubin").is_file()}
        return model

    @property
    def breakpoints(self) -> int:
        """Count the breakpoints of all kinds; a rectangle of two kinds counts its edges."""
        return sum(each.breakpoints for each in (self.tokens, self.batches, self.wide, self.crowds))

    def needs(self, step: Step) -> list[str]:
        """Name the kernels of a step."""
        found = [f"gemm.{self.tokens.at(step.tokens)}"]
        if step.decodes_only:
            found.append(f"decode.{self.batches.at(step.sequences)}")
        elif step.sequences > 1:
            found.append(f"varlen.{self.wide.at(step.tokens)}x{self.crowds.at(step.sequences)}")
        return found

    def run(self, step: Step, features: Iterable[str] = ()) -> list[str]:
        """Run a step: compile what it needs and the cache lacks. Give the names of what was compiled."""
        fresh = []
        for name in (*self.needs(step), *features):
            kernel = self.name_of(name)
            if kernel not in self.have:
                self.have.add(kernel)
                self._write(kernel)
                fresh.append(kernel)
        self.compiled += fresh
        return fresh

    def name_of(self, kernel: str) -> str:
        """Give the file name of a kernel: its name, and a digest that no other engine has."""
        known = self._names.get(kernel)
        if known is None:
            digest = hashlib.sha256(f"{self.seed} {kernel}".encode()).hexdigest()[:16]
            known = self._names[kernel] = f"kernel.{kernel}.{digest}"
        return known

    def lose(self, kernel: str) -> None:
        """Forget one kernel, as a cache from which its files were removed."""
        self.have.discard(kernel)

    def covered(self, traffic: Sequence[Iterable[Step]]) -> float:
        """Give the share of a traffic mix, as a list of equally likely draws, that would compile nothing."""
        have = self.have
        known: dict[Step, bool] = {}
        clean = 0
        for draw in traffic:
            for step in draw:
                if step not in known:
                    known[step] = all(self.name_of(each) in have for each in self.needs(step))
                if not known[step]:
                    break
            else:
                clean += 1
        return clean / len(traffic)

    def _write(self, kernel: str) -> None:
        if self.folder is None:
            return
        place = self.folder / kernel
        place.mkdir(parents=True, exist_ok=True)
        for name in ("kernel.cu", "kernel.cubin"):
            (place / f"{name}.tmp").write_bytes(kernel.encode() * 8)
            (place / f"{name}.tmp").replace(place / name)


def features_of(fields: dict[str, Any]) -> list[str]:
    """Name the kernels that the fields of a request need whatever its size."""
    found = []
    wanted = fields.get("logprobs")
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        found.append(f"logprobs{1 << wanted.bit_length()}")
    if fields.get("structured_outputs") or fields.get("response_format"):
        found.append("bitmask")
    found += [f"sampler_{name}" for name in ("top_k", "top_p", "min_p", "seed") if fields.get(name) is not None]
    return found


def _apart(one: int, other: int) -> bool:
    """Say whether what lies between two sizes is as wide as the narrowest region."""
    return abs(one - other) >= max(1, NARROW[0] * min(one, other))


def _between(rng: random.Random, low: int, high: int) -> int:
    return min(high, max(low, round(math.exp(rng.uniform(math.log(low), math.log(high))))))
