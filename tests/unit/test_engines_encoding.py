"""Claims about request bodies: the same JSON whatever its size, and long ones never made in one piece."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import aiohttp
import pytest

from sidecar.engines.encoding import AT_ONCE, payload_of
from sidecar.engines.long_prompt import PIECE, LongPrompt, Pool

POOL = Pool([1024 + 37 * number % 30000 for number in range(1000)])
PROMPT = LongPrompt((7, 8, 9), POOL, 990, 3 * PIECE + 7)
PLAIN = tuple(PROMPT)


class Wire:
    """What is written, piece by piece; each piece takes a turn of the loop, and some of them longer."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pieces: list[bytes] = []
        self._pause_s = pause_s

    async def write(self, chunk: bytes) -> None:
        self.pieces.append(chunk)
        await asyncio.sleep(self._pause_s)


async def _written(body: dict[str, Any], wire: Any = None) -> tuple[aiohttp.Payload, list[bytes]]:
    wire = wire or Wire()
    payload = payload_of(body, asyncio.Semaphore(AT_ONCE))
    await payload.write(wire)
    return payload, wire.pieces


@pytest.mark.parametrize(
    "rest",
    [{}, {"model": "m", "stream": True, "nested": {"a": [1, "ü"]}}],
    ids=("alone", "among others"),
)
@pytest.mark.parametrize("prompt", ["a text", (1, 2, 3), PROMPT], ids=("text", "short", "long"))
async def test_a_body_is_the_json_that_it_would_be_in_one_piece(rest: dict[str, Any], prompt: Any) -> None:
    payload, pieces = await _written({**rest, "prompt": prompt})
    whole = b"".join(pieces)
    expected = {**rest, "prompt": prompt if isinstance(prompt, str) else list(prompt)}
    assert json.loads(whole) == expected
    assert payload.size == len(whole)
    assert payload.decode() == whole.decode()


async def test_a_long_prompt_is_written_in_pieces_with_other_work_between_them() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    before = turns
    _, pieces = await _written({"prompt": PROMPT})
    task.cancel()
    assert turns - before >= len(PROMPT) // PIECE
    assert max(map(len, pieces)) < 8 * PIECE


@pytest.mark.looptime
async def test_only_so_many_long_bodies_are_written_at_a_time() -> None:
    turns, wires = asyncio.Semaphore(AT_ONCE), [Wire(pause_s=1) for _ in range(3 * AT_ONCE)]
    writing = [asyncio.create_task(payload_of({"prompt": PROMPT}, turns).write(wire)) for wire in wires]  # type: ignore[arg-type]
    await asyncio.sleep(2.5)
    assert sum(bool(wire.pieces) for wire in wires) == AT_ONCE
    await asyncio.gather(*writing)
    assert all(json.loads(b"".join(wire.pieces))["prompt"] == list(PROMPT) for wire in wires)


@pytest.mark.looptime
async def test_a_body_that_is_given_up_leaves_its_turn_to_others() -> None:
    turns = asyncio.Semaphore(1)
    first = asyncio.create_task(payload_of({"prompt": PROMPT}, turns).write(Wire(pause_s=1e6)))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    first.cancel()
    wire = Wire()
    await payload_of({"prompt": PROMPT}, turns).write(wire)  # type: ignore[arg-type]
    assert wire.pieces


def test_a_long_prompt_is_a_sequence_like_any_other() -> None:
    rng = random.Random(1)
    for _ in range(200):
        low, high = sorted(rng.choices(range(len(PROMPT) + 5), k=2))
        assert PROMPT[low:high] == PLAIN[low:high]
    assert [PROMPT[at] for at in (0, 2, 3, -1)] == [PLAIN[at] for at in (0, 2, 3, -1)]
    assert (PROMPT[::7], len(PROMPT)) == (PLAIN[::7], len(PLAIN))
    assert LongPrompt((7, 8, 9), POOL, 990, len(PROMPT)) == PROMPT
    assert LongPrompt((7, 8, 9), POOL, 991, len(PROMPT)) != PROMPT
    with pytest.raises(IndexError):
        PROMPT[len(PROMPT)]
