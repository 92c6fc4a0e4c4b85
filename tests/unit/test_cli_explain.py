"""`store explain`: which facts it takes, what it says of a fact that one side lacks, and of keys made by older rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar.caches import left_facts
from sidecar.caches.explain import nearest
from sidecar.caches.fingerprint import SCHEME, Difference, fingerprint, key_of
from sidecar.caches.messages import PublishRequest, RestoreRequest
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import RestoreTools, restore
from sidecar.caches.store import open_store
from sidecar.commands.given_facts import given_facts
from sidecar.commands.store import command
from sidecar.config import Settings
from sidecar.errors import UsageError
from tests.fakes import live_cache as fake

#: Runs until the daemon has written down whose files lie in the live cache.
ENGINE = 'while [ ! -e "$0/.warmup-live.json" ]; do sleep 0.05; done; exit 7'
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return tmp_path / "live"


@pytest.fixture
def store(tmp_path: Path, live: Path) -> Path:
    fake.fill(live)
    (tmp_path / "store").mkdir()
    request = PublishRequest(
        store=str(tmp_path / "store"), live_cache=str(live), facts=fake.facts(), attempt="a", settle_s=0
    )
    tools = PublishTools(clock=time.monotonic, now=lambda: time.time() + 60, sleep=time.sleep)
    assert publish(request, tools).outcome == "published"
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what other runs on this machine have left out of it."""
    for name in [name for name in os.environ if name.startswith("WARMUP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WARMUP_CONTROL_DIR", str(tmp_path / "control"))
    monkeypatch.setenv("WARMUP_LIVE_CACHE", str(tmp_path / "live"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


def explain(store: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["explain", "--store", str(store), *words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout


def of_facts(store: Path, live: Path, facts: dict[str, Any]) -> tuple[dict[str, Any], str]:
    left_facts.leave(live, facts)
    return json.loads(explain(store, "--json")[1]), " ".join(explain(store)[1].split())


def test_a_fact_that_one_side_lacks_is_told_from_one_that_changed(store: Path, live: Path) -> None:
    known = fake.facts()
    toolchain = {**known["toolchain"], "cxx": "g++ 99"}
    found, said = of_facts(store, live, {**known, "toolchain": {**toolchain, "nvcc": None}, "libc": None})
    how = {one["fact"]: one["how"] for one in found["toolchain"]["differs"]}
    assert how == {"cxx": "changed", "nvcc": "missing here", "libc": "missing here"}
    assert next(one["fact"] for one in found["toolchain"]["differs"]) == "cxx"
    assert "nvcc missing here not known" in said
    assert "not in that engine's image (a compiler), or was not learned there: the launcher tells all" in said


def test_an_option_without_a_value_is_told_from_one_that_is_not_given(store: Path, live: Path) -> None:
    known = fake.facts()
    found, said = of_facts(store, live, {**known, "argv": [*known["argv"], "--enforce-eager"]})
    assert found["exact"]["differs"] == [
        {"fact": "argv.--enforce-eager", "how": "missing there", "here": "", "there": None}
    ]
    assert "argv.--enforce-eager missing there given without a value not given" in said
    # Whoever starts the engine chose that; no mode of the sidecar explains it.
    assert "was not learned there" not in said


def test_the_sentence_of_a_restore_says_it_in_the_same_words() -> None:
    assert str(Difference("nvcc", None, "13.0")) == "nvcc is not known here and 13.0 there"
    assert str(Difference("argv.--x", "", None)) == "argv.--x is given without a value here and not given there"


def made_by_the_last_scheme(store: Path) -> None:
    """Give the keys of a store the names that they would have had by the rules before these."""
    for folder in store.glob("v1/*/*"):
        if (folder / "facts.json").exists():
            facts = json.loads((folder / "facts.json").read_text())["facts"]
            folder.rename(folder.with_name(key_of(folder.parent.name, facts, SCHEME - 1)))  # type: ignore[arg-type]


def test_a_store_of_an_older_scheme_is_a_miss_with_a_sentence_and_no_error(store: Path, live: Path) -> None:
    made_by_the_last_scheme(store)
    left_facts.leave(live, fake.facts())
    code, said = explain(store)
    assert code == 3
    assert said.count("1 key was made by an older version of the sidecar") == 2
    assert json.loads(explain(store, "--json")[1])["exact"]["older_keys"] == 1
    request = RestoreRequest(store=str(store), live_cache=str(live), facts=fake.facts(), attempt="1")
    result = restore(request, RestoreTools(clock=time.monotonic, sleep=lambda _s: None))
    assert result.outcome == "miss"
    assert "never used again" in result.sentence
    assert result.rejected == {}


def test_keys_of_an_older_scheme_are_no_news_where_others_can_be_compared(store: Path, live: Path) -> None:
    made_by_the_last_scheme(store)
    other = fake.facts(libc="glibc 9")
    request = PublishRequest(store=str(store), live_cache=str(live), facts=other, attempt="a", settle_s=0)
    publish(request, PublishTools(clock=time.monotonic, now=lambda: time.time() + 60, sleep=time.sleep))
    found = nearest(open_store(str(store), "read-only", time.sleep), fingerprint(fake.facts(), str(live)))
    assert ([one.fact for one in found.differences], found.older) == (["libc"], 0)


def test_what_a_run_with_a_command_left_is_enough_when_its_control_directory_is_gone(
    tmp_path: Path, store: Path
) -> None:
    environment = {
        **os.environ,
        "WARMUP_STORE": str(store),
        "WARMUP_LISTEN": "127.0.0.1:0",
        "WARMUP_ENGINE_URL": "http://127.0.0.1:9",
    }
    run = [sys.executable, "-m", "sidecar.cli", "run", "--", "/bin/sh", "-c", ENGINE, str(tmp_path / "live")]
    ended = subprocess.run(run, env=environment, cwd=REPOSITORY, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 7, ended.stderr
    assert list((tmp_path / "control").glob("attempts/*/facts.json"))
    shutil.rmtree(tmp_path / "control")
    code, said = explain(store)
    assert code == 3
    assert left_facts.NAME in said
    assert "exact: miss, key" in said
    marker = json.loads((tmp_path / "live/.warmup-live.json").read_text())
    assert f"exact: miss, key {marker['exact_key']}" in said
    assert f"toolchain: miss, key {marker['toolchain_key']}" in said


def test_the_newest_of_what_attempts_and_runs_have_left_is_explained(tmp_path: Path) -> None:
    settings = Settings(live_cache=tmp_path / "live", control_dir=tmp_path / "control")
    with pytest.raises(UsageError, match="--facts, or the live cache of the run with WARMUP_LIVE_CACHE"):
        given_facts(None, settings)
    users = tmp_path / "cache/warmup-sidecar/live"
    places = [
        tmp_path / "control/attempts/9-9-a/facts.json",
        tmp_path / "control/attempts/10-1-a/facts.json",
        users / left_facts.NAME,
        tmp_path / "live" / left_facts.NAME,
    ]
    for seconds, place in enumerate(places):
        fake.put(place, json.dumps({"format": 1, "hostname": str(seconds)}), mtime_ns=(1_700_000_000 + seconds) * 10**9)
        found = given_facts(None, settings)
        assert (found.facts["hostname"], found.source) == (str(seconds), place)
    assert given_facts(users / left_facts.NAME, settings).live_cache == users


def test_an_attempts_facts_are_completed_as_the_daemon_does_it(tmp_path: Path) -> None:
    settings = Settings(live_cache=tmp_path / "live", image="x@sha256:" + "ab" * 32)
    place = fake.put(tmp_path / "facts.json", json.dumps({"gpus": [{"name": "NVIDIA H200", "index": 0}]}))
    found = given_facts(place, settings)
    assert found.facts["image"] == {"digest": "sha256:" + "ab" * 32}
    assert found.facts["gpus"][0]["sm"] == "sm90"
    assert found.live_cache == tmp_path / "live"


def test_facts_that_cant_be_left_or_read_cost_an_explanation_and_nothing_else(tmp_path: Path) -> None:
    left_facts.leave(tmp_path / "nowhere", {"a": 1})
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / left_facts.NAME).mkdir()
    left_facts.leave(tmp_path, {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == [left_facts.NAME]
    fake.put(tmp_path / "garbage", b"\xff{")
    with pytest.raises(UsageError, match="garbage can't be read"):
        given_facts(tmp_path / "garbage", Settings())
