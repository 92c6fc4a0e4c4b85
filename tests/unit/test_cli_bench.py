"""`bench` as people run it, against a scripted engine over HTTP: figures, errors by kind, files, comparison."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.commands import Ended, end_of, sidecar, start

FEW = ("--concurrency", "4", "--requests", "40", "--prompt-tokens", "8:64", "--output-tokens", "2:6")


async def bench(engine: FakeEngine, *words: str) -> Ended:
    return await sidecar("bench", "--url", engine.url, *FEW, *words)


async def test_every_request_is_counted_and_has_its_own_prompt_and_salt(tmp_path: Path):
    async with FakeEngine(Script(token_seconds=0.002)) as engine:
        ended = await bench(engine, "--json", str(tmp_path / "run.json"))
        assert ended.code == 0, ended.err
        # One tiny request goes ahead.
        sent = engine.requests[1:]
        assert len(sent) == 40
        assert len({each["cache_salt"] for each in sent}) == 40
        assert {each["prompt_tokens"] for each in sent} <= set(range(8, 65))
        assert all(each["ignore_eos"] for each in sent)
    report = json.loads((tmp_path / "run.json").read_text())
    assert (report["answered"], report["ended"], report["busiest"], report["errors"]) == (40, "complete", 4, {})
    assert sum(report["samples"]["tokens"]) == sum(each["max_tokens"] for each in sent)
    assert report["figures"]["ttft_s"]["count"] == 40
    assert 0 < report["figures"]["ttft_s"]["p50"] <= report["figures"]["total_s"]["p50"]
    for word in ("TTFT", "TPOT", "ITL", "tokens/s", "loop lag", "none of 40 requests", "TTFT over the run"):
        assert word in ended.out


async def test_what_it_prints_fits_into_80_columns(tmp_path: Path):
    async with FakeEngine() as engine:
        await bench(engine, "--json", str(tmp_path / "run.json"))
    code = (
        "import sys, pathlib\n"
        "from rich.console import Console\n"
        "import sidecar.commands.bench_view as view\n"
        "from sidecar.bench.report import read_report\n"
        "view._console = lambda to_stderr: Console(width=80, highlight=False)\n"
        "run = read_report(pathlib.Path(sys.argv[1]))\n"
        "view.show_report(run, to_stderr=False)\n"
        "view.show_comparison(run, run, ('a', 'b'), [], to_stderr=False)\n"
    )
    ended = await sidecar(str(tmp_path / "run.json"), code=code)
    lines = ended.out.splitlines()
    assert len(lines) > 40, ended.err
    assert max(len(line) for line in lines) <= 80
    assert "…" not in ended.out


async def test_the_same_seed_sends_the_same_lengths_with_other_prompts():
    async with FakeEngine() as engine:
        sizes = []
        for _ in range(2):
            engine.requests.clear()
            await bench(engine, "--concurrency", "1")
            sizes.append([(each["prompt_tokens"], each["max_tokens"]) for each in engine.requests])
            salts = {each["cache_salt"] for each in engine.requests}
        assert sizes[0] == sizes[1]
        assert len(salts) == 41


async def test_a_profile_brings_its_own_mix():
    async with FakeEngine() as engine:
        ended = await sidecar(
            "bench", "--url", engine.url, "--profile", "cpu", "--concurrency", "4", "--requests", "60"
        )
        assert ended.code == 0, ended.err
        assert "mix of profile cpu" in ended.out
        assert {each["temperature"] for each in engine.requests[1:]} == {0.0, 1.0}


async def test_a_duration_ends_the_sending():
    async with FakeEngine(Script(token_seconds=0.01)) as engine:
        words = ("--concurrency", "2", "--duration", "1", "--prompt-tokens", "8", "--output-tokens", "5")
        ended = await sidecar("bench", "--url", engine.url, *words)
        assert ended.code == 0, ended.err
        assert 4 < len(engine.requests) < 80


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ({"generation": "500"}, "HTTP 500"),
        ({"generation": "error_in_stream"}, "error in a 200 answer"),
        ({"generation": "truncated"}, "without [DONE]"),
        ({"generation": "empty"}, "no text"),
    ],
)
async def test_failures_are_told_by_kind_and_end_with_3(script: dict[str, Any], kind: str):
    async with FakeEngine(Script(token_seconds=0.02)) as engine:
        process = await start("bench", "--url", engine.url, *FEW, "--requests", "400")
        while len(engine.requests) < 20:
            await _a_moment()
        engine.script.update(script)
        ended = await end_of(process)
    assert ended.code == 3
    assert kind in " ".join(ended.out.split())
    assert "Ended early" in ended.out
    assert "TTFT" in ended.out


async def test_an_engine_that_dies_midway_is_told_with_the_figures_so_far():
    async with FakeEngine(Script(die_on_request=30)) as engine:
        ended = await bench(engine, "--requests", "400")
    assert ended.code == 3
    text = " ".join(ended.out.split())
    assert "The engine died" in text
    assert "requests had been answered by then" in text


async def test_an_engine_that_falls_asleep_gets_nothing_more():
    async with FakeEngine(Script(token_seconds=0.05)) as engine:
        process = await start("bench", "--url", engine.url, *FEW, "--requests", "4000")
        while len(engine.requests) < 20:
            await _a_moment()
        # As engines do it that drain before they sleep: what runs is finished, metrics say asleep.
        engine.script.asleep = True
        ended = await end_of(process)
        assert ended.code == 3
        assert "Ended early: The engine fell asleep" in ended.out
        assert len(engine.requests) < 4000


@pytest.mark.parametrize(
    ("script", "words", "told"),
    [
        ({"asleep": True}, (), "is asleep; wake it up"),
        ({"api_key": "secret"}, (), "give its key in the file that --api-key-file names"),
        ({}, ("--model", "other"), "does not serve 'other'; it serves fake-model. Set --model"),
        ({"models_status": 404}, (), "/v1/models"),
        ({"models_status": 500}, (), "HTTP 500 to /v1/models"),
        ({"max_model_len": 9}, (), "don't fit into this model's 9 tokens"),
        ({"generation": "500"}, (), "does not answer requests for text: HTTP 500"),
    ],
)
async def test_an_engine_that_can_not_be_measured_is_a_sentence_and_no_load(
    script: dict[str, Any], words: tuple[str, ...], told: str
):
    async with FakeEngine(Script(**script)) as engine:
        ended = await bench(engine, *words)
        assert engine.counters.texts <= 1
    assert ended.code == (2 if "fit" in told else 3)
    assert told in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--url", "http://127.0.0.1:1"), 3, "Nothing listens"),
        (("--url", "127.0.0.1:8000"), 2, "--url is not usable"),
        (("--url", "http://me:secret@h:1"), 2, "--url is not usable"),
        (("--requests", "5", "--duration", "5"), 2, "not both"),
        (("--prompt-tokens", "9:1"), 2, "'9:1' is not a range"),
        (("--profile", "cpu", "--prompt-tokens", "9"), 2, "lengths of its own"),
        (("--profile", "nowhere", "--url", "http://127.0.0.1:1"), 3, "Nothing listens"),
        (("--compare", "/nonexistent.json"), 2, "can't be read"),
        (("--json", "/nonexistent/run.json"), 2, "can't be written"),
        (("--api-key-file", "/nonexistent"), 2, "--api-key-file /nonexistent can't be read"),
        (("a.json",), 2, "bench --compare FILE FILE"),
    ],
)
async def test_wrong_use_is_a_sentence(words: tuple[str, ...], code: int, told: str):
    ended = await sidecar("bench", *words)
    assert ended.code == code
    assert told in ended.err
    assert "secret" not in ended.err
    assert "Traceback" not in ended.err


async def test_a_server_without_extensions_is_measured_without_them():
    async with FakeEngine(Script(extensions=False)) as engine:
        ended = await bench(engine)
        assert ended.code == 0, ended.err
        assert "takes neither cache_salt nor ignore_eos" in " ".join(ended.out.split())
        assert not any("ignore_eos" in each for each in engine.requests)


async def test_ctrl_c_leaves_the_figures_so_far(tmp_path: Path):
    async with FakeEngine(Script(token_seconds=0.02)) as engine:
        file = tmp_path / "run.json"
        process = await start("bench", "--url", engine.url, *FEW, "--requests", "4000", "--json", str(file))
        async with asyncio.timeout(60):
            while engine.counters.success < 20:
                await _a_moment()
        process.send_signal(signal.SIGINT)
        ended = await end_of(process)
    assert ended.code == 130
    assert re.search(r"then interrupted with \d in flight, 4 at a time", " ".join(ended.out.split()))
    assert "Traceback" not in ended.err
    report = json.loads(file.read_text())
    assert report["ended"] == "interrupted"
    assert 15 < report["answered"] < 4000


async def test_a_run_is_compared_with_an_earlier_one_and_two_files_with_each_other(tmp_path: Path):
    before, after = str(tmp_path / "before.json"), str(tmp_path / "after.json")
    async with FakeEngine(Script(token_seconds=0.002)) as engine:
        await bench(engine, "--json", before)
        engine.script.token_seconds = 0.02
        ended = await bench(engine, "--json", after, "--compare", before)
        assert ended.code == 0, ended.err
        sent = len(engine.requests)
        two = await sidecar("bench", "--compare", before, after)
        assert len(engine.requests) == sent
    assert two.code == 0, two.err
    for said in (ended.out, two.out):
        assert "slower" in said
        assert "TPOT p50" in said.partition("Slower beyond noise")[2]


async def test_runs_of_different_settings_are_not_compared_unless_asked_and_then_it_is_said(tmp_path: Path):
    first, second = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    async with FakeEngine() as engine:
        await bench(engine, "--json", first)
        await bench(engine, "--json", second, "--concurrency", "2")
        sent = len(engine.requests)
        refused = await bench(engine, "--compare", first, "--concurrency", "2")
        assert len(engine.requests) == sent, "it is refused before anything is sent"
    files = await sidecar("bench", "--compare", first, second)
    for ended in (refused, files):
        assert ended.code == 2
        assert "different things were sent: concurrency 4 and 2" in ended.err
    anyway = await sidecar("bench", "--compare", first, second, "--anyway")
    assert anyway.code == 0
    assert "NOT LIKE FOR LIKE" in anyway.out


async def test_a_file_that_is_no_run_is_refused(tmp_path: Path):
    (tmp_path / "other.json").write_text('{"format": 7}')
    ended = await sidecar("bench", "--compare", str(tmp_path / "other.json"))
    assert ended.code == 2
    assert "is no run of bench" in ended.err


async def test_json_on_standard_output_is_json_alone():
    async with FakeEngine() as engine:
        ended = await bench(engine, "--json", "-")
    assert json.loads(ended.out)["answered"] == 40
    assert "TTFT" in ended.err


async def _a_moment() -> None:
    import asyncio

    await asyncio.sleep(0.01)
