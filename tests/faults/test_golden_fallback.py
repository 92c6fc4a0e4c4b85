"""Output that is not what the golden file has: the pod retries cold, falls back, holds or serves, and later pods know it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rig import CHECKOUT, PATIENCE_S, Container, Daemon, Pod, until

GOOD = {"speaks": True}
BAD = {"speaks": True, "fault": "other_weights"}
#: An engine whose output is good with a word in its command, and bad without.
GOOD_WITH = """
case " $* " in
  *" --dies "*) echo "error: unrecognized arguments: --dies" >&2; exit 2 ;;
  *" --kv-cache-dtype auto "*) exec "$@" --script "@$0.good" ;;
  *) exec "$@" --script "@$0.bad" ;;
esac
"""
#: An engine whose output is good on empty caches only, until somebody marks it as mended.
GOOD_COLD = """
if [ -n "$(ls -A "$TRITON_CACHE_DIR" 2>/dev/null)" ]; then exec "$@" --script "@$0.bad"; fi
exec "$@" --script "@$0.good"
"""
FALLBACKS = "--attention-backend OTHER; --kv-cache-dtype auto"
PROMPTS = """
version: 1
prompts:
  - {name: tides, text: "The tide rises twice a day because"}
  - {name: bread, text: "To bake bread one needs"}
  - {name: count, text: "One, two, three,"}
"""


def command(pod: Pod, shell: str, *words: str) -> list[str]:
    """Give the engine's command, the same for every pod of the node; it ends in what a fallback can replace."""
    script = pod.place.script.with_name("golden-engine.sh")
    script.write_text(shell)
    Path(f"{script}.good").write_text(json.dumps(GOOD))
    Path(f"{script}.bad").write_text(json.dumps(BAD))
    return ["/bin/sh", str(script), *pod.engine_command()[:-2], *words]


@pytest.fixture
def golden(pod: Pod) -> Path:
    """Record a golden file from an engine that is good."""
    prompts = pod.root / "prompts.yaml"
    prompts.write_text(PROMPTS)
    engine = pod.start_bare_engine(**GOOD)
    path = pod.root / "golden.yaml"
    words = ["golden", "record", "--url", pod.engine_url, "--out", str(path), "--prompts", str(prompts)]
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", *words], cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr + done.stdout
    engine.kill()
    engine.wait()
    return path


def records(pod: Pod, kind: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in pod.directories.store.glob(f"v1/*/*/{kind}/*.json")]


def metric(daemon: Daemon, series: str) -> float:
    _, page = daemon.get("/metrics")
    found = [line for line in page.splitlines() if line.startswith(f"warmup_sidecar_{series} ")]
    return float(found[0].rsplit(" ", 1)[1]) if found else -1.0


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sidecar", *words], cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S
    )


def engine_words(pod: Pod) -> list[str]:
    return list(json.loads((pod.attempts()[-1] / "started.json").read_text())["engine_argv"])


def ended(daemon: Daemon) -> None:
    daemon.kill(15)
    daemon.process.wait(PATIENCE_S)


def test_a_child_falls_back_until_its_output_is_good_and_the_next_pod_starts_with_that_until_it_is_lifted(
    pod: Pod, golden: Path
) -> None:
    words = command(pod, GOOD_WITH, "--kv-cache-dtype", "fp8")
    settings = {"golden": golden, "fallbacks": FALLBACKS, "on_golden_failed": "retry-cold,fallback,hold"}
    daemon = pod.start_daemon(*words, **settings)
    daemon.wait_until_ready(PATIENCE_S * 2)
    status = daemon.status()
    assert status["flagged"] is True
    assert status["golden"]["golden"]["outcome"] == "passed"
    assert status["engine"]["fallback"] == {"number": 2, "of": 2, "change": "--kv-cache-dtype auto"}
    assert status["reason"].startswith("The engine runs with fallback 2 of 2, `--kv-cache-dtype auto`")
    assert engine_words(pod)[-2:] == ["--kv-cache-dtype", "auto"]
    assert (metric(daemon, "fallback_active"), metric(daemon, "fallback_starts_total")) == (2.0, 2.0)
    until(lambda: records(pod, "fallbacks"), "a remembered fallback")
    assert records(pod, "fallbacks")[0]["change"] == "--kv-cache-dtype auto"
    until(lambda: daemon.status()["publish"]["outcome"] == "published", "a published generation")
    # What is published is published for the command that ran.
    facts = [json.loads(path.read_text())["facts"] for path in pod.directories.store.glob("v1/exact/*/facts.json")]
    assert {fact.get("argv.--kv-cache-dtype") for fact in facts} == {"auto"}
    ended(daemon)

    attempts = len(pod.attempts())
    daemon = pod.start_daemon(*words, **settings)
    daemon.wait_until_ready(PATIENCE_S)
    assert len(pod.attempts()) == attempts + 1
    assert daemon.status()["engine"]["fallback"]["number"] == 2
    # What it restored belongs to the command that really started.
    assert daemon.status()["restore"]["outcome"] == "hit"
    assert "remembered from an earlier pod" in daemon.notices()
    listed = ran("store", "ls", "--store", str(pod.directories.store))
    assert "`--kv-cache-dtype auto`" in listed.stdout, listed.stdout + listed.stderr
    lifted = ran("golden", "lift", "--store", str(pod.directories.store))
    assert lifted.returncode == 0, lifted.stderr
    assert records(pod, "fallbacks") == []
    ended(daemon)

    daemon = pod.start_daemon(*words, **{**settings, "on_golden_failed": "hold"})
    daemon.caught_in("suspended")
    assert "fp8" in engine_words(pod)


def test_a_container_with_wrong_output_on_restored_caches_is_restarted_cold_and_its_generation_quarantined(
    pod: Pod, golden: Path
) -> None:
    words = command(pod, GOOD_COLD)
    settings = {"golden": golden}
    daemon = pod.start_daemon(*words, **settings)
    daemon.wait_until_ready(PATIENCE_S)
    until(lambda: daemon.status()["publish"]["outcome"] == "published", "a published generation")
    ended(daemon)
    daemon = pod.start_daemon(**settings)
    container = Container(pod, words, {}, ())
    try:
        daemon.wait_until_ready(PATIENCE_S)
        status = daemon.status()
        assert (status["restore"]["plan"], status["golden"]["outcome"], status["flagged"]) == ("cold", "passed", False)
        assert "is quarantined: Its output was not what the golden file has" in daemon.notices(), daemon.notices()
        until(lambda: records(pod, "quarantine"), "a quarantine in the store")
        assert "not what the golden file has" in records(pod, "quarantine")[0]["reason"]
        assert metric(daemon, 'verify_total{outcome="wrong"}') == 1.0
    finally:
        container.close()


def test_a_generation_is_used_again_when_the_output_is_as_bad_with_empty_caches(pod: Pod, golden: Path) -> None:
    words = command(pod, GOOD_WITH)
    daemon = pod.start_daemon(*words)
    daemon.wait_until_ready(PATIENCE_S)
    until(lambda: daemon.status()["publish"]["outcome"] == "published", "a published generation")
    ended(daemon)
    daemon = pod.start_daemon(*words, golden=golden)
    daemon.told("is quarantined: Its output was not what the golden file has")
    daemon.told("it was not to blame: with empty caches its output was not what the golden file has too")
    daemon.caught_in("suspended")
    until(lambda: records(pod, "quarantine") == [], "the quarantine to be taken back")
    verified = ran("store", "ls", "--store", str(pod.directories.store))
    assert "quarantined" not in verified.stdout, verified.stdout


def test_a_fallback_that_the_engine_refuses_is_given_up_for_the_next_one(pod: Pod, golden: Path) -> None:
    words = command(pod, GOOD_WITH)
    daemon = pod.start_daemon(
        *words, golden=golden, fallbacks="--dies; --kv-cache-dtype auto", on_golden_failed="fallback,hold"
    )
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["engine"]["fallback"]["number"] == 2
    assert "could not be started with `--dies`" in daemon.notices()


def test_when_no_fallback_is_good_the_pod_is_held_and_says_so(pod: Pod, golden: Path) -> None:
    words = command(pod, GOOD_WITH)
    daemon = pod.start_daemon(
        *words, golden=golden, fallbacks="--attention-backend OTHER", on_golden_failed="fallback,hold"
    )
    daemon.caught_in("suspended")
    assert "None of the 1 fallbacks was good either" in daemon.status()["reason"]
    assert records(pod, "fallbacks") == []
    assert metric(daemon, 'suspensions_total{cause="wrong"}') == 1.0


def test_without_a_launcher_the_pod_is_held_and_says_what_to_do_by_hand(pod: Pod, golden: Path) -> None:
    daemon = pod.start_daemon(
        launcher="false", store=None, golden=golden, fallbacks="--kv-cache-dtype auto", on_golden_failed="fallback,hold"
    )
    pod.start_bare_engine(**BAD)
    daemon.caught_in("suspended")
    assert "change it by hand (next to try: `--kv-cache-dtype auto`)" in daemon.status()["reason"]
    assert daemon.status()["golden"]["outcome"] == "wrong"


def test_a_store_that_is_read_only_remembers_for_the_pods_life_only_and_says_so(pod: Pod, golden: Path) -> None:
    words = command(pod, GOOD_WITH)
    daemon = pod.start_daemon(
        *words,
        golden=golden,
        fallbacks="--kv-cache-dtype auto",
        on_golden_failed="fallback,hold",
        store_mode="read-only",
    )
    daemon.wait_until_ready(PATIENCE_S)
    daemon.told("for this pod's life only, because the store is read-only")
    assert records(pod, "fallbacks") == []


def test_a_golden_file_that_cant_be_used_holds_the_pod_by_policy_until_it_is_mended(pod: Pod, golden: Path) -> None:
    good = golden.read_text()
    golden.write_text("prompts: [")
    daemon = pod.start_daemon(golden=golden)
    pod.start_container(**GOOD)
    daemon.caught_in("suspended")
    told = daemon.told("WARMUP_GOLDEN", "can't be used")
    assert "until the output can be compared" in told
    golden.write_text(good)
    pod.sidecar("golden", "run")
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["degraded"] == []
    assert daemon.status()["flagged"] is False


def test_a_recording_of_another_model_proves_nothing_and_restarts_nothing(pod: Pod, golden: Path) -> None:
    daemon = pod.start_daemon(golden=golden, fallbacks="--a 1", on_golden_failed="retry-cold,fallback,serve")
    pod.start_container(**GOOD, model="another", root="/models/another")
    daemon.wait_until_ready(PATIENCE_S)
    assert (daemon.status()["golden"]["outcome"], daemon.status()["flagged"]) == ("unchecked", True)
    assert len(pod.attempts()) == 1


def test_a_golden_file_that_cant_be_used_leaves_the_pod_flagged_where_policy_serves(pod: Pod) -> None:
    daemon = pod.start(golden=pod.root / "missing.yaml", on_golden_failed="retry-cold,serve")
    status = daemon.status()
    assert (status["golden"]["outcome"], status["flagged"]) == ("unchecked", True)
    assert status["degraded"]


def test_a_restarted_sidecar_adopts_an_engine_that_runs_with_a_fallback(pod: Pod, golden: Path) -> None:
    words = command(pod, GOOD_WITH)
    settings = {"golden": golden, "fallbacks": "--kv-cache-dtype auto", "on_golden_failed": "fallback,hold"}
    daemon = pod.start_daemon(**settings)
    container = Container(pod, words, {}, ())
    try:
        daemon.wait_until_ready(PATIENCE_S)
        until((pod.control / "proven.json").exists, "a proven engine")
        key = daemon.status()["restore"]["exact_key"]
        daemon.kill()
        began = time.monotonic()
        daemon = pod.start_daemon(**settings)
        daemon.wait_until_ready(PATIENCE_S)
        assert time.monotonic() - began < 15
        assert len(pod.attempts()) == 2
        status = daemon.status()
        assert status["engine"]["fallback"]["number"] == 1
        assert status["flagged"] is True
        until(lambda: "fallback 1 of 1" in daemon.status()["reason"], "the fallback in the reason")
        assert key
    finally:
        container.close()


def test_an_engine_that_falls_asleep_during_its_check_is_sent_nothing_more_and_is_ready_once_it_woke(
    pod: Pod, golden: Path
) -> None:
    daemon = pod.start_daemon(golden=golden)
    pod.start_container(**GOOD, token_seconds=0.1)
    until(lambda: daemon.status()["phase"] == "verifying", "the check of the output")
    pod.tell_engine(asleep=True)
    daemon.caught_in("suspended")
    until(lambda: daemon.status()["reason"].startswith("The engine sleeps"), "the watcher's word")
    assert pod.engine()["counters"]["while_asleep"] == 0
    pod.tell_engine(asleep=False, token_seconds=0.001)
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["golden"]["outcome"] == "passed"


def test_a_golden_file_that_is_far_too_big_is_refused_while_probes_are_answered(pod: Pod, golden: Path) -> None:
    more = "".join(f'- {{name: p{at}, text: x, answer: {{text: a, ids: "1 2 3"}}}}\n' for at in range(60_000))
    golden.write_text(golden.read_text() + more)
    daemon = pod.start_daemon(golden=golden)
    pod.start_container(**GOOD)
    slowest = 0.0
    while daemon.status()["phase"] != "suspended":
        began = time.monotonic()
        assert daemon.get("/livez")[0] == 200
        slowest = max(slowest, time.monotonic() - began)
    assert "is too big: it has" in daemon.status()["reason"]
    assert slowest < 1.0
