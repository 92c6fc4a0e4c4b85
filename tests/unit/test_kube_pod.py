"""What a Pod object tells: whose containers are whose, what is wrong with the spec, which facts it holds."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.config import Settings
from sidecar.kube import facts
from sidecar.kube.condition import CONDITION
from sidecar.kube.facts import NodeFacts
from sidecar.kube.pod_checks import concerns
from sidecar.kube.pod_object import PROBES, find
from sidecar.web.app import ENDPOINTS

DIGEST = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def sidecar(**more: Any) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/readyz", "port": 9797}}
    return {"name": "warm", "image": "sidecar", "restartPolicy": "Always", "readinessProbe": probe, **more}


def engine(**more: Any) -> dict[str, Any]:
    command = ["python3", "/run/warmup/launcher.py", "--", "vllm", "serve"]
    return {"name": "vllm", "image": f"vllm@{DIGEST}", "command": command, "args": ["--port=8000"], **more}


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> dict[str, Any]:
    made = {"initContainers": list(init), "containers": list(containers), **spec}
    return {"metadata": {"name": "vllm-0", "uid": "u"}, "spec": made, "status": {}}


def native(**spec: Any) -> dict[str, Any]:
    return pod(engine(), init=(sidecar(),), **spec)


def gated(*gates: str) -> dict[str, Any]:
    return native(readinessGates=[{"conditionType": gate} for gate in gates])


def said(thing: dict[str, Any], version: str = "", **settings: Any) -> str:
    return " ".join(each.sentence for each in concerns(thing, Settings(**settings), version))


# --- containers ---------------------------------------------------------------------------------------------------------


def test_our_paths_are_those_that_the_web_room_serves():
    assert set(PROBES) <= {endpoint.path for endpoint in ENDPOINTS}


def test_both_containers_are_found_by_what_they_do():
    found = find(pod({"name": "proxy"}, engine(), {"name": "log"}, init=({"name": "download"}, sidecar())))
    assert found.sidecar is not None
    assert found.engine is not None
    assert (found.sidecar["name"], found.engine["name"], found.native) == ("warm", "vllm", True)


def test_an_engine_without_a_launcher_is_known_by_its_gpus_or_because_it_is_alone():
    gpu = {"name": "serve", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    assert find(pod({"name": "proxy"}, gpu, sidecar())).engine == gpu
    assert find(pod({"name": "only"}, sidecar())).engine == {"name": "only"}
    assert find(pod({"name": "one"}, {"name": "two"}, sidecar())).engine is None


@pytest.mark.parametrize(
    "strange",
    [{}, {"spec": None}, {"spec": {"containers": None}}, {"spec": {"containers": ["x", 3], "initContainers": {}}}],
)
def test_a_pod_of_unexpected_shape_tells_nothing(strange: dict[str, Any]):
    assert find(strange).engine is None
    assert facts.pod_facts(strange) is None
    assert concerns(strange, Settings()) == []


# --- what is wrong --------------------------------------------------------------------------------------------------------


def test_a_pod_as_it_should_be_is_no_concern():
    probe = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 5, "failureThreshold": 400}
    good = pod(engine(startupProbe=probe), init=(sidecar(),), terminationGracePeriodSeconds=60)
    assert said(good, "v1.31.2") == ""


def test_a_gate_that_nobody_opens_is_a_problem():
    assert "stays unready for ever" in said(gated(CONDITION))
    assert said(gated(CONDITION), readiness_gate=True) == ""


def test_a_condition_that_nobody_waits_for_is_told():
    assert "nothing waits for it" in said(gated("example.com/other"), readiness_gate=True)


def test_an_ordinary_init_container_would_keep_the_engine_from_starting():
    plain = {"name": "warm", "env": [{"name": "WARMUP_STORE", "value": "/mnt"}]}
    thing = pod(engine(), init=(plain,))
    thing["status"] = {"initContainerStatuses": [{"name": "warm", "state": {"running": {}}}]}
    [found] = concerns(thing, Settings(), "v1.27.3")
    assert found.fatal
    assert "v1.27.3" in found.sentence


def test_an_init_container_that_lays_the_launcher_down_is_no_concern_of_the_sidecar_beside_the_engine():
    laying = {"name": "launcher", "env": [{"name": "WARMUP_STORE", "value": "/mnt"}]}
    beside = {**laying, "name": "warm"}
    for ours in (beside, {**beside, "readinessProbe": {"httpGet": {"path": "/readyz"}}}):
        found = find(pod(engine(), ours, init=(laying,)))
        assert (found.sidecar, found.native, found.ordinary_init) == (ours, False, False)
    over = pod(engine(), init=(laying,))
    over["status"] = {"initContainerStatuses": [{"name": "launcher", "state": {"terminated": {}}}]}
    assert concerns(over, Settings()) == []


def test_an_old_cluster_is_told_and_an_unnumbered_one_is_not():
    assert "native sidecars are on by default from 1.29" in said(native(), "v1.28.9")
    assert said(native(), "v1.29.0") == said(native(), "v0.0.0-master") == said(native(), "nonsense") == ""


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_pod_that_is_not_always_restarted_may_hang_or_ignore_the_sidecar(policy: str):
    assert "can keep the engine's container from ever starting" in said(native(restartPolicy=policy))


def test_a_kubelet_that_ignores_the_sidecars_readiness_is_found_out():
    ignored = native()
    ignored["status"] = {
        "initContainerStatuses": [{"name": "warm", "ready": False}],
        "conditions": [{"type": "ContainersReady", "status": "True"}],
    }
    assert "ignores the readiness of sidecars" in said(ignored)
    assert "ignores" not in said({**ignored, "spec": gated(CONDITION)["spec"]}, readiness_gate=True)


def test_a_probe_that_kills_a_cold_start_is_told_with_the_sum():
    short = engine(startupProbe={"periodSeconds": 10, "failureThreshold": 30})
    assert "startup probe kills it after 300 s" in said(pod(short, init=(sidecar(),)))
    only_liveness = engine(livenessProbe={})
    assert said(pod(only_liveness, init=(sidecar(),))) == ""
    liveness = engine(livenessProbe={"periodSeconds": 5})
    assert "liveness probe kills it after 15 s" in said(pod(liveness, init=(sidecar(),)))


def test_a_probe_that_asks_the_pods_address_of_an_engine_that_answers_inside_the_pod_only_is_a_problem():
    inside = engine(args=["--host", "127.0.0.1"], startupProbe={"httpGet": {"path": "/health", "port": 8000}})
    [found] = [each for each in concerns(pod(inside, init=(sidecar(),)), Settings()) if "--host" in each.sentence]
    assert found.level == "problem"
    assert "startupProbe" in found.sentence
    probed_by_name = {"httpGet": {"path": "/health", "port": 8000, "host": "10.0.0.1"}}
    assert "never passes" not in said(pod(engine(args=["--host=::1"], startupProbe=probed_by_name), init=(sidecar(),)))


def test_an_engine_that_answers_inside_the_pod_only_is_told_unless_a_container_beside_it_hands_requests_on():
    inside = engine(args=["--host=localhost"])
    assert "no Service reaches it" in said(pod(inside, init=(sidecar(),)))
    assert "no Service reaches it" in said(pod(inside, sidecar()))
    assert "--host" not in said(pod(inside, {"name": "proxy"}, init=(sidecar(),)))


def test_a_grace_period_shorter_than_the_drain_is_told():
    assert "requests in flight are cut off" in said(native(terminationGracePeriodSeconds=10))


# --- facts ----------------------------------------------------------------------------------------------------------------


def told(**container: Any) -> facts.PodFacts:
    found = facts.pod_facts(pod(engine(**container), init=(sidecar(),)))
    assert found is not None
    return found


def test_only_a_pinned_image_has_a_digest():
    assert told().digest == DIGEST
    for image in ("vllm", "vllm:v1", "vllm@sha256:short", f"{DIGEST}"):
        assert told(image=image).digest == ""


def test_arguments_and_environment_are_expanded_as_the_kubelet_does():
    found = told(
        command=["vllm", "serve"],
        args=["$(MODEL)", "--path=$(DIR)/x", "$$(NOT)", "$(", "100%"],
        env=[{"name": "MODEL", "value": "m"}, {"name": "DIR", "value": "/$(MODEL)"}],
    )
    assert found.argv == ("vllm", "serve", "m", "--path=/m/x", "$(NOT)", "$(", "100%")
    assert found.open_ended == ""


def test_an_argument_that_hangs_on_an_unknown_variable_makes_the_arguments_unknown():
    rank = {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['rank']"}}}
    found = told(args=["--node-rank=$(RANK)"], env=[rank])
    assert "not in the spec" in found.open_ended
    assert found.unknown == ("RANK",)


def test_variables_from_elsewhere_make_the_environment_open_ended():
    assert "envFrom" in told(envFrom=[{"configMapRef": {"name": "x"}}]).open_ended


def test_a_variable_given_twice_counts_as_given_last():
    secret = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert told(env=[secret, {"name": "A", "value": "1"}]).environment == {"A": "1"}
    assert told(env=[{"name": "A", "value": "1"}, secret]).unknown == ("A",)


def test_node_labels_name_the_gpu_and_the_driver():
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/cuda.driver.major": "580", "nvidia.com/cuda.driver.minor": "65", "nvidia.com/cuda.driver.rev": "06",
    }  # fmt: skip
    assert facts.node_facts({"metadata": {"labels": labels}}) == NodeFacts("sm90", "NVIDIA-H200", "580.65.06")
    assert facts.node_facts({"metadata": {}}) == facts.node_facts({}) == NodeFacts()


def running(image_id: str) -> dict[str, Any]:
    made = native()
    made["status"] = {"containerStatuses": [{"name": "vllm", "imageID": image_id}]}
    return made


def test_the_image_that_runs_can_only_veto():
    assert "another image's" in facts.veto(running(f"registry/vllm@{OTHER}"), DIGEST)
    for image_id in (f"registry/vllm@{DIGEST}", "", OTHER, f"docker://{OTHER}"):
        assert facts.veto(running(image_id), DIGEST) == ""
    assert facts.veto(running(f"registry/vllm@{OTHER}"), "") == ""
