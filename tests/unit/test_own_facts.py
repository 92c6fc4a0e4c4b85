"""Facts without a launcher: one source each, chosen by the settings; one that is away makes no other key."""

from __future__ import annotations

from typing import Any

import pytest

import sidecar.launcher.facts as launcher
from sidecar.caches.fingerprint import fingerprint
from sidecar.config import Settings
from sidecar.daemon.own_facts import RELEVANT, OwnFacts, Told, cpu_facts, own_facts, places
from sidecar.kube.facts import NodeFacts, PodFacts

DIGEST = "sha256:" + "a" * 64
IMAGE = f"registry/vllm@{DIGEST}"
POD = PodFacts(image=IMAGE, digest=DIGEST, argv=("vllm", "serve", "m"), environment={"VLLM_USE_V1": "1"}, gpus=2)
NODE = NodeFacts("sm90", "NVIDIA-H200", "580.65.06")


NOTHING = Told()


def facts(told: Told = NOTHING, **settings: Any) -> OwnFacts:
    return own_facts(Settings(launcher=False, **settings), None, told)


def keys(found: OwnFacts) -> tuple[str, str]:
    printed = fingerprint(found.facts, "/var/cache/engine")
    return printed.exact_key, printed.toolchain_key


def test_the_image_comes_from_its_setting_even_where_the_pod_is_asked():
    assert facts(Told(POD), image=IMAGE, sm="sm90", pod_facts=True).facts["image"] == {"digest": DIGEST}
    assert facts(Told(), image=IMAGE, sm="sm90", pod_facts=True).lacking == ""


def test_a_pinned_image_of_the_pod_makes_the_key_that_its_setting_would_make():
    by_pod = facts(Told(POD), sm="sm90", pod_facts=True)
    by_setting = facts(image=IMAGE, sm="sm90")
    assert keys(by_pod)[1] == keys(by_setting)[1]


@pytest.mark.parametrize(
    ("told", "word"),
    [(Told(None), "can't be read from the Pod"), (Told(PodFacts(image="vllm:latest")), "not pinned by digest")],
)
def test_without_a_pinned_image_nothing_is_reused(told: Told, word: str):
    found = facts(told, sm="sm90", pod_facts=True)
    assert word in found.lacking
    assert "image" not in found.facts


def test_a_node_that_is_away_is_not_replaced_by_another_source():
    found = facts(Told(POD, None), image=IMAGE, node_facts=True)
    assert "WARMUP_NODE_FACTS" in found.lacking
    assert "gpus" not in found.facts


def test_gpus_of_the_node_are_as_many_as_the_container_is_limited_to():
    found = facts(Told(POD, NODE), image=IMAGE, node_facts=True)
    assert [gpu["name"] for gpu in found.facts["gpus"]] == ["NVIDIA-H200", "NVIDIA-H200"]
    assert found.facts["driver"] == {"version": "580.65.06"}


def test_exact_caches_need_every_fact_that_decides_about_them():
    known = facts(Told(POD, NODE), pod_facts=True, node_facts=True)
    assert known.inexact == ""
    assert known.facts["argv"] == ["vllm", "serve", "m"]
    assert known.facts["cpu"]["flags"]


@pytest.mark.parametrize(
    ("pod", "settings", "word"),
    [
        (POD, {"sm": "sm90"}, "name of the GPU"),
        (PodFacts(image=IMAGE, digest=DIGEST, open_ended="its envFrom"), {}, "envFrom"),
        (PodFacts(image=IMAGE, digest=DIGEST, unknown=("VLLM_ATTENTION_BACKEND",)), {}, "VLLM_ATTENTION_BACKEND"),
    ],
)
def test_exact_caches_are_left_alone_where_something_is_not_known(pod: PodFacts, settings: dict[str, Any], word: str):
    found = facts(Told(pod, NODE), pod_facts=True, node_facts=True, **settings)
    assert word in found.inexact
    assert found.lacking == ""


def test_a_variable_that_no_kernel_depends_on_may_stay_unknown():
    pod = PodFacts(image=IMAGE, digest=DIGEST, argv=("vllm",), unknown=("HF_TOKEN", "POD_IP"))
    assert facts(Told(pod, NODE), pod_facts=True, node_facts=True).inexact == ""


def test_a_secret_of_the_environment_is_kept_as_a_digest():
    pod = PodFacts(image=IMAGE, digest=DIGEST, environment={"VLLM_API_KEY": "hunter2"})
    found = facts(Told(pod, NODE), pod_facts=True, node_facts=True)
    assert "hunter2" not in str(found.facts)


def test_each_rank_of_a_group_has_an_exact_key_of_its_own_and_shares_the_toolchain():
    ranks = [
        facts(Told(POD, NODE, {"LWS_WORKER_INDEX": index, "LWS_GROUP_SIZE": "2"}), pod_facts=True, node_facts=True)
        for index in "01"
    ]
    (exact0, toolchain0), (exact1, toolchain1) = map(keys, ranks)
    assert exact0 != exact1
    assert toolchain0 == toolchain1


def test_processor_and_variables_are_described_as_the_launcher_describes_them():
    assert cpu_facts() == launcher.cpu()
    assert RELEVANT.pattern == launcher.RELEVANT.pattern


def test_pod_and_node_are_places_that_tell_limits_and_the_gpu():
    pod, node = places(Told(POD, NODE))
    assert (pod.argv, pod.environment) == (POD.argv, POD.environment)
    assert (node.sm, node.products) == ("sm90", ("NVIDIA-H200",))
    assert places(Told()) == ()
