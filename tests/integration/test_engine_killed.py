"""The engine's container dies without a word: after the pod was ready, and while it was being warmed."""

from __future__ import annotations

from tests.integration.stories import KilledReady, KilledWarming

#: Readiness is withdrawn within this time when the engine refuses connections.
UNREADY_S = 2.0


def test_readiness_is_withdrawn_within_two_seconds(killed_ready: KilledReady):
    withdrawn = killed_ready.watch.times_of(503, since=killed_ready.killed_at)
    assert withdrawn, f"the probe never answered 503: {killed_ready.watch.changes}"
    assert withdrawn[0] - killed_ready.killed_at < UNREADY_S


def test_the_probe_says_why_it_is_not_ready(killed_ready: KilledReady):
    assert "engine" in killed_ready.sentence.lower(), killed_ready.sentence


def test_the_next_engine_is_warmed_and_checked_before_the_pod_is_ready_again(killed_ready: KilledReady):
    phases = [stay["phase"] for stay in killed_ready.ready["timeline"]]
    first = phases.index("ready")
    assert [name for name in phases[first + 1 :] if name in ("warming", "verifying", "ready")] == [
        "warming", "verifying", "ready",
    ]  # fmt: skip


def test_the_pod_keeps_its_own_cache(killed_ready: KilledReady):
    restore = killed_ready.ready["restore"]
    assert restore["outcome"] in ("kept", "hit"), restore["sentence"]


def test_the_next_engine_compiles_no_kernel(killed_ready: KilledReady):
    assert killed_ready.kernels_at_ready == killed_ready.kernels_before
    assert killed_ready.ready["warmup"]["kernels_before_ready"] == {}


def test_the_status_tells_how_the_engine_ended(killed_ready: KilledReady):
    engine = killed_ready.ready["engine"]
    assert (engine["restarts"], engine["last_exit"]["cause"]) == (1, "killed"), engine["last_exit"]


def test_a_pod_whose_engine_dies_while_it_is_warmed_was_never_ready(killed_warming: KilledWarming):
    assert 200 not in killed_warming.watch.seen(0.0, killed_warming.ready_at)


def test_the_death_while_warming_ends_the_warm_up(killed_warming: KilledWarming):
    phases = [stay["phase"] for stay in killed_warming.died["timeline"]]
    assert phases[-1] == "awaiting_launcher", phases
    assert not {"verifying", "suspended"} & set(phases), phases


def test_the_next_attempt_is_warmed_from_the_start(killed_warming: KilledWarming):
    phases = [stay["phase"] for stay in killed_warming.ready["timeline"]]
    assert phases.count("warming") == 2, phases
    assert killed_warming.ready["warmup"]["outcome"] == "converged", killed_warming.ready["reason"]


def test_kernels_that_only_the_output_check_needs_are_counted_before_ready(killed_warming: KilledWarming):
    counted = sum(killed_warming.ready["warmup"]["kernels_before_ready"].values())
    new = killed_warming.kernels_at_ready.keys() - killed_warming.kernels_at_death.keys()
    assert (counted, len(new)) == (1, 1)


def test_the_pod_is_ready_after_the_second_attempt(killed_warming: KilledWarming):
    assert killed_warming.ready_at > killed_warming.started_again_at
    assert not killed_warming.ready["flagged"], killed_warming.ready["reason"]
