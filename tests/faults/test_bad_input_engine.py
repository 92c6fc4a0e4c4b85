"""Engines that answer wrongly, refuse, freeze or degenerate: never a false ready, never a false alarm, always a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.rig import PATIENCE_S, Daemon, Pod, throughout, until


def never_ready(pod: Pod, *words: str, script: dict[str, Any], **changes: Any) -> Daemon:
    """Start a pod whose engine answers like this: it is not ready, and the probe's body says so in these words."""
    daemon = pod.start_daemon(**changes)
    pod.start_container(**script)
    until(lambda: all(word in daemon.readyz()[1] for word in words), f"{words} in the probe's body")
    throughout(0.5, lambda: not daemon.is_ready, "unready")
    assert daemon.status()["reason"] in daemon.readyz()[1]
    return daemon


# --- who asks, and for what -----------------------------------------------------------------------------------------


@pytest.mark.side_by_side
def test_an_engine_without_metrics_is_warmed_and_served(pod: Pod):
    daemon = pod.start(script={"no_metrics": True})
    assert daemon.status()["warmup"]["outcome"] == "converged"
    assert daemon.status()["engine"]["running"] is None
    assert "/metrics" in daemon.status()["engine"]["detail"]


@pytest.mark.side_by_side
def test_a_model_that_is_not_served_is_told_with_those_that_are(pod: Pod):
    never_ready(pod, "other-model", "fake-model", "WARMUP_MODEL", script={}, model="other-model")


@pytest.mark.side_by_side
def test_an_engine_that_wants_a_key_is_told_where_none_is_set(pod: Pod):
    never_ready(pod, "401", "WARMUP_API_KEY_FILE", script={"api_key": "right"})


@pytest.mark.side_by_side
def test_a_wrong_key_is_told_and_a_rewarm_after_its_rotation_makes_ready(pod: Pod):
    key = pod.root / "key"
    key.write_text("wrong\n")
    daemon = never_ready(pod, "401", "WARMUP_API_KEY_FILE", script={"api_key": "right"}, api_key_file=key)
    key.write_text("right\n")
    pod.sidecar("rewarm")
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["flagged"] is False
    assert "right" not in pod.log.read_text()


@pytest.mark.side_by_side
def test_a_missing_key_file_is_told(pod: Pod):
    daemon = never_ready(pod, "WARMUP_API_KEY_FILE", script={"api_key": "right"}, api_key_file="/nowhere/key")
    assert "/nowhere/key" in pod.log.read_text()
    daemon.told("401")


@pytest.mark.side_by_side
def test_a_key_rotated_with_the_engine_is_read_anew(pod: Pod):
    key = pod.root / "key"
    key.write_text("first")
    daemon = pod.start(script={"api_key": "first"}, api_key_file=key)
    pod.container.close()
    key.write_text("second")
    pod.start_container(api_key="second")
    daemon.caught_in("warming")
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["flagged"] is False


# --- broken answers -------------------------------------------------------------------------------------------------


@pytest.mark.side_by_side
@pytest.mark.parametrize(
    ("generation", "words"),
    [
        ("500", ("500",)),
        ("error_in_stream", ("EngineCore encountered an issue",)),
        ("truncated", ("end",)),
        ("cut", ("clos",)),
        ("non_utf8", ("UTF-8",)),
        ("not_json", ("JSON",)),
    ],
)
def test_an_engine_that_can_t_generate_is_not_ready_though_healthy(pod: Pod, generation: str, words: tuple[str, ...]):
    never_ready(pod, "can't generate", *words, script={"generation": generation})
    assert pod.engine_answers()


@pytest.mark.side_by_side
def test_an_engine_that_can_t_generate_is_ready_after_it_was_mended(pod: Pod):
    daemon = never_ready(pod, "can't generate", "500", script={"generation": "500"})
    pod.tell_engine(generation="ok")
    pod.sidecar("rewarm")
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["flagged"] is False


# --- degenerate output ----------------------------------------------------------------------------------------------


def test_degenerate_output_on_a_restored_cache_is_tried_again_cold_and_served_when_that_helps(pod: Pod, planted):
    daemon = pod.start_daemon()
    pod.start_container(generation="repeat")
    until(pod.engine_answers, "an engine")
    # The next process reads it, so the restart is what helps.
    pod.engine_command(generation="ok")
    status = daemon.wait_until_ready(PATIENCE_S)
    assert len(pod.attempts()) == 2
    assert (status["flagged"], status["restore"]["plan"]) == (False, "cold")
    assert "quarantined" in daemon.notices()
    assert set(planted.states(pod.place.live_cache).values()) == {"empty"}
    assert list(pod.directories.store.glob("v1/*/*/quarantine/*"))


def test_output_that_stays_degenerate_after_the_cold_retry_is_held(pod: Pod, planted):
    daemon = pod.start_daemon()
    pod.start_container(generation="repeat")
    until(lambda: daemon.status()["phase"] == "suspended", "a pod that is held")
    assert len(pod.attempts()) == 2
    assert "degenerate" in daemon.readyz()[1]
    assert "rewarm" in daemon.readyz()[1]
    throughout(0.5, lambda: not daemon.is_ready, "held")
    assert pod.engine_answers()


@pytest.mark.side_by_side
def test_degenerate_output_is_served_and_flagged_where_the_policy_says_so(pod: Pod):
    daemon = pod.start(script={"generation": "repeat"}, on_golden_failed="serve")
    assert daemon.status()["flagged"] is True
    assert "degenerate" in daemon.status()["reason"]
    assert not (pod.control / "proven.json").exists()


# --- asleep, frozen, busy -------------------------------------------------------------------------------------------


@pytest.mark.side_by_side
def test_an_engine_that_sleeps_from_the_start_gets_no_traffic_until_it_wakes(pod: Pod):
    daemon = never_ready(pod, "sleeps", script={"asleep": True})
    throughout(2, lambda: not pod.engine()["counters"]["texts"], "no traffic")
    pod.tell_engine(asleep=False)
    daemon.wait_until_ready(PATIENCE_S)
    assert pod.engine()["counters"]["while_asleep"] == 0


@pytest.mark.side_by_side
def test_an_engine_that_falls_asleep_is_suspended_and_checked_again_when_it_wakes(pod: Pod):
    daemon = pod.start()
    before = pod.engine()["counters"]["texts"]
    pod.tell_engine(asleep=True)
    until(lambda: "sleeps" in daemon.readyz()[1], "a sentence in the probe's body")
    assert pod.engine()["counters"]["texts"] == before
    pod.tell_engine(asleep=False)
    daemon.wait_until_ready(PATIENCE_S)
    assert pod.engine()["counters"]["texts"] > before
    assert pod.engine()["counters"]["while_asleep"] == 0


@pytest.mark.side_by_side
def test_an_engine_that_freezes_though_healthy_is_withdrawn_after_stall_s(pod: Pod):
    daemon = pod.start(stall_s=1)
    pod.tell_engine(freeze=True)
    until(lambda: "no progress" in daemon.readyz()[1], "a sentence in the probe's body")
    assert pod.engine_answers()
    pod.tell_engine(freeze=False)
    daemon.wait_until_ready(PATIENCE_S)


@pytest.mark.side_by_side
def test_an_idle_engine_is_never_stalled(pod: Pod):
    daemon = pod.start(stall_s=0.5)
    # Long enough for three readings of the metrics, which are 5 s apart.
    throughout(11, lambda: daemon.is_ready, "ready")


@pytest.mark.side_by_side
def test_a_busy_engine_that_answers_health_slowly_is_not_withdrawn(pod: Pod):
    daemon = pod.start()
    pod.tell_engine(health="slow", slow_seconds=4)
    until(lambda: daemon.status()["engine"]["state"] == "busy", "an engine that looks busy")
    throughout(5, lambda: daemon.is_ready, "ready")
