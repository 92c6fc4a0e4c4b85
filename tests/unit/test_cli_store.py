"""`store`: what it lists, finds damaged, explains and keeps from being used, on a store that a real publish made."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.caches.claims import Claims
from sidecar.caches.messages import PublishRequest
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.store import open_store
from sidecar.commands.store import command

FACTS: dict[str, Any] = {
    "format": 1,
    "argv": ["vllm", "serve", "/models/a", "--max-num-seqs", "8"],
    "environment": {},
    "packages": {"vllm": {"version": "0.32.0", "record": "abc"}},
}


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return tmp_path / "live"


@pytest.fixture
def store(tmp_path: Path, live: Path) -> Path:
    (tmp_path / "store").mkdir()
    publish_to(str(tmp_path / "store"), live)
    return tmp_path / "store"


def publish_to(store: str, live: Path) -> None:
    """Publish three kernels."""
    for number in range(3):
        folder = live / "deep_gemm" / "cache" / f"kernel.gemm.{number:08x}"
        folder.mkdir(parents=True)
        (folder / "kernel.cu").write_text("// source")
        (folder / "kernel.cubin").write_bytes(bytes([number]) * 5000)
    request = PublishRequest(store=store, live_cache=str(live), facts=FACTS, attempt="a", settle_s=0)
    tools = PublishTools(clock=time.monotonic, now=lambda: time.time() + 60, sleep=time.sleep)
    assert publish(request, tools).outcome == "published"


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout


def listed(store: Path) -> dict[str, Any]:
    [only] = json.loads(run("ls", "--json", "--store", str(store))[1])
    assert isinstance(only, dict)
    return only


def test_ls_shows_a_generation_that_nobody_booted_yet_as_a_candidate(store: Path) -> None:
    found = listed(store)
    assert (found["scope"], found["state"], found["files"], found["bytes"]) == ("toolchain", "candidate", 6, 15027)


def test_show_finds_a_generation_by_the_beginning_of_its_key(store: Path) -> None:
    code, said = run("show", listed(store)["key"][:6], "--store", str(store))
    assert code == 0
    assert "deep_gemm" in said


def test_a_generation_that_is_not_there_is_told_with_what_to_do(store: Path) -> None:
    with pytest.raises(Exception, match="store ls"):
        run("show", "ffff", "--store", str(store))


@pytest.mark.parametrize("deep", [True, False])
def test_verify_passes_on_a_whole_store(store: Path, deep: bool) -> None:
    words = ["verify", "--json", "--store", str(store), *(["--deep"] if deep else [])]
    assert run(*words) == (0, "[]\n")


def test_verify_finds_an_archive_that_was_cut(store: Path) -> None:
    [pack] = (store / "v1" / "packs").iterdir()
    pack.write_bytes(pack.read_bytes()[:-10])
    code, said = run("verify", "--json", "--store", str(store))
    assert code == 3
    assert "bytes instead of" in json.loads(said)[0]["sentence"]


def test_only_a_deep_verify_finds_a_flipped_bit(store: Path) -> None:
    [pack] = (store / "v1" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(bytes(data))
    assert run("verify", "--json", "--store", str(store))[0] == 0
    assert run("verify", "--deep", "--json", "--store", str(store))[0] == 3


def test_verify_finds_a_missing_archive_and_a_manifest_of_garbage(store: Path) -> None:
    [pack] = (store / "v1" / "packs").iterdir()
    pack.unlink()
    assert "is missing" in json.loads(run("verify", "--json", "--store", str(store))[1])[0]["sentence"]
    [manifest] = store.glob("v1/toolchain/*/generations/*/manifest.json")
    manifest.write_text("{")
    assert listed(store)["state"] == "damaged"


def test_a_quarantine_is_shown_and_can_be_taken_back(store: Path) -> None:
    name = listed(store)["name"]
    assert run("quarantine", name, "--reason", "wrong output", "--store", str(store))[0] == 0
    assert listed(store)["state"] == "quarantined"
    assert run("unquarantine", name, "--store", str(store))[0] == 0
    assert listed(store)["state"] == "candidate"
    assert run("unquarantine", name, "--store", str(store))[0] == 3


def explain(tmp_path: Path, live: Path, store: Path, facts: dict[str, Any], monkeypatch: Any) -> tuple[int, Any]:
    file = tmp_path / "facts.json"
    file.write_text(json.dumps(facts))
    monkeypatch.setenv("WARMUP_LIVE_CACHE", str(live))
    code, said = run("explain", "--json", "--facts", str(file), "--store", str(store))
    return code, json.loads(said)


def test_explain_names_the_fact_that_made_it_a_miss(
    tmp_path: Path, live: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**FACTS, "packages": {"vllm": {"version": "0.33.0", "record": "def"}}}
    code, found = explain(tmp_path, live, store, other, monkeypatch)
    assert code == 3
    [difference] = found["toolchain"]["differs"]
    assert (difference["fact"], found["toolchain"]["hit"]) == ("packages.vllm", False)


def test_another_model_on_the_same_image_hits_the_toolchain_scope(
    tmp_path: Path, live: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**FACTS, "argv": ["vllm", "serve", "/models/b"]}
    _, found = explain(tmp_path, live, store, other, monkeypatch)
    assert found["toolchain"]["hit"] is True


def test_no_store_at_all_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMUP_STORE", raising=False)
    with pytest.raises(Exception, match="give --store"):
        run("ls")


def test_ls_says_who_tries_a_candidate_and_who_makes_the_first_generation_of_a_key(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    opened = open_store(str(store), "read-write", time.sleep)
    found = listed(store)
    tried = Claims(opened, "toolchain", found["key"], "pod-a")
    assert tried.try_to_take(found["name"])
    assert Claims(opened, "exact", "e" * 32, "pod-b").try_to_take("first")
    text = " ".join(run("ls", "--store", str(store))[1].split())
    assert "tried by pod-a" in text
    assert "pod-b" in text
    state = {each["scope"]: each["state"] for each in json.loads(run("ls", "--json", "--store", str(store))[1])}
    assert state == {"exact": "awaited", "toolchain": "candidate"}


@pytest.mark.parametrize(
    ("age_s", "judged", "candidate", "first"),
    [
        (5.0, "held", "candidate, tried by pod-a", "being made by pod-b"),
        (90.0, "unsure", "candidate, perhaps tried by pod-a", "perhaps being made by pod-b"),
        (840.0, "lapsed", "candidate, no longer tried by pod-a", "abandoned by pod-b"),
    ],
)
def test_ls_and_show_tell_a_claim_that_lapsed_from_one_that_is_held(
    store: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, judged: str, candidate: str, first: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    opened = open_store(str(store), "read-write", time.sleep)
    name = listed(store)["name"]
    assert Claims(opened, "toolchain", listed(store)["key"], "pod-a").try_to_take(name)
    assert Claims(opened, "exact", "e" * 32, "pod-b").try_to_take("first")
    for beat in store.glob("v1/*/*/claims/*/*/beat.json"):
        os.utime(beat, (time.time() - age_s, time.time() - age_s))
    told = {each["scope"]: each for each in json.loads(run("ls", "--json", "--store", str(store))[1])}
    assert {each["claim"]["state"] for each in told.values()} == {judged}
    assert told["toolchain"]["claim"]["beat_age_s"] == pytest.approx(age_s, abs=25)
    assert told["exact"]["state"] == ("abandoned" if judged == "lapsed" else "awaited")
    text = " ".join(run("ls", "--store", str(store))[1].split())
    assert (candidate in text, first in text, f"pod-a: {judged}, last beat" in text) == (True, True, True)
    code, said = run("show", name, "--store", str(store))
    assert (code, candidate in said, f"pod-a: {judged}, last beat" in said) == (0, True, True)
    shown = json.loads(run("show", name, "--json", "--store", str(store))[1])
    assert (shown["state"], shown["claim"]["state"], shown["name"]) == ("candidate", judged, name)


def test_ls_leaves_nothing_behind_where_it_asked_for_the_stores_clock(store: Path) -> None:
    opened = open_store(str(store), "read-write", time.sleep)
    found = listed(store)
    Claims(opened, "toolchain", found["key"], "pod-a").try_to_take(found["name"])
    before = sorted(store.rglob("*"))
    assert listed(store)["claim"]["state"] == "held"
    assert sorted(store.rglob("*")) == before


def test_ls_shows_a_generation_on_which_two_engines_died_as_condemned(store: Path) -> None:
    found = listed(store)
    opened = open_store(str(store), "read-write", time.sleep)
    for pod in "ab":
        opened.record_boot("toolchain", found["key"], f"{found['name']}.died.{pod}", {})
    assert (listed(store)["state"], listed(store)["died"]) == ("condemned", 2)


def test_the_reason_of_a_quarantine_is_shown_and_a_second_one_says_that_there_is_one(store: Path) -> None:
    name = listed(store)["name"]
    run("quarantine", name, "--reason", "wrong output on node 7", "--store", str(store))
    assert listed(store)["detail"] == "wrong output on node 7"
    assert "wrong output on node 7" in run("ls", "--store", str(store))[1]
    assert "quarantined already: wrong output" in run("quarantine", name, "--reason", "other", "--store", str(store))[1]


def test_unquarantine_clears_a_condemnation_as_well(store: Path) -> None:
    found = listed(store)
    opened = open_store(str(store), "read-write", time.sleep)
    for pod in "ab":
        opened.record_boot("toolchain", found["key"], f"{found['name']}.died.{pod}", {})
    assert run("unquarantine", found["name"], "--store", str(store))[0] == 0
    assert listed(store)["state"] == "candidate"
    assert run("unquarantine", found["name"], "--store", str(store))[0] == 3


def test_the_beginnings_of_key_and_name_find_a_generation(store: Path) -> None:
    found = listed(store)
    assert run("show", f"{found['key'][:6]}/{found['name'][:8]}", "--store", str(store))[0] == 0


def test_explain_calls_a_key_whose_generations_may_not_be_used_a_miss(store: Path, live: Path, tmp_path: Path) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(FACTS))
    (tmp_path / "sidecar.json").write_text(json.dumps({"live_cache": str(live)}))
    words = ("explain", "--json", "--facts", str(facts), "--store", str(store))
    assert json.loads(run(*words)[1])["toolchain"]["hit"] is True
    run("quarantine", listed(store)["name"], "--reason", "bad", "--store", str(store))
    assert json.loads(run(*words)[1])["toolchain"]["hit"] is False
