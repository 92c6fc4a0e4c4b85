"""Pods and annotations that fight with the webhook: the pod is left as it is, or what it becomes is still a pod that can start.

Pods as people usually write them: test_injector_shapes.py.
"""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from sidecar.kube.condition import CONDITION
from sidecar.kube.injection.options import Options
from sidecar.kube.injection.shape import DOMAIN
from tests.kubernetes import pod_shapes
from tests.kubernetes.patching import patched
from tests.kubernetes.pod_shapes import Json, engine, labelled, pod, proxy
from tests.kubernetes.rendered import containers, named
from tests.kubernetes.test_injector_shapes import OPTIONS, ask, made, of_engine, of_sidecar, variables

ENGINE_BY_DIGEST = engine(image="example.com/own@sha256:" + "b" * 64)


def mounted(path: str, volume: Json, **more: Any) -> Json:
    """Make a pod whose engine mounts a volume at a path."""
    return pod(engine(volumeMounts=[{"name": "x", "mountPath": path, **more}]), volumes=[{"name": "x", **volume}])


def annotated(**options: str) -> Json:
    return pod(engine(), annotations={f"{DOMAIN}/{name.replace('_', '-')}": value for name, value in options.items()})


#: What the API server or the node would refuse after us, so the pod would never start: left as it is.
LEFT: dict[str, tuple[Json, str]] = {
    "the launcher's name is taken": (
        pod(
            engine(),
            initContainers=[{"name": "warmup-launcher", "image": "x"}],
            annotations={f"{DOMAIN}/native": "false"},
        ),
        "warmup-launcher",
    ),
    "the restore's name is taken": (
        pod(
            ENGINE_BY_DIGEST,
            initContainers=[{"name": "warmup-restore", "image": "x"}],
            annotations={f"{DOMAIN}/native": "false", f"{DOMAIN}/launcher": "false"},
        ),
        "warmup-restore",
    ),
    "a node of Windows is selected": (pod(engine(), nodeSelector={"kubernetes.io/os": "windows"}), "Windows"),
    "a shared volume in the live cache": (
        mounted("/var/cache/engine/triton", {"persistentVolumeClaim": {"claimName": "c"}}),
        "private to the pod",
    ),
    "a volume in the control directory": (mounted("/run/warmup/x", {"emptyDir": {}}), "control-dir"),
    "a read-only volume around the live cache": (
        mounted("/var/cache", {"persistentVolumeClaim": {"claimName": "c"}}, readOnly=True),
        "can't be written",
    ),
    "a secret around the control directory": (mounted("/run", {"secret": {"secretName": "s"}}), "can't be written"),
    "live cache and control directory are one": (annotated(live_cache="/run/warmup"), "another path"),
    "the live cache lies in the control directory": (annotated(live_cache="/run/warmup/live"), "another path"),
    "the live cache lies where the store does": (annotated(live_cache="/mnt/store", store="pvc:a"), "another path"),
    "the control directory lies around the token": (annotated(control_dir="/var/run/secrets"), "another path"),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_pod_that_could_not_start_with_the_sidecar_starts_without_it(name: str):
    given, reason = LEFT[name]
    answer = ask(labelled(given))
    assert answer.outcome == "refused"
    assert "patch" not in answer.body["response"]
    assert any(reason in warning for warning in answer.warnings), answer.warnings


#: Annotations that can't be used: each is left out and named, and the pod gets the sidecar without it.
UNUSABLE = {
    "live-cache": ["/", "/a/../etc", "/a:b", "/a/", "relative", "/a b"],
    "control-dir": ["/", "/x/..", "/a:b"],
    "store": ["hostPath:/etc/../root", "hostPath:relative", "pvc:UPPER", "nfs:/x"],
    "engine-url": ["not a url", "http://127.0.0.1:99999", "http://u:p@127.0.0.1:1", "http://a/path"],
    "python": ["python3 -E"],
    "engine-start-s": ["inf", "nan", "-1", "0"],
    "engine-command": ["[1]", "vllm 'serve", "[" * 50_000],
    "golden": ["a/b/c", "../etc", "A B"],
    "launcher": ["maybe"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in UNUSABLE.items() for value in values])
def test_an_annotation_that_would_break_the_pod_is_left_out(name: str, value: str):
    before = labelled(pod(engine(), annotations={f"{DOMAIN}/{name}": value}))
    answer = ask(before)
    assert answer.outcome == "injected"
    assert any(warning.startswith(f"{DOMAIN}/{name} is left out") for warning in answer.warnings)
    without = labelled(pod(engine()))
    assert patched(before, answer.body)["spec"] == patched(without, ask(without).body)["spec"]


def test_fields_that_are_null_are_fields_that_are_not_there():
    empty = dict.fromkeys(("env", "ports", "volumeMounts", "lifecycle", "livenessProbe", "command"))
    absent = dict.fromkeys(("volumes", "initContainers", "securityContext", "terminationGracePeriodSeconds"))
    given = pod(engine(**empty), **absent)
    given["metadata"]["annotations"] = None
    assert made(given) == made(pod(engine()))


def test_a_command_of_the_containers_own_counts_more_than_the_annotation():
    given = pod(
        engine(command=["sh", "-c", "exec vllm serve m"], args=[]), annotations={f"{DOMAIN}/engine-command": "x"}
    )
    answer = ask(labelled(given))
    assert any("is not used" in warning for warning in answer.warnings)
    assert of_engine(made(given))["command"][2:] == ["--", "sh", "-c", "exec vllm serve m"]
    everybodys = Options(image="i:1", engine_command=("vllm", "serve"))
    assert of_engine(made(given, everybodys))["command"][2:] == ["--", "sh", "-c", "exec vllm serve m"]


@pytest.mark.parametrize(
    ("volume", "limit"),
    [
        ({"emptyDir": {"sizeLimit": "5Gi"}}, "5Gi"),
        ({"emptyDir": {"medium": "Memory"}}, "0"),
        ({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}, "0"),
    ],
)
def test_the_size_limit_of_a_live_cache_of_the_pods_own_is_the_one_that_counts(volume: Json, limit: str):
    spec = made(mounted("/var/cache/engine", volume))
    assert variables(of_sidecar(spec))["WARMUP_LIVE_CACHE_LIMIT_BYTES"] == limit


def test_a_pod_that_waits_for_the_condition_gets_a_sidecar_that_writes_it():
    spec = made(pod(engine(), readinessGates=[{"conditionType": CONDITION}]))
    assert spec["readinessGates"] == [{"conditionType": CONDITION}]
    assert variables(of_sidecar(spec))["WARMUP_READINESS_GATE"] == "true"


def test_every_port_that_can_be_taken_may_be_taken():
    taken = [{"containerPort": port} for port in range(9797, 9900)]
    spec = made(pod(engine(args=["m", "--port", "9900"]), proxy(ports=taken)))
    assert of_sidecar(spec)["ports"][0]["containerPort"] == 9901


#: Things a pod may have that are none of the webhook's business.
UNTOUCHED: dict[str, Json] = {
    "one process namespace": {"shareProcessNamespace": True},
    "the host's processes": {"hostPID": True},
    "a user for all": {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000}},
    "root's group": {"securityContext": {"fsGroup": 0}},
    "further groups": {"securityContext": {"supplementalGroups": [5]}},
    "resources of the pod": {"resources": {"limits": {"cpu": "4"}}},
    "volumes of our names with other content": {
        "volumes": [
            {"name": "warmup-live-cache", "secret": {"secretName": "a"}},
            {"name": "warmup-2-store", "emptyDir": {}},
        ]
    },
    "no service links": {"enableServiceLinks": False, "automountServiceAccountToken": True},
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_a_pod_has_besides_stays_and_the_result_is_valid(name: str):
    given = pod(engine(), **UNTOUCHED[name])
    spec = made(given)
    for field, value in UNTOUCHED[name].items():
        if isinstance(value, dict):
            assert value.items() <= spec[field].items()
        elif isinstance(value, list):
            assert spec[field][: len(value)] == value
        else:
            assert spec[field] == value
    assert len({volume["name"] for volume in spec["volumes"]}) == len(spec["volumes"])
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(whole, "1.37", strict=True)


def test_thousands_of_variables_are_answered_all_the_same():
    given = labelled(pod(engine(env=[{"name": f"V{number}", "value": "x" * 100} for number in range(5000)])))
    answer = ask(given)
    assert answer.outcome == "injected"
    # They are not sent back.
    assert len(answer.body["response"]["patch"]) < 20_000
    assert len(named(patched(given, answer.body)["spec"], "vllm")["env"]) == 5000


@pytest.mark.parametrize("period", [0, None, 1e9])
def test_a_probe_without_a_usable_period_gets_a_budget(period: object):
    probe = {**pod_shapes.HEALTH, "periodSeconds": period}
    assert of_engine(made(pod(engine(startupProbe=probe))))["startupProbe"]["failureThreshold"] >= 1


def test_a_container_for_debugging_is_none_of_the_pods_containers():
    spec = made(pod(engine(), ephemeralContainers=[{"name": "debugger", "image": "x"}]))
    assert [each["name"] for each in containers(spec)] == ["warmup-sidecar", "vllm"]
    assert ask(labelled(pod(engine())), OPTIONS).outcome == "injected"


@pytest.mark.parametrize(
    ("args", "probes", "warned"),
    [
        (["m", "--host", "127.0.0.1"], {"startupProbe": pod_shapes.HEALTH}, True),
        (["m", "--host=localhost"], {"livenessProbe": {"tcpSocket": {"port": 8000}}}, True),
        (["m", "--host", "::1"], {"readinessProbe": pod_shapes.HEALTH}, True),
        (["m", "--host", "127.0.0.1", "--host", "0.0.0.0"], {"startupProbe": pod_shapes.HEALTH}, False),
        (["m", "--host", "127.0.0.1"], {"livenessProbe": {"exec": {"command": ["true"]}}}, False),
        (["m"], {"startupProbe": pod_shapes.HEALTH}, False),
    ],
)
def test_a_probe_that_can_never_pass_because_the_engine_answers_inside_the_pod_only_is_warned_of(
    args: list[str], probes: Json, warned: bool
):
    answer = ask(labelled(pod(engine(args=args, **probes))))
    assert answer.outcome == "injected"
    found = [each for each in answer.body["response"]["warnings"] if "at the pod's address" in each]
    assert len(found) == warned
    assert all(each.endswith("set it to 0.0.0.0.") for each in found)
