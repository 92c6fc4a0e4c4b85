"""Golden files loaded beside a running loop: one load at a time, whatever the volume does, and none twice."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from sidecar.errors import GoldenError
from sidecar.golden import GoldenSet, load
from sidecar.golden.loading import Loading
from tests.unit.test_golden_files import GOOD, written


class Reader:
    """Counts loads, which wait while `hangs`."""

    def __init__(self) -> None:
        self.loads = 0
        self.free = threading.Event()
        self.free.set()

    def __call__(self, path: Path) -> GoldenSet:
        self.loads += 1
        self.free.wait(30)
        return load(path)


async def test_what_did_not_change_is_not_loaded_again_and_what_did_is(tmp_path: Path):
    path, reader = written(tmp_path, GOOD), Reader()
    loading = Loading(reader)
    first = await loading.load(path, 10)
    assert await loading.load(path, 10) is first
    assert reader.loads == 1
    written(tmp_path, GOOD.replace("name: a", "name: other"))
    assert (await loading.load(path, 10)).files[0].prompts[0].name == "other"


async def test_a_directory_is_loaded_again_when_a_file_joins_it(tmp_path: Path):
    written(tmp_path, GOOD)
    loading = Loading(Reader())
    assert len((await loading.load(tmp_path, 10)).files) == 1
    (tmp_path / "more.yaml").write_text(GOOD)
    assert len((await loading.load(tmp_path, 10)).files) == 2


async def test_a_load_that_hangs_is_waited_for_again_and_not_begun_once_more(tmp_path: Path):
    path, reader = written(tmp_path, GOOD), Reader()
    reader.free.clear()
    loading = Loading(reader)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await loading.load(path, 0.01)
    both = asyncio.gather(loading.load(path, 10), loading.load(path, 10))
    await asyncio.sleep(0)
    reader.free.set()
    one, other = await both
    assert (reader.loads, one is other) == (1, True)


async def test_a_file_that_can_not_be_used_is_tried_again_though_it_did_not_change(tmp_path: Path):
    path, reader = written(tmp_path, "prompts: ["), Reader()
    loading = Loading(reader)
    for _ in range(2):
        with pytest.raises(GoldenError, match="not YAML"):
            await loading.load(path, 10)
    assert reader.loads == 2


async def test_another_path_is_loaded_after_the_one_that_runs(tmp_path: Path):
    reader = Reader()
    (tmp_path / "b").mkdir()
    first, second = written(tmp_path, GOOD), written(tmp_path / "b", GOOD.replace("name: a", "name: other"))
    loading = Loading(reader)
    _, found = await asyncio.gather(loading.load(first, 10), loading.load(second, 10))
    assert found.files[0].prompts[0].name == "other"
