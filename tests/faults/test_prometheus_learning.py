"""`profiles learn` asks a real Prometheus: counters that start anew, what it has not, queries that it refuses."""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path

import pytest

from sidecar.commands.learned_text import Told, profile_text
from sidecar.commands.prometheus import Prometheus
from sidecar.commands.traffic_sources import from_prometheus
from sidecar.errors import NotSo
from sidecar.warmup.profiles import load_file
from tests.fakes.length_page import LengthPage
from tests.faults.test_prometheus import prometheus

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is missing (Debian: package prometheus)"
)
PROMPTS, OUTPUTS = {16.0: 0, 1000.0: 30, 2000.0: 10, math.inf: 0}, {20.0: 20, 50.0: 20, math.inf: 0}
#: Two scrapes a second; the growth of so many is enough requests for a distribution, with an engine's restart among them.
SCRAPES, RESET_AT = 12, 6


async def scraped(page: LengthPage, scrapes: int) -> None:
    async with asyncio.timeout(60):
        while page.scrapes < scrapes:
            await asyncio.sleep(0.1)


async def test_lengths_are_learned_through_an_engine_that_started_anew_and_questions_are_checked(
    tmp_path: Path,
) -> None:
    async with LengthPage(PROMPTS, OUTPUTS, running=6) as page:
        page.grows, page.resets_at = 2, RESET_AT
        with prometheus(tmp_path, f"127.0.0.1:{page.port}") as server:
            await scraped(page, SCRAPES)
            async with Prometheus(server.url) as client:
                found = await from_prometheus(client, "1m", 'model_name="m"', None)
                with pytest.raises(NotSo, match="no requests in vllm:request_prompt_tokens"):
                    await from_prometheus(client, "1m", 'model_name="other"', None)
                with pytest.raises(NotSo, match="parse error"):
                    await from_prometheus(client, "1m", 'model_name="m', None)
    mix = found.mix
    # A counter that went back would count as negative, or as nothing, without Prometheus's own care.
    assert mix.requests > 40 * (SCRAPES - RESET_AT)
    assert mix.prompt_tokens.bounds == (16, 1000, 2000)
    shares = [count / mix.prompt_tokens.total for count in mix.prompt_tokens.counts]
    assert shares == pytest.approx([0, 0.75, 0.25], abs=0.01)
    assert mix.output_tokens.counts[0] / mix.output_tokens.total == pytest.approx(0.5, abs=0.01)
    assert set(mix.concurrency.bounds) == {5, 6}
    (tmp_path / "mine.yaml").write_text(profile_text(mix, "sm90", Told(found.source, found.notes)), encoding="utf-8")
    learned = load_file(tmp_path / "mine.yaml").mix
    assert (learned.prompt_tokens.start, learned.prompt_tokens.to, learned.concurrency.to) == (8, 2000, 6)


async def test_a_prometheus_that_has_not_scraped_anything_yet_tells_nothing(tmp_path: Path) -> None:
    async with LengthPage(PROMPTS, OUTPUTS) as page:
        with prometheus(tmp_path, f"127.0.0.1:{page.port}") as server:
            await scraped(page, 1)
            async with Prometheus(server.url) as client:
                with pytest.raises(NotSo, match="no requests in"):
                    await from_prometheus(client, "1m", "", None)
