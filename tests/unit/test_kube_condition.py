"""The pod condition in words: one reason for each state, the sentence of /readyz, and never True without the gate."""

from __future__ import annotations

import pytest

from sidecar.kube import condition
from sidecar.kube.condition import BIRTH, CONDITION, Truth, truth
from sidecar.lifecycle import Gate, Mode, Phase, Snapshot, Suspension, gate

LAUNCHER = Mode.LAUNCHER


def test_every_phase_and_every_suspension_has_a_reason_of_its_own():
    assert set(condition.NOT_READY) == set(Phase)
    assert set(condition.SUSPENDED) == set(Suspension)
    reasons = [reason for reason, _ in condition.documented()]
    assert len(set(reasons)) == len(reasons)
    for reason in reasons:
        assert reason.isalnum()
        assert reason[0].isupper()


@pytest.mark.parametrize("phase", list(Phase))
def test_the_condition_is_true_exactly_when_the_gate_is_open(phase: Phase):
    snapshot = Snapshot(LAUNCHER, phase=phase, warm="converged", verify="passed")
    found = truth(snapshot, gate(snapshot), gate(snapshot).sentence)
    assert (found.status == "True") == gate(snapshot).open
    assert found.message == gate(snapshot).sentence
    assert (found.reason == "Warm") == gate(snapshot).open


def test_a_pod_that_serves_by_policy_says_so():
    snapshot = Snapshot(LAUNCHER, phase=Phase.READY, warm="exhausted", verify="passed")
    assert truth(snapshot, gate(snapshot), "x").reason == "ReadyByPolicy"


@pytest.mark.parametrize("cause", list(Suspension))
def test_a_suspension_names_its_cause_and_is_held(cause: Suspension):
    snapshot = Snapshot(LAUNCHER, phase=Phase.SUSPENDED, suspension=cause)
    found = truth(snapshot, gate(snapshot), "x")
    assert found.reason == condition.SUSPENDED[cause]
    assert found.held


def test_a_long_sentence_is_cut():
    found = truth(Snapshot(LAUNCHER), Gate(False, False, ""), "x" * 5000)
    assert len(found.message) == condition.MESSAGE_LIMIT


def test_at_birth_the_pod_is_not_ready():
    assert BIRTH.status == "False"


def test_the_patch_names_no_uid_that_is_not_known():
    assert "metadata" not in condition.patch(BIRTH, "", "now", "then")
    assert condition.patch(BIRTH, "u", "now", "then")["metadata"] == {"uid": "u"}


def pod(*, ours: str, ready: str, containers: str = "True", gates: tuple[str, ...] = (CONDITION,), **others: str):
    conditions = {CONDITION: ours, "Ready": ready, "ContainersReady": containers, **others}
    return {
        "spec": {"readinessGates": [{"conditionType": each} for each in gates]},
        "status": {"conditions": [{"type": kind, "status": status} for kind, status in conditions.items()]},
    }


WARM, COLD = Truth("True", "Warm", ""), Truth("False", "WarmingUp", "")


@pytest.mark.parametrize(
    ("thing", "wanted", "lags"),
    [
        (pod(ours="True", ready="False"), WARM, True),
        (pod(ours="True", ready="True"), WARM, False),
        (pod(ours="True", ready="False", containers="False"), WARM, False),
        (pod(ours="True", ready="False", gates=(CONDITION, "other")), WARM, False),
        (pod(ours="True", ready="False", gates=(CONDITION, "other"), other="True"), WARM, True),
        (pod(ours="False", ready="True"), COLD, True),
        (pod(ours="False", ready="False"), COLD, False),
        (pod(ours="False", ready="True", gates=()), COLD, False),
        ({}, COLD, False),
        ({"spec": {}, "status": {"conditions": None}}, WARM, False),
    ],
)
def test_a_kubelet_lags_only_where_the_condition_alone_would_change_something(thing, wanted: Truth, lags: bool):
    assert condition.lags(thing, wanted) is lags
