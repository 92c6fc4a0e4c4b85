"""`wait --for published`: the end of a Job that fills the store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.lifecycle import Gate
from tests.unit.commands import daemon, end_of, sidecar, start


@pytest.fixture
def control_dir() -> Iterator[Path]:
    # Not tmp_path: the path of a unix socket holds 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="ws-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("outcome", ["published", "nothing_new"])
async def test_it_ends_when_what_this_start_compiled_is_in_the_store(control_dir: Path, outcome: str):
    async with daemon(control_dir) as one:
        one.board.gate = Gate(True, False, "Warm.")
        one.board.publish = {"outcome": outcome, "sentence": "Done."}
        ended = await sidecar("wait", "--for", "published", "--url", one.url)
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("outcome", ["read_only", "disabled"])
async def test_it_ends_at_once_with_3_where_nothing_is_ever_published(control_dir: Path, outcome: str):
    async with daemon(control_dir) as one:
        one.board.gate = Gate(True, False, "Warm.")
        one.board.publish = {"outcome": outcome, "sentence": "The store is read-only."}
        ended = await sidecar("wait", "--for", "published", "--url", one.url)
    assert ended.code == 3
    assert "Nothing is published here: The store is read-only." in ended.err


async def test_a_publish_of_an_engine_that_is_not_ready_is_not_the_one(control_dir: Path):
    async with daemon(control_dir) as one:
        one.board.gate = Gate(False, False, "Warming up.")
        one.board.publish = {"outcome": "published", "sentence": "An earlier one."}
        ended = await sidecar("wait", "--for", "published", "--timeout", "1", "--url", one.url)
    assert ended.code == 3
    assert "Warming up." in ended.err


async def test_a_failed_publish_is_waited_out_because_it_is_tried_again(control_dir: Path):
    async with daemon(control_dir) as one:
        one.board.gate = Gate(True, False, "Warm.")
        one.board.publish = {"outcome": "failed", "sentence": "The store is full."}
        process = await start("wait", "--for", "published", "--url", one.url)
        assert process.stdout is not None
        assert b"The store is full." in await process.stdout.readline()
        one.board.publish = {"outcome": "published", "sentence": "Published."}
        assert (await end_of(process)).code == 0
