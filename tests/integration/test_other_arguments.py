"""A new configuration on an image and machine that the store knows: it starts with the toolchain families."""

from __future__ import annotations

from tests.integration.stories import FirstStart, OtherArguments


def test_the_restore_is_a_partial_hit_of_toolchain_families_alone(other_arguments: OtherArguments):
    restore = other_arguments.ready["restore"]
    assert restore["outcome"] == "partial", restore["sentence"]
    assert restore["families"]
    assert {family["scope"] for family in restore["families"].values()} == {"toolchain"}


def test_the_sentence_names_the_argument_that_made_it_a_miss(other_arguments: OtherArguments):
    assert "--max-model-len" in other_arguments.ready["restore"]["sentence"]


def test_what_was_restored_is_used_and_not_made_anew(other_arguments: OtherArguments):
    effects = other_arguments.ready["restore"]["effectiveness"]
    assert effects
    assert all(effect["rebuilt"] == 0 for effect in effects.values()), effects


def test_what_depends_on_the_arguments_is_compiled_anew(first_start: FirstStart, other_arguments: OtherArguments):
    compiled = other_arguments.ready["warmup"]["kernels_before_ready"]
    assert compiled.get("inductor", 0) > 0, compiled
    assert not set(other_arguments.kernels_at_ready.values()) & set(first_start.kernels_after_requests.values())
