"""The first start of all, with the real vLLM on CPU: nothing in the store, everything is compiled before ready."""

from __future__ import annotations

import re

from tests.integration.looks import STRUCTURED_PATTERN
from tests.integration.stories import FirstStart


def test_kernels_are_compiled_before_ready(first_start: FirstStart):
    counted = sum(first_start.ready["warmup"]["kernels_before_ready"].values())
    assert (first_start.ready["restore"]["outcome"], counted) == ("miss", len(first_start.kernels_at_ready))
    assert counted > 0


def test_warm_up_converges_and_the_output_check_passes(first_start: FirstStart):
    ready = first_start.ready
    found = (ready["warmup"]["outcome"], ready["golden"]["outcome"], ready["flagged"], ready["degraded"])
    assert found == ("converged", "passed", False, []), ready["reason"]


def test_the_phases_follow_in_the_order_of_a_start(first_start: FirstStart):
    assert [stay["phase"] for stay in first_start.ready["timeline"]] == [
        "starting", "awaiting_launcher", "restoring", "awaiting_engine", "warming", "verifying", "ready",
    ]  # fmt: skip


def test_the_first_log_probabilities_after_ready_write_no_kernel(first_start: FirstStart):
    assert first_start.answers[0]["logprobs"], "the engine gave no log-probabilities, so nothing was tried"
    assert first_start.kernels_after_requests == first_start.kernels_at_ready


def test_the_first_structured_output_after_ready_is_what_was_asked_for(first_start: FirstStart):
    assert re.fullmatch(STRUCTURED_PATTERN, first_start.answers[1]["text"])


def test_no_kernel_is_counted_after_ready(first_start: FirstStart):
    assert first_start.published["warmup"]["kernels_after_ready"] == {}


def test_what_was_compiled_is_published(first_start: FirstStart):
    publish = first_start.published["publish"]
    assert publish["outcome"] == "published", publish["sentence"]
    assert publish["generation"] in first_start.generations


def test_every_kernel_is_in_what_was_published(first_start: FirstStart):
    assert first_start.kernels_published == len(first_start.kernels_at_ready)
