"""Choosing, single flight, boots, quarantine, signatures and the commands on a store in a bucket of a real server.

The claims are those that `tests/unit` makes of a directory. Left out is what makes files older: a bucket's objects can't be.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from tests.fakes.bucket_path import BucketPath
from tests.object_server import ObjectServer
from tests.unit.test_caches_choice import (
    Fleet,
    test_a_claim_is_taken_by_one_of_those_who_saw_it_free,
    test_a_first_publisher_that_gave_up_is_followed_at_once,
    test_a_held_claim_is_renewed_and_given_back_in_the_end,
    test_deaths_do_not_condemn_a_generation_that_another_pod_was_ready_on,
    test_followers_wait_until_the_first_generation_is_there_and_say_for_whom,
    test_one_follower_takes_the_place_of_a_first_publisher_that_fell_silent,
    test_only_one_pod_at_a_time_tries_a_candidate_while_a_proven_one_is_there,
    test_the_next_pod_tries_a_candidate_when_its_holder_gave_it_back,
    test_two_deaths_in_two_pods_condemn_a_generation_that_nobody_was_ready_on,
)
from tests.unit.test_caches_signing import (
    Site,
    test_a_changed_archive_is_refused_by_the_digests_that_were_signed,
    test_a_key_that_is_not_among_the_trusted_publishes_nothing,
    test_a_newer_generation_that_nobody_signed_is_passed_over_for_the_signed_one,
    test_a_pod_that_trusts_and_cannot_sign_publishes_nothing_and_says_who_does,
    test_an_old_generation_that_was_put_back_is_noticed_and_not_used,
    test_no_pod_claims_a_generation_that_it_does_not_believe,
    test_who_signs_never_signs_what_somebody_else_published,
)
from tests.unit.test_cli_store import (
    publish_to,
    test_a_quarantine_is_shown_and_can_be_taken_back,
    test_explain_calls_a_key_whose_generations_may_not_be_used_a_miss,
    test_explain_names_the_fact_that_made_it_a_miss,
    test_ls_says_who_tries_a_candidate_and_who_makes_the_first_generation_of_a_key,
    test_only_a_deep_verify_finds_a_flipped_bit,
    test_show_finds_a_generation_by_the_beginning_of_its_key,
    test_unquarantine_clears_a_condemnation_as_well,
    test_verify_finds_a_missing_archive_and_a_manifest_of_garbage,
)

__all__ = [
    "test_a_changed_archive_is_refused_by_the_digests_that_were_signed",
    "test_a_claim_is_taken_by_one_of_those_who_saw_it_free",
    "test_a_first_publisher_that_gave_up_is_followed_at_once",
    "test_a_held_claim_is_renewed_and_given_back_in_the_end",
    "test_a_key_that_is_not_among_the_trusted_publishes_nothing",
    "test_a_newer_generation_that_nobody_signed_is_passed_over_for_the_signed_one",
    "test_a_pod_that_trusts_and_cannot_sign_publishes_nothing_and_says_who_does",
    "test_a_quarantine_is_shown_and_can_be_taken_back",
    "test_an_old_generation_that_was_put_back_is_noticed_and_not_used",
    "test_deaths_do_not_condemn_a_generation_that_another_pod_was_ready_on",
    "test_explain_calls_a_key_whose_generations_may_not_be_used_a_miss",
    "test_explain_names_the_fact_that_made_it_a_miss",
    "test_followers_wait_until_the_first_generation_is_there_and_say_for_whom",
    "test_ls_says_who_tries_a_candidate_and_who_makes_the_first_generation_of_a_key",
    "test_no_pod_claims_a_generation_that_it_does_not_believe",
    "test_one_follower_takes_the_place_of_a_first_publisher_that_fell_silent",
    "test_only_a_deep_verify_finds_a_flipped_bit",
    "test_only_one_pod_at_a_time_tries_a_candidate_while_a_proven_one_is_there",
    "test_show_finds_a_generation_by_the_beginning_of_its_key",
    "test_the_next_pod_tries_a_candidate_when_its_holder_gave_it_back",
    "test_two_deaths_in_two_pods_condemn_a_generation_that_nobody_was_ready_on",
    "test_unquarantine_clears_a_condemnation_as_well",
    "test_verify_finds_a_missing_archive_and_a_manifest_of_garbage",
    "test_who_signs_never_signs_what_somebody_else_published",
]


def path_in(bucket: str, server: ObjectServer) -> BucketPath:
    """Give the place of a store in a bucket, by its URL."""
    name, _, prefix = bucket.removeprefix("s3://").partition("/")
    return BucketPath(f"s3://{name}", PurePosixPath(prefix), server.client(name))


@pytest.fixture
def fleet(bucket: str) -> Fleet:
    return Fleet(bucket)


@pytest.fixture
def site(tmp_path: Path, bucket: str, object_server: ObjectServer) -> Site:
    return Site(tmp_path, path_in(bucket, object_server))


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return tmp_path / "live"


@pytest.fixture
def store(live: Path, bucket: str, object_server: ObjectServer) -> BucketPath:
    publish_to(bucket, live)
    return path_in(bucket, object_server)
