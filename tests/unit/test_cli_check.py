"""`check` and `profiles`: what they find wrong, and that it is said in sentences without secrets."""

from __future__ import annotations

import json
import os
import socket

import pytest

from tests.fakes.engine import FakeEngine
from tests.unit.commands import sidecar


async def check(tmp_path, *words, **variables):
    """Run `check --json` with directories that exist; give the exit code and the findings by what was tried."""
    given = {
        "WARMUP_LIVE_CACHE": str(tmp_path / "live"),
        "WARMUP_CONTROL_DIR": str(tmp_path / "run"),
        "WARMUP_LISTEN": "127.0.0.1:0",
        "WARMUP_ENGINE_URL": "http://127.0.0.1:9",
        **variables,
    }
    ended = await sidecar("check", "--json", *words, variables=given)
    found = json.loads(ended.out)
    assert found["ok"] == (ended.code == 0)
    return ended, {each["what"]: each for each in found["findings"]}


async def test_a_sound_installation_has_no_problems(tmp_path):
    (tmp_path / "store").mkdir()
    ended, found = await check(tmp_path, WARMUP_STORE=str(tmp_path / "store"))
    assert ended.code == 0
    assert found["store"]["level"] == "good"
    assert found["live cache"]["level"] == "good"
    assert found["engine"]["level"] == "note"


async def test_check_leaves_nothing_behind(tmp_path):
    (tmp_path / "store").mkdir()
    await check(tmp_path, WARMUP_STORE=str(tmp_path / "store"))
    assert [path.name for path in tmp_path.rglob("*")] == ["store"]


async def test_an_unknown_setting_is_a_problem_with_a_suggestion(tmp_path):
    ended, found = await check(tmp_path, WARMUP_STOER="/x")
    assert ended.code == 2
    assert "Did you mean WARMUP_STORE?" in found["environment"]["sentence"]


async def test_a_missing_store_says_what_to_do(tmp_path):
    ended, found = await check(tmp_path, "--store", str(tmp_path / "nowhere"))
    assert ended.code == 2
    assert "does not exist. Mount the shared volume there" in found["store"]["sentence"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_store_that_can_not_be_written_is_a_problem_unless_it_is_meant_to_be_read_only(tmp_path):
    store = tmp_path / "store"
    store.mkdir(mode=0o555)
    ended, found = await check(tmp_path, "--store", str(store))
    assert ended.code == 2
    assert "WARMUP_STORE_MODE=read-only" in found["store"]["sentence"]
    ended, found = await check(tmp_path, "--store", str(store), "--store-mode", "read-only")
    assert ended.code == 0


async def test_a_store_inside_the_live_cache_is_a_problem(tmp_path):
    (tmp_path / "live" / "store").mkdir(parents=True)
    ended, found = await check(tmp_path, "--store", str(tmp_path / "live" / "store"))
    assert ended.code == 2
    assert "keep them apart" in found["live cache"]["sentence"]


async def test_a_family_to_exclude_that_does_not_exist_is_a_problem_with_those_that_do(tmp_path):
    ended, found = await check(tmp_path, WARMUP_EXCLUDE_FAMILIES="triton,autotune")
    assert ended.code == 2
    assert "autotune is no cache family; those that are: inductor, " in found["families"]["sentence"]
    ended, _ = await check(tmp_path, WARMUP_EXCLUDE_FAMILIES="triton,flashinfer_autotune")
    assert ended.code == 0


async def test_a_profile_with_a_wrong_field_is_told_with_its_place(tmp_path):
    profile = tmp_path / "mine.yaml"
    profile.write_text("description: mine\nsteps:\n  - kind: prefill\n    tokenz: [16]\n")
    ended, found = await check(tmp_path, "--profile", str(profile))
    assert ended.code == 2
    assert "mine.yaml" in found["profile"]["sentence"]
    assert "tokenz" in found["profile"]["sentence"]


async def test_a_key_file_that_is_missing_or_empty_is_a_problem_and_its_content_is_never_printed(tmp_path):
    key = tmp_path / "key"
    ended, found = await check(tmp_path, "--api-key-file", str(key))
    assert ended.code == 2
    key.write_text("\n")
    ended, found = await check(tmp_path, "--api-key-file", str(key))
    assert "is empty" in found["API key"]["sentence"]
    key.write_text("sk-very-secret\n")
    ended, found = await check(tmp_path, "--api-key-file", str(key))
    assert ended.code == 0
    assert "sk-very-secret" not in ended.out + ended.err


async def test_a_password_in_an_address_is_not_printed(tmp_path):
    ended, _ = await check(tmp_path, "--engine-url", "http://me:pa55@127.0.0.1:9")
    assert "pa55" not in ended.out + ended.err


async def test_a_port_that_another_program_holds_is_a_problem(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended, found = await check(tmp_path, "--listen", f"127.0.0.1:{port}")
    assert ended.code == 2
    assert "taken by another program" in found["probes"]["sentence"]


async def test_an_engine_that_answers_is_named(tmp_path):
    async with FakeEngine() as engine:
        _, found = await check(tmp_path, "--engine-url", engine.url)
    assert found["engine"]["level"] == "good", found
    assert "vllm" in found["engine"]["sentence"]


async def test_something_that_is_no_engine_is_a_problem(tmp_path):
    from tests.unit.test_cli_daemon import something_else

    async with something_else() as url:
        ended, found = await check(tmp_path, "--engine-url", url)
    assert ended.code == 2
    assert found["engine"]["level"] == "problem"


async def test_a_settings_file_that_is_no_mapping_is_a_problem(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("- store\n")
    ended, found = await check(tmp_path, "--config", str(file))
    assert ended.code == 2
    assert "must be a mapping" in found[str(file)]["sentence"]


async def test_check_as_a_table_shows_values_sources_and_a_verdict(tmp_path):
    ended = await sidecar("check", "--offline", "--model", "m", variables={"WARMUP_STOER": "x"})
    assert ended.code == 2
    assert "--model" in ended.out
    assert "1 problem." in ended.out


async def test_the_list_of_settings_tries_nothing():
    ended = await sidecar("check", "--list", "--json", variables={"WARMUP_STOER": "x"})
    assert ended.code == 0
    assert {"WARMUP_STORE", "WARMUP_STALL_S"} <= {each["variable"] for each in json.loads(ended.out)}


async def test_the_shipped_profiles_are_listed_and_shown():
    listed = json.loads((await sidecar("profiles", "list", "--json")).out)
    assert {"cpu", "sm90"} <= {each["name"] for each in listed}
    ended = await sidecar("profiles", "show", "cpu")
    assert ended.code == 0
    assert "prefill" in ended.out


async def test_a_misspelt_profile_is_2_with_a_suggestion():
    ended = await sidecar("profiles", "show", "sm9")
    assert ended.code == 2
    assert "sm90" in ended.err
