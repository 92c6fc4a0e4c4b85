"""Facts of an engine from places other than its port: whose word counts, and that it is said whose it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.engines.outside import Place, hints_of, launcher_place
from sidecar.engines.server_facts import facts_of_hints
from sidecar.lifecycle import Mode
from tests.unit.supervised import make_pod

LAUNCHER = launcher_place({"argv": ["vllm", "serve", "m", "--max-num-seqs", "64"], "environment": {}})
SPEC = Place("the Pod's spec", ("vllm", "serve", "m", "--max-num-seqs", "32", "--max-model-len", "8192"))
LABELS = Place("the Node's labels", sm="sm90", products=("NVIDIA-H200",))


def test_the_launcher_counts_before_the_pods_spec_and_each_fact_names_its_source() -> None:
    hints = hints_of((LAUNCHER, SPEC))
    assert (hints["max_num_seqs"].value, hints["max_num_seqs"].source) == (64, "argv --max-num-seqs")
    assert (hints["max_model_len"].value, hints["max_model_len"].source) == (
        8192,
        "the Pod's spec, argv --max-model-len",
    )


def test_an_engine_known_by_its_pods_spec_alone_has_both_roles_unless_the_spec_says_otherwise() -> None:
    assert facts_of_hints(hints_of((SPEC,))).role == "both"
    prefill = replace(SPEC, argv=(*SPEC.argv, "--kv-transfer-config", '{"kv_role": "kv_producer"}'))
    assert facts_of_hints(hints_of((prefill,))).role == "prefill"


@pytest.mark.parametrize("facts", [{}, {"argv": "vllm"}, {"argv": [1], "environment": None}, {"gpus": [None, "x"]}])
def test_facts_of_a_launcher_that_are_not_as_they_should_be_tell_nothing(facts: dict[str, object]) -> None:
    assert hints_of((launcher_place(facts),)) == {}


def test_the_sm_version_is_taken_from_node_labels_where_nothing_nearer_tells_it(tmp_path: Path) -> None:
    pod = make_pod(tmp_path, mode=Mode.BESIDE)
    assert pod.sm_version == ""
    pod.places = (LABELS,)
    assert pod.sm_version == "sm90"
    pod.facts = {"gpus": [{"name": "NVIDIA A100-SXM4-80GB"}]}
    assert pod.sm_version == "sm80"
    pod.sm = "sm100"
    assert pod.sm_version == "sm100"


def test_a_node_without_an_sm_label_is_known_by_its_product(tmp_path: Path) -> None:
    pod = make_pod(tmp_path, mode=Mode.BESIDE)
    pod.places = (Place("the Node's labels", products=("NVIDIA H200",)),)
    assert pod.sm_version == "sm90"


def test_an_engine_whose_container_sees_no_gpu_runs_on_the_cpu_of_whatever_node(tmp_path: Path) -> None:
    pod = make_pod(tmp_path)
    pod.places = (LABELS,)
    assert pod.sm_version == "sm90"
    pod.facts = {"gpus": []}
    assert pod.sm_version == "cpu"
    pod.facts = {"gpus": [{"name": "a GPU of next year"}]}
    assert pod.sm_version == "sm90"


def test_scales_from_first_traffic_are_known_by_the_flag_where_metrics_are_off() -> None:
    facts = facts_of_hints(hints_of((replace(SPEC, argv=(*SPEC.argv, "--calculate-kv-scales")),)))
    assert (facts.calculate_kv_scales, facts.sources["calculate_kv_scales"]) == (
        True,
        "the Pod's spec, argv --calculate-kv-scales",
    )
