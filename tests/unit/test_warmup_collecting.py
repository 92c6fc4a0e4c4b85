"""Full garbage collections while hundreds of streams are in flight: none, and afterwards all is as before."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sidecar.bench.load import LoadPlan
from sidecar.warmup.bursts import Ask, single
from sidecar.warmup.collecting import MANY, NEVER, keep_imports, no_full_collections
from sidecar.warmup.prompts import PromptSource
from sidecar.warmup.traffic import Traffic
from tests.unit.test_bench_load import Engine, load
from tests.unit.warmup_engine import StandInEngine, now


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    """Let full collections come often, and give what counts before and after."""
    before = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    yield gc.get_threshold()
    gc.set_threshold(*before)


#: In a process of its own: CPython puts a full collection off until a quarter of all objects is new, and here other tests'
#: objects are many.
SCRIPT = """
import gc
from sidecar.warmup.collecting import MANY, no_full_collections

gc.set_threshold(50, 2, 2)
full = lambda: gc.get_stats()[2]["collections"]
kept = []
with no_full_collections(MANY):
    before = full()
    kept += [[number] for number in range(200_000)]
    meanwhile = full() - before
kept += [[number] for number in range(200_000)]
print(meanwhile, full() - before > 0)
"""


def test_no_full_collection_comes_while_many_streams_are_in_flight() -> None:
    assert subprocess.check_output([sys.executable, "-c", SCRIPT], text=True).split() == ["0", "True"]


def test_what_is_young_is_collected_as_ever(thresholds: tuple[int, int, int]) -> None:
    with no_full_collections(512):
        assert gc.get_threshold() == (*thresholds[:2], NEVER)


def test_what_is_there_is_left_out_of_later_collections() -> None:
    keep_imports()
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    assert frozen > 1000


def test_few_streams_change_nothing(thresholds: tuple[int, int, int]) -> None:
    with no_full_collections(MANY - 1):
        assert gc.get_threshold() == thresholds


def test_loads_that_overlap_give_back_what_counted_before_the_first(thresholds: tuple[int, int, int]) -> None:
    first, second = no_full_collections(512), no_full_collections(512)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[2] == NEVER
    second.__exit__(None, None, None)
    assert gc.get_threshold() == thresholds


@pytest.mark.looptime
async def test_a_burst_of_many_streams_holds_them_off_and_a_cancelled_one_gives_back(
    thresholds: tuple[int, int, int],
) -> None:
    engine, seen = StandInEngine(), set[int]()
    engine.stall = lambda _: seen.add(gc.get_threshold()[2]) or 5.0  # type: ignore[func-returns-value]
    traffic = Traffic(engine, PromptSource(random.Random(1), 32000), now, lambda: False)
    sending = asyncio.create_task(traffic.send(single("x", Ask(MANY, 8, 2)), 60))
    await asyncio.sleep(1)
    sending.cancel()
    await asyncio.wait({sending})
    assert seen == {NEVER}
    assert gc.get_threshold() == thresholds


@pytest.mark.looptime
async def test_a_load_of_many_streams_holds_them_off_until_its_end(thresholds: tuple[int, int, int]) -> None:
    engine, seen = Engine(), set[int]()
    engine.at_once = lambda: seen.add(gc.get_threshold()[2])
    await load(engine, LoadPlan(MANY, requests=2 * MANY)).run()
    assert seen == {NEVER}
    assert gc.get_threshold() == thresholds
