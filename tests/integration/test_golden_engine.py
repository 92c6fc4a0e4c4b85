"""Golden checks against a real vLLM: its own recording passes, other weights fail, another tokenizer is refused.

One engine is started, without graphs, and its weights are exchanged while it runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.demo.engine_setup import EnginePaths
from sidecar.engines.protocol import EngineFacts
from sidecar.engines.vllm import VllmEngine
from sidecar.golden import GoldenResult, GoldenSet, PromptSet, check, load, record, save, starter_prompts
from tests.integration.trusted_engine import TrustedEngine, make_model

DEADLINE_S = 240.0
#: Seed of the noise, its size and the share of tensors that get some: a damage that leaves most of the text as it was.
SLIGHT, HEAVY = "1,0.1,0.1", "2,0.5,0.5"


@dataclasses.dataclass
class Trusted:
    """A recorded engine, and the folder of models that it can be made into."""

    engine: TrustedEngine
    golden: GoldenSet
    models: Path

    def ask(self, weights: Path | None = None, golden: GoldenSet | None = None) -> GoldenResult:
        """Check the engine with these weights; its own are put back afterwards."""
        if weights is not None:
            self.engine.load(weights)
        try:
            return asyncio.run(_check(self.engine.url, golden or self.golden))
        finally:
            if weights is not None:
                self.engine.load(self.engine.model)


def _client(url: str) -> VllmEngine:
    return VllmEngine(url, api_key=lambda: None, clock=time.monotonic)


async def _check(url: str, golden: GoldenSet) -> GoldenResult:
    engine = _client(url)
    try:
        facts = await engine.facts()
        return await check(engine, facts, golden, salt=secrets.token_hex(4), deadline_s=DEADLINE_S)
    finally:
        await engine.close()


async def _record(url: str) -> tuple[GoldenSet, EngineFacts]:
    engine = _client(url)
    starter = starter_prompts()
    shared = [each for each in starter.prompts if each.passage == "council"]
    others = [each for each in starter.prompts if not each.passage and not each.picture]
    chosen = PromptSet(passages=starter.passages, prompts=(*others[::5], *shared[:4]))
    try:
        facts = await engine.facts()
        salt = secrets.token_hex(4)
        found = await record(
            engine, facts, chosen, salt=salt, deadline_s=DEADLINE_S, recorded_at="now", label="trusted"
        )
        return found, facts
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory, engine_paths: EnginePaths, tiny_model: Path) -> Iterator[Trusted]:
    """Start an engine that is sure of what it says, record it, and make the other models meanwhile."""
    root = tmp_path_factory.mktemp("golden")
    sharp = make_model(engine_paths, "sharp", str(tiny_model), str(root / "sharp"))
    engine = TrustedEngine(root / "engine", engine_paths, sharp)
    try:
        make_model(engine_paths, "other", str(sharp), str(root / "other"), "3")
        make_model(engine_paths, "perturbed", str(sharp), str(root / "perturbed"), SLIGHT, HEAVY)
        engine.wait()
        golden, _ = asyncio.run(_record(engine.url))
        save(golden, root / "golden.yaml")
        yield Trusted(engine, load(root / "golden.yaml"), root)
    finally:
        engine.end()


def test_the_recorded_engine_passes_in_every_way_of_sending(trusted: Trusted):
    result = trusted.ask()
    assert result.outcome == "passed", result.sentence
    assert result.notes == ()
    assert result.statistics["tokens"] > 300
    assert all(result.statistics[f"{way}_prompts"] for way in ("solo", "concurrent", "batch"))
    assert result.drift_percent is not None
    assert result.drift_percent < 3.0


@pytest.mark.parametrize("seed", ["1", "2"])
def test_weights_with_noise_fail(trusted: Trusted, seed: str):
    result = trusted.ask(trusted.models / "perturbed" / seed)
    assert result.outcome == "failed", result.sentence
    assert result.drift_percent is not None
    assert result.drift_percent > 3.0


def test_another_model_under_the_same_name_fails(trusted: Trusted):
    result = trusted.ask(trusted.models / "other")
    assert result.outcome == "failed", result.sentence
    assert len({each.name for each in result.failed}) > result.prompts / 2
    assert all(each.expected != each.got or each.way == "likelihood" for each in result.failed)


def test_its_own_weights_pass_again_after_all_that(trusted: Trusted):
    trusted.engine.load(trusted.models / "other")
    trusted.engine.load(trusted.engine.model)
    assert trusted.ask().outcome == "passed"


def test_a_recording_made_with_another_tokenizer_is_refused(trusted: Trusted):
    (file,) = trusted.golden.files
    ids = file.recorded.sentence_ids
    assert len(ids) > 20
    other = file.model_copy(update={"recorded": file.recorded.model_copy(update={"sentence_ids": ids[1:]})})
    result = trusted.ask(golden=dataclasses.replace(trusted.golden, files=(other,)))
    assert (result.outcome, "tokenizer" in result.sentence) == ("error", True)


def test_a_recording_of_a_model_with_another_name_is_refused(trusted: Trusted):
    (file,) = trusted.golden.files
    other = file.model_copy(update={"models": ("somebody-else",)})
    result = trusted.ask(golden=dataclasses.replace(trusted.golden, files=(other,)))
    assert (result.outcome, "somebody-else" in result.sentence) == ("error", True)
