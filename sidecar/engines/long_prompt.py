"""Prompts of many token ids that are kept as a place in a pool, and written as JSON piece by piece.

512 prompts of 100,000 ids would fill 400 MB as tuples, and 330 MB more as JSON. Which ids are drawn is not known here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import overload

#: Prompts of more token ids than this are kept as such. 100,000 in one piece took 20 to 40 ms to write on a CPU of 2024.
LONG = 4096
#: Token ids that are written at a time: half a millisecond, and more on a loaded machine.
PIECE = 2048
_BETWEEN = 2


class Pool:
    """Token ids that prompts are cut from, round and round; and how many characters they take."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self._sums = (0, *accumulate(len(str(each)) for each in self.ids))

    def cut(self, start: int, count: int) -> Iterator[int]:
        """Give so many ids from a place on, and from the beginning again after the last one."""
        size = len(self.ids)
        rounds = (self.ids[begin:] for begin in chain((start % size,), iter(lambda: 0, None)))
        return islice(chain.from_iterable(rounds), count)

    def digits(self, start: int, count: int) -> int:
        """Count the characters of these ids."""
        size = len(self.ids)
        start %= size
        rounds, rest = divmod(start + count, size)
        return rounds * self._sums[-1] + self._sums[rest] - self._sums[start]


class LongPrompt(Sequence[int]):
    """The ids of `head`, and then `length` in all from `start` in the pool."""

    __slots__ = ("_head", "_length", "_pool", "_start")

    def __init__(self, head: Sequence[int], pool: Pool, start: int, length: int) -> None:
        self._head, self._pool, self._start, self._length = tuple(head), pool, start, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return chain(self._head, self._pool.cut(self._start, self._length - len(self._head)))

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        if isinstance(at, slice):
            low, high, step = at.indices(self._length)
            if step != 1:
                return tuple(self)[at]
            return self._between(low, max(low, high))
        at = range(self._length)[at]
        return self._between(at, at + 1)[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LongPrompt) and self._key() == other._key() and self._pool.ids == other._pool.ids

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"LongPrompt{self._key()}"

    @property
    def json_size(self) -> int:
        """Count the characters between the brackets when this is written as JSON."""
        digits = sum(len(str(each)) for each in self._head)
        digits += self._pool.digits(self._start, self._length - len(self._head))
        return digits + _BETWEEN * (self._length - 1)

    def json_pieces(self) -> Iterator[bytes]:
        """Write what is between the brackets, less than 1 ms of work at a time."""
        ids, first = iter(self), True
        while piece := list(islice(ids, PIECE)):
            text = json.dumps(piece)[1:-1]
            yield (text if first else f", {text}").encode()
            first = False

    def _between(self, low: int, high: int) -> tuple[int, ...]:
        own = len(self._head)
        body = max(0, low - own)
        return (*self._head[low:high], *self._pool.cut(self._start + body, max(0, high - max(low, own))))

    def _key(self) -> tuple[tuple[int, ...], int, int]:
        return self._head, self._start, self._length
