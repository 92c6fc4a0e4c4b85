"""A start with nothing but the store: live cache, temporary files, home and control directory of a pod are new."""

from __future__ import annotations

from tests.integration.stories import FirstStart, RestoredStart


def test_nothing_of_the_first_start_lies_in_the_live_cache(restored_start: RestoredStart):
    assert restored_start.kernels_at_start == {}


def test_the_restore_is_a_hit(restored_start: RestoredStart):
    restore = restored_start.ready["restore"]
    assert (restore["outcome"], restore["rejected"]) == ("hit", {}), restore["sentence"]


def test_no_kernel_is_compiled_according_to_the_status(restored_start: RestoredStart):
    assert restored_start.ready["warmup"]["kernels_before_ready"] == {}


def test_the_kernels_are_those_of_the_first_start_to_the_nanosecond(
    first_start: FirstStart, restored_start: RestoredStart
):
    assert restored_start.kernels_at_ready == first_start.kernels_after_requests


def test_it_is_warmed_and_checked_before_it_is_ready(restored_start: RestoredStart):
    ready = restored_start.ready
    found = (ready["warmup"]["outcome"], ready["golden"]["outcome"], ready["flagged"], ready["degraded"])
    assert found == ("converged", "passed", False, []), ready["reason"]


def test_a_replay_of_what_compiled_is_enough_and_no_round_is_sent(restored_start: RestoredStart):
    warmup = restored_start.ready["warmup"]
    assert warmup["round"] == 0, warmup["sentence"]
    assert warmup["replayed"] >= 1, warmup["sentence"]


def test_there_is_nothing_new_to_publish(restored_start: RestoredStart):
    publish = restored_start.published["publish"]
    assert publish["outcome"] == "nothing_new", publish["sentence"]
