"""`warm` as people run it, against a scripted engine over HTTP: the table, stalls, kernels, exit codes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.commands import Ended, end_of, sidecar, start

#: Stalls of this many seconds are longer than what a loaded machine makes of a request by itself.
STALL_S = 0.6
PROFILE = """
description: Small enough for a test.
steps:
  - {kind: prefill, name: prompts, tokens: [1, 16, 600], output_tokens: 2}
  - {kind: logprobs, name: log-probabilities, values: [5], output_tokens: 2}
  - {kind: chat, name: chat, output_tokens: 2}
mix:
  prompt_tokens: {from: 1, to: 64}
  output_tokens: {from: 1, to: 2}
  concurrency: {from: 1, to: 2}
converge: {tolerance: 3, floor_s: 0.3, random_draws: 4, max_rounds: 4}
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(PROFILE)
    return tmp_path / "small.yaml"


def engine_with(live: Path | None = None, **script: Any) -> FakeEngine:
    caches = {} if live is None else {"triton": live / "triton", "inductor": live / "inductor"}
    return FakeEngine(Script(**script), **caches)  # type: ignore[arg-type]


async def warm(engine: FakeEngine, profile: Path, *words: str) -> Ended:
    return await sidecar("warm", "--url", engine.url, "--profile", str(profile), *words)


async def test_kernels_and_stalls_of_each_step_are_shown_before_and_after(profile: Path, tmp_path: Path):
    live = tmp_path / "live"
    live.mkdir()
    async with engine_with(live, compile_seconds=STALL_S) as engine:
        ended = await warm(engine, profile, "--live-cache", str(live))
        kernels = len(engine.kernels.compiled)
    assert ended.code == 0, ended.err
    row = next(line for line in ended.out.splitlines() if line.startswith("log-probabilities")).split("  ")
    name, first, best, last, stall, count = (each.strip() for each in row if each.strip())
    assert (name, count) == ("log-probabilities", "1")
    assert all(unit in f"{first} {best} {last} {stall}" for unit in (" ms",))
    assert "Stalls absorbed: " in ended.out
    prompts = next(line for line in ended.out.splitlines() if line.startswith("prompts"))
    assert " s in 2" in prompts
    assert "Kernels compiled: " in ended.out
    assert f"compiled {kernels} kernels" in ended.out
    assert "Profile small, as given." in ended.err


async def test_without_a_live_cache_it_says_that_compiling_can_not_be_seen(profile: Path):
    async with engine_with() as engine:
        ended = await warm(engine, profile)
    assert ended.code == 0, ended.err
    text = " ".join(ended.out.split())
    assert "compiling can't be seen: flat latency is the only sign" in text
    assert "Flat: " in text
    assert "live cache is empty" not in text


async def test_the_result_as_json_is_alone_on_standard_output(profile: Path, tmp_path: Path):
    live = tmp_path / "live"
    live.mkdir()
    async with engine_with(live, compile_seconds=STALL_S) as engine:
        ended = await warm(engine, profile, "--live-cache", str(live), "--json")
        compiled = len(engine.kernels.compiled)
    found = json.loads(ended.out)
    assert (found["outcome"], found["compiling_seen"], found["model"]) == ("converged", True, "fake-model")
    assert sum(found["kernels"].values()) == compiled
    stalled = [(each["step"], each["burst"]) for each in found["stalls"]]
    assert {*stalled} >= {("prompts", "1"), ("prompts", "600"), ("log-probabilities", "logprobs 5")}
    # A stall is what a burst took beyond its usual time, and on a busy machine that is longer.
    assert found["stalls_s"] > 2 * STALL_S
    assert found["stalls_s"] == pytest.approx(sum(step["stall_s"] for step in found["steps"]), abs=0.001)
    assert "prompts: done" in ended.err


async def test_a_profile_is_chosen_for_the_sm_version_that_is_given():
    async with engine_with() as engine:
        ended = await sidecar("warm", "--url", engine.url, "--sm", "sm90", "--budget", "0.01")
    assert ended.code == 3
    assert "Profile sm90" in ended.err
    assert "--budget" in ended.out


async def test_an_engine_that_dies_ends_with_the_table_and_3(profile: Path):
    async with engine_with(die_on_tokens=500) as engine:
        ended = await warm(engine, profile)
    assert ended.code == 3
    assert "The engine died" in " ".join(ended.out.split())
    assert "prompts" in ended.out


async def test_ctrl_c_ends_with_the_table_so_far(profile: Path):
    async with engine_with(token_seconds=0.5) as engine:
        process = await start("warm", "--url", engine.url, "--profile", str(profile))
        while len(engine.requests) < 2:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        ended = await end_of(process)
    assert ended.code == 130
    assert "Time to first token" in ended.out
    assert "Interrupted before it converged" in ended.out
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("script", "words", "code", "told"),
    [
        ({"asleep": True}, (), 3, "is asleep; wake it up"),
        ({"api_key": "secret"}, (), 3, "--api-key-file"),
        ({"models_status": 404}, (), 3, "/v1/models"),
        ({}, ("--live-cache", "/nonexistent"), 2, "--live-cache /nonexistent is no directory"),
        ({}, ("--profile", "nowhere"), 2, "There is no profile 'nowhere'"),
        ({}, ("--sm", "hopper"), 2, "sm"),
        ({}, ("--budget", "soon"), 2, "warm_budget_s"),
    ],
)
async def test_what_can_not_be_warmed_is_a_sentence_and_no_traffic(
    script: dict[str, Any], words: tuple[str, ...], code: int, told: str
):
    async with engine_with(**script) as engine:
        ended = await sidecar("warm", "--url", engine.url, *words)
        assert engine.counters.texts == 0
    assert ended.code == code, ended.err
    assert told in ended.err
    assert ended.out == ""
    assert "Traceback" not in ended.err


async def test_an_address_as_clients_have_it_is_taken(profile: Path):
    async with engine_with() as engine:
        ended = await sidecar("warm", "--url", f"{engine.url}/v1/", "--profile", str(profile))
    assert ended.code == 0, ended.err


async def test_the_key_from_the_file_is_sent(profile: Path, tmp_path: Path):
    (tmp_path / "key").write_text("secret\n")
    async with engine_with(api_key="secret") as engine:
        ended = await warm(engine, profile, "--api-key-file", str(tmp_path / "key"))
    assert ended.code == 0, ended.err
    assert "secret" not in ended.out + ended.err
