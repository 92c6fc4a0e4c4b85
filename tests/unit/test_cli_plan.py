"""`plan`, `profiles explain`, `profiles check` and `profiles schema`, as people run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script
from tests.unit.commands import sidecar

MINE = "description: x\nextends: sm90\nsteps:\n  - name: prefill sweep\n    token: [1]\n"


async def test_a_plan_shows_every_request_its_sizes_and_an_estimate():
    ended = await sidecar("plan", "--sm", "sm90", "--max-num-seqs", "8", "--max-model-len", "4096")
    assert ended.code == 0, ended.err
    assert "Profile sm90, made for sm90" in ended.out
    assert "8 x 512" in ended.out
    assert "clipped to 8, the engine's max_num_seqs" in ended.out
    assert "while those run" in ended.out
    assert "measured; yours is faster or slower" in ended.out


async def test_a_plan_as_json_adds_up():
    ended = await sidecar("plan", "--profile", "cpu", "--dp-ranks", "2", "--json")
    plan = json.loads(ended.out)
    bursts = [burst for step in plan["steps"] for burst in step["bursts"]]
    assert plan["requests"] == sum(burst["requests"] for burst in bursts)
    assert plan["tokens"] == sum(burst["tokens"] for burst in bursts)
    for burst in bursts:
        assert burst["requests"] == sum(ask["count"] for phase in burst["phases"] for ask in phase)
    ranks = [ask["rank"] for burst in bursts for phase in burst["phases"] for ask in phase if "rank" in ask]
    assert set(ranks) == {0, 1}
    assert plan["engine"]["sources"]["dp_ranks"] == "flag --dp-ranks"
    assert plan["estimate"]["round_s"] > 0


async def test_a_plan_for_a_running_engine_takes_its_limits_and_sends_it_nothing():
    async with FakeEngine(Script(max_model_len=777, log_jit=False, dev_mode=True)) as engine:
        ended = await sidecar("plan", "--url", engine.url, "--sm", "sm90", "--json")
        sent = engine.counters.texts
    plan = json.loads(ended.out)
    assert plan["limits"]["max_model_len"] == 777
    assert plan["engine"]["sources"]["max_model_len"] == "/v1/models"
    assert sent == 0


async def test_a_plan_without_an_engine_at_its_address_is_an_error_and_no_guess():
    ended = await sidecar("plan", "--url", "http://127.0.0.1:9")
    assert ended.code == 3
    assert "Nothing listens" in ended.err
    assert ended.out == ""


async def test_a_role_without_a_safe_payload_is_not_so():
    ended = await sidecar("plan", "--sm", "sm90", "--role", "prefill")
    assert ended.code == 3
    assert "unwarmed: no safe local payload for this role" in ended.out


async def test_facts_of_an_attempt_tell_limits_and_the_gpu(tmp_path: Path):
    facts = {
        "argv": ["vllm", "serve", "m", "--max-num-seqs", "5", "--kv-cache-dtype", "fp8"],
        "environment": {"VLLM_DEEP_GEMM_WARMUP": "skip"},
        "gpus": [{"name": "NVIDIA H200"}],
    }
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    ended = await sidecar("profiles", "explain", "--facts", str(tmp_path / "facts.json"), "--json")
    shown = json.loads(ended.out)
    assert (shown["sm"], shown["profile"], shown["limits"]["max_num_seqs"]) == ("sm90", "sm90-fp8-kv", 5)
    assert any("VLLM_DEEP_GEMM_WARMUP=skip" in note for note in shown["notes"])
    chosen = [each["name"] for each in shown["considered"] if each["chosen"]]
    assert chosen == ["sm90-fp8-kv"]


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"argv": 3, "environment": {}}'])
async def test_a_file_that_holds_no_facts_is_wrong_use(tmp_path: Path, text):
    (tmp_path / "facts.json").write_text(text)
    ended = await sidecar("plan", "--facts", str(tmp_path / "facts.json"))
    assert ended.code == 2
    assert "facts.json" in ended.err


async def test_a_device_is_not_read_as_facts():
    ended = await sidecar("plan", "--facts", "/dev/zero")
    assert ended.code == 2
    assert "not a plain file" in ended.err


async def test_explain_says_for_every_profile_why_it_was_taken_or_not():
    ended = await sidecar("profiles", "explain", "--sm", "sm103", "--quantization", "nvfp4")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert any(line.startswith("→") and "sm100-nvfp4" in line for line in lines)
    assert any("sm100-fp8-kv" in line and "kv_cache_dtype must be fp8*, and the engine doesn't tell it" in line
               for line in lines)  # fmt: skip
    assert "flag --quantization" in ended.out


async def test_check_names_the_place_and_the_fault_and_ends_with_wrong_use(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    bad = await sidecar("profiles", "check", str(path))
    assert bad.code == 2
    assert f"{path}:5:5:" in bad.out
    assert "did you mean `tokens`?" in bad.out
    path.write_text(MINE.replace("token:", "tokens:"))
    good = await sidecar("profiles", "check", str(path), "--json")
    assert good.code == 0
    assert json.loads(good.out)[0]["level"] in ("ok", "warning")


async def test_check_without_a_name_checks_all_that_are_shipped():
    ended = await sidecar("profiles", "check", "--json")
    assert ended.code == 0
    assert {"cpu", "gpu", "sm90", "sm121"} <= {each["name"] for each in json.loads(ended.out)}


async def test_the_schema_is_printed_as_it_is_shipped():
    ended = await sidecar("profiles", "schema")
    assert json.loads(ended.out)["title"] == "Warm-up profile"
    assert ended.out == (Path(__file__).parents[2] / "sidecar/warmup/profile.schema.json").read_text()


async def test_a_wrong_sm_version_is_wrong_use():
    ended = await sidecar("plan", "--sm", "hopper")
    assert ended.code == 2
    assert "no SM version" in ended.err


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:8000", "http://127.0.0.1:8000/x?y"])
async def test_an_address_that_is_none_is_wrong_use(url: str):
    ended = await sidecar("plan", "--url", url)
    assert ended.code == 2
    assert "--url is not usable" in ended.err


@pytest.mark.parametrize("words", [("plan", "--tokens-per-s"), ("bench", "--duration"), ("store", "ls", "--watch")])
async def test_a_number_that_compares_with_nothing_is_wrong_use(words: tuple[str, ...]):
    ended = await sidecar(*words, "nan")
    assert ended.code == 2
    assert "nan is not a number to count with" in ended.err
