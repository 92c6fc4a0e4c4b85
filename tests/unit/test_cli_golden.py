"""`golden` as people and pipelines use it: recording, checking, exit codes, and what stands in the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from tests.unit.commands import sidecar
from tests.unit.golden_scene import prompts, scene


def prompt_file(folder: Path) -> Path:
    """Write prompts as a user would."""
    path = folder / "prompts.yaml"
    path.write_text(yaml.safe_dump(prompts(4).model_dump(mode="json", exclude_defaults=True)))
    return path


async def test_an_engine_is_recorded_checked_and_found_to_have_changed(tmp_path: Path):
    golden, report = tmp_path / "golden.yaml", tmp_path / "result.json"
    async with scene() as here:
        url = ("--url", here.fake.url)
        recorded = await sidecar(
            "golden", "record", *url, "--out", str(golden), "--prompts", str(prompt_file(tmp_path)), "--label", "BF16"
        )
        passed = await sidecar("golden", "check", *url, "--golden", str(golden))
        here.fake.script.fault = "prefix"
        failed = await sidecar("golden", "check", *url, "--golden", str(golden), "--json", str(report))
        shown = await sidecar("golden", "show", str(golden))
    assert recorded.code == 0, recorded.err
    assert "8 prompts" in recorded.out
    assert (passed.code, passed.out.startswith("passed The output is what was recorded")) == (0, True), passed.out
    assert failed.code == 3
    assert "[-" in failed.out
    assert "{+" in failed.out
    found = json.loads(report.read_text())
    assert found["outcome"] == "failed"
    assert {each["way"] for each in found["failed"]} == {"concurrent"}
    assert {"name", "reason", "expected", "got", "diff"} <= found["failed"][0].keys()
    assert "BF16" in shown.out
    assert "p0" in shown.out


def shift(golden: Path, by: float) -> None:
    """Make every recorded token more likely by so many nats."""
    content = yaml.safe_load(golden.read_text())
    for each in content["prompts"]:
        for told in ("logprobs", "scored"):
            each["answer"][told] = " ".join(str(float(value) + by) for value in each["answer"][told].split())
    golden.write_text(yaml.safe_dump(content))


async def test_a_closer_limit_for_drift_fails_a_pipeline(tmp_path: Path):
    golden = tmp_path / "golden.yaml"
    async with scene() as here:
        url = ("--url", here.fake.url)
        await sidecar("golden", "record", *url, "--out", str(golden), "--prompts", str(prompt_file(tmp_path)))
        shift(golden, -0.02)
        usual = await sidecar("golden", "check", *url, "--golden", str(golden))
        strict = await sidecar("golden", "check", *url, "--golden", str(golden), "--fail-drift", "1", "--json", "-")
    assert usual.code == 0, usual.out
    assert strict.code == 3
    found = json.loads(strict.out)
    assert (found["allowed_percent"], round(found["drift_percent"])) == (1.0, 2)


async def test_what_can_not_be_used_is_wrong_use_and_a_sleeping_engine_is_not_asked(tmp_path: Path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("recorded: {}\n")
    async with scene() as here:
        unnamed = await sidecar("golden", "check", "--url", here.fake.url)
        broken = await sidecar("golden", "check", "--url", here.fake.url, "--golden", str(bad))
        nowhere = await sidecar("golden", "record", "--url", here.fake.url, "--out", str(tmp_path / "none" / "g.yaml"))
        here.fake.script.asleep = True
        asleep = await sidecar("golden", "record", "--url", here.fake.url, "--out", str(tmp_path / "g.yaml"))
    assert (unnamed.code, broken.code, nowhere.code, asleep.code) == (2, 2, 2, 3)
    assert "--golden FILE" in unnamed.err
    assert "bad.yaml:1:" in broken.err
    assert "asleep" in asleep.err
    assert here.fake.counters.texts == 0


async def test_nothing_is_written_when_the_engine_differs_from_itself(tmp_path: Path):
    golden = tmp_path / "golden.yaml"
    async with scene(fault="batch") as here:
        words = ("--out", str(golden), "--prompts", str(prompt_file(tmp_path)))
        ended = await sidecar("golden", "record", "--url", here.fake.url, *words)
    assert ended.code == 2
    assert "can't be trusted" in ended.err
    assert not golden.exists()


async def test_the_starter_set_is_printed_as_a_file_that_can_be_recorded(tmp_path: Path):
    ended = await sidecar("golden", "prompts")
    schema = await sidecar("golden", "prompts", "--schema")
    assert ended.code == schema.code == 0
    assert len(yaml.safe_load(ended.out)["prompts"]) > 64
    assert json.loads(schema.out)["title"] == "Golden file"


async def test_two_recordings_of_one_engine_are_the_same_but_for_their_time(tmp_path: Path):
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    async with scene() as here:
        for file in files:
            words = ("--out", str(file), "--prompts", str(prompt_file(tmp_path)))
            assert (await sidecar("golden", "record", "--url", here.fake.url, *words)).code == 0
    one, other = (re.sub(r"(?m)^  at: .*$", "", file.read_text()) for file in files)
    assert one == other
    assert len(one) > 1000


async def test_yes_or_no_can_be_recorded_where_the_engine_gives_no_log_probabilities(tmp_path: Path):
    asked, golden = tmp_path / "prompts.yaml", tmp_path / "golden.yaml"
    asked.write_text("prompts:\n- {name: so, text: 'Is it so?', max_tokens: 1, expect: w}\n")
    async with scene(fault="no_details") as here:
        url = ("--url", here.fake.url)
        recorded = await sidecar("golden", "record", *url, "--out", str(golden), "--prompts", str(asked))
        passed = await sidecar("golden", "check", *url, "--golden", str(golden))
        here.fake.script.fault = "other_weights"
        failed = await sidecar("golden", "check", *url, "--golden", str(golden))
    assert (recorded.code, passed.code, failed.code) == (0, 0, 3), recorded.err + passed.out
    assert "varies by itself" in recorded.out


async def test_allowed_drift_of_a_pipeline_covers_text_that_became_less_likely_by_as_much(tmp_path: Path):
    golden = tmp_path / "golden.yaml"
    async with scene() as here:
        url = ("--url", here.fake.url)
        await sidecar("golden", "record", *url, "--out", str(golden), "--prompts", str(prompt_file(tmp_path)))
        shift(golden, 0.1)
        usual = await sidecar("golden", "check", *url, "--golden", str(golden))
        close = await sidecar("golden", "check", *url, "--golden", str(golden), "--fail-drift", "9")
        allowed = await sidecar("golden", "check", *url, "--golden", str(golden), "--fail-drift", "11")
    assert (usual.code, close.code, allowed.code) == (3, 3, 0), allowed.out
