"""Claims about request bodies: the same JSON whatever its size, and never made in one long piece."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sidecar.engines.encoding import PIECE, encoded

LONG = list(range(3 * PIECE + 7))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "a text", "n": 1},
        {"prompt": [1, 2, 3]},
        {"model": "m", "prompt": LONG, "stream": True, "nested": {"a": [1, "ü"]}},
        {"prompt": tuple(LONG)},
        {"prompt": LONG[: PIECE + 1]},
        {"prompt": [[1, 2]] * (PIECE + 1)},
    ],
    ids=("empty", "text", "short", "long", "tuple", "one more than a piece", "several prompts"),
)
async def test_a_body_is_the_json_that_it_would_be_in_one_piece(body: dict[str, Any]) -> None:
    assert json.loads(await encoded(body)) == json.loads(json.dumps(body))


async def test_other_work_is_done_while_a_long_prompt_is_written() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    before = turns
    await encoded({"prompt": LONG})
    task.cancel()
    assert turns - before >= len(LONG) // PIECE
