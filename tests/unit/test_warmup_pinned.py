"""After the warm-up of an engine that hands KV cache on, its blocks must be free again before the pod is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from sidecar.engines.protocol import EngineStats
from sidecar.errors import EngineError
from sidecar.warmup.pinned import may_pin, patience, usage, wait_until_released
from tests.unit.warmup_engine import FACTS, StandInEngine, now

pytestmark = pytest.mark.looptime


class Pinning(StandInEngine):
    """Shows a KV usage that depends on the time; raises while `away` says so."""

    def __init__(self, used: Callable[[float], float | None], away: Callable[[float], bool] = lambda _: False) -> None:
        super().__init__()
        self.used, self.away, self.looks = used, away, 0

    async def stats(self) -> EngineStats:
        self.looks += 1
        if self.away(now()):
            raise EngineError("no answer")
        return EngineStats(kv_cache_usage=self.used(now()))


async def test_blocks_that_go_with_their_lease_are_waited_for() -> None:
    engine = Pinning(lambda at: 0.2 if at < 480 else 0.0)
    assert await wait_until_released(engine, 0.0, 600, 4096, now) is None
    assert 480 <= now() < 484


async def test_blocks_that_stay_pinned_are_told_with_what_to_do() -> None:
    left = await wait_until_released(Pinning(lambda _: 0.2), 0.01, 600, 4096, now)
    assert left is not None
    assert now() == pytest.approx(600)
    assert "20.0 % of the KV cache" in left.sentence
    assert "WARMUP_KV_RELEASE_S" in left.sentence


async def test_usage_is_compared_with_what_it_was_before_warm_up() -> None:
    assert await wait_until_released(Pinning(lambda _: 0.2), 0.2, 600, 4096, now) is None
    assert now() == 0


async def test_a_block_or_two_may_come_and_go() -> None:
    assert await wait_until_released(Pinning(lambda _: 2 / 4096), 0.0, 10, 4096, now) is None
    assert await wait_until_released(Pinning(lambda _: 9 / 4096), 0.0, 10, 4096, now) is not None


async def test_an_engine_that_does_not_show_its_usage_is_not_waited_for() -> None:
    assert await wait_until_released(Pinning(lambda _: None), None, 600, None, now) is None
    assert now() == 0


async def test_an_engine_that_does_not_answer_for_a_moment_is_asked_again() -> None:
    engine = Pinning(lambda _: 0.0, away=lambda at: at < 5)
    assert await usage(engine) is None
    assert await wait_until_released(engine, 0.0, 600, 4096, now) is None
    assert 5 <= now() < 8


@pytest.mark.parametrize(
    ("facts", "pins"),
    [
        (FACTS, False),
        (replace(FACTS, role="both"), False),
        (replace(FACTS, role="prefill"), True),
        (replace(FACTS, role="both", kv_connectors=("NixlConnector",)), True),
    ],
)
async def test_only_engines_that_keep_blocks_for_others_are_waited_for(facts: object, pins: bool) -> None:
    assert may_pin(facts) is pins  # type: ignore[arg-type]
    await asyncio.sleep(0)


async def test_the_engines_own_lease_counts_and_the_setting_caps_it() -> None:
    assert patience(FACTS, 600) == 600
    assert patience(replace(FACTS, kv_release_s=60), 600) == 80
    assert patience(replace(FACTS, kv_release_s=3600), 600) == 600
