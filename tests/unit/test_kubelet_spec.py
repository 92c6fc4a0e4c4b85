"""What the emulated kubelet takes for a Pod: unknown fields and impossible pods are refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.kubelet import PodSpec, SpecRefused
from tests.kubernetes.kubelet.node import expanded
from tests.kubernetes.kubelet.warm_pod import shipped

HTTP = {"httpGet": {"path": "/", "port": 80}}


def container(**more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "i", **more}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"containers": [container(comand=["x"])]}, "containers.0.comand"),
        ({"containers": []}, "at least 1"),
        ({"containers": [container(), container()]}, "must differ"),
        ({"containers": [container(volumeMounts=[{"name": "v", "mountPath": "/v"}])]}, "not there"),
        ({"containers": [container(restartPolicy="Always")]}, "is for init containers"),
        ({"containers": [container(livenessProbe={**HTTP, "successThreshold": 2})]}, "must be 1"),
        ({"containers": [container(startupProbe={**HTTP, "successThreshold": 2})]}, "must be 1"),
        ({"containers": [container(readinessProbe={"httpGet": {"port": "no"}})]}, "no port named no"),
        ({"containers": [container(readinessProbe={"sleep": {"seconds": 1}})]}, "can't sleep"),
        ({"containers": [container(readinessProbe={**HTTP, "exec": {"command": ["x"]}})]}, "exactly one"),
        ({"containers": [container(readinessProbe={**HTTP, "periodSeconds": 0})]}, "greater than or equal to 1"),
        ({"containers": [container(readinessProbe={**HTTP, "terminationGracePeriodSeconds": 1})]}, "takes no"),
        ({"containers": [container(name="d")], "initContainers": [container(readinessProbe=HTTP)]}, "have no probes"),
    ],
)
def test_a_pod_that_no_kubelet_would_run_is_refused(spec: dict[str, Any], sentence: str):
    with pytest.raises(SpecRefused, match=sentence):
        PodSpec.parse(spec)


def test_defaults_are_those_of_the_documentation():
    probe = PodSpec.parse({"containers": [container(readinessProbe=HTTP)]}).containers[0].readiness_probe
    assert probe is not None
    numbers = (probe.initial_delay_seconds, probe.period_seconds, probe.timeout_seconds)
    assert (*numbers, probe.success_threshold, probe.failure_threshold) == (0, 10, 1, 1, 3)
    assert PodSpec.parse({"containers": [container()]}).termination_grace_period_seconds == 30


def test_the_shipped_pod_holds_nothing_that_is_not_emulated():
    kinds = [kind for _, kind in PodSpec.parse(shipped()).kinds()]
    assert kinds == ["sidecar", "app"]


def test_a_reference_to_a_variable_that_is_not_there_stays_as_it_is():
    assert expanded("$(A)-$(B)", {"A": "1"}) == "1-$(B)"
