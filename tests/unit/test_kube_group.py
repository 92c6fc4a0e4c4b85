"""A group of pods that run one engine: who follows whom, and which groups never start."""

from __future__ import annotations

import pytest

from sidecar.config import Settings
from sidecar.kube.group import Group, deadlock, group_of, without_changes

LWS = {"LWS_LEADER_ADDRESS": "vllm-0.vllm.serving", "LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2"}


def test_a_worker_follows_the_address_it_is_given_on_our_own_port():
    assert group_of(Settings(), LWS) == Group("http://vllm-0.vllm.serving:9797", 1, 2)
    assert group_of(Settings(listen="0.0.0.0:1234"), LWS).leader == "http://vllm-0.vllm.serving:1234"
    assert group_of(Settings(), LWS).worker


def test_the_leader_follows_nobody_although_it_knows_its_own_address():
    assert not group_of(Settings(), {**LWS, "LWS_WORKER_INDEX": "0"}).worker


@pytest.mark.parametrize("environment", [{}, {"LWS_WORKER_INDEX": "1"}, {**LWS, "LWS_WORKER_INDEX": "first"}])
def test_a_pod_that_is_told_too_little_is_alone(environment: dict[str, str]):
    assert not group_of(Settings(), environment).worker


@pytest.mark.parametrize(
    ("named", "url"),
    [
        ("leader", "http://leader:9797"),
        ("leader:8", "http://leader:8"),
        ("[fd00::1]", "http://[fd00::1]:9797"),
        ("[fd00::1]:8", "http://[fd00::1]:8"),
    ],
)
def test_a_leader_can_be_named_by_hand(named: str, url: str):
    found = group_of(Settings(group_leader=named), {})
    assert (found.leader, found.worker) == (url, True)


def test_workers_that_are_made_when_the_leader_is_ready_are_never_made():
    group = group_of(Settings(), {**LWS, "LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "4"})
    assert "Neither ever is" in deadlock(group, Settings(group_startup="LeaderReady"))
    assert deadlock(group, Settings()) == ""
    assert deadlock(Group(), Settings(group_startup="LeaderReady")) == ""


def test_a_pod_of_several_has_no_fallback_of_its_own_and_says_so():
    given = Settings(fallbacks="--kv-cache-dtype auto", on_golden_failed="fallback,hold")
    for size, used in ((1, True), (2, False)):
        settings, sentence = without_changes(Group("", 0, size), given)
        assert bool(settings.fallback_changes) is used
        assert ("one of the 2 of one engine" in sentence) is not used
