"""The Helm chart with real Helm 3 and 4: it lints, both render the same, and values that can't be meant are refused.

Schemas: test_schemas.py. Agreement with the code: tests/contract/test_pod_shape.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from sidecar import __version__
from tests.kubernetes.rendered import CHART, VALUE_SETS, Json, charted, named, need, run

HELMS = ("helm3", "helm4")


def template(*words: str, helm: str = "helm4") -> subprocess.CompletedProcess[str]:
    return run([need(helm), "template", "test", CHART, *words])


def pod_of(name: str) -> Json:
    [deployment] = [document for document in charted(name) if document["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def kinds(name: str) -> list[str]:
    return sorted(document["kind"] for document in charted(name))


@pytest.mark.parametrize("helm", HELMS)
def test_the_chart_lints(helm: str):
    done = run([need(helm), "lint", "--strict", CHART])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", VALUE_SETS)
def test_helm_3_renders_what_helm_4_does(name: str):
    assert charted(name, "helm3") == charted(name, "helm4")


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "gpuType=tpu"], "gpuType tpu is none of gpuTypes: blackwell, cpu, hopper"),
        (["--set", "store.kind=nfs"], "kind"),
        (["--set", "store.kind=bucket"], "claimName"),
        (["--set", "store.kind=url"], "url"),
        (["--set", "store.kind=url,store.url=my-warmup-store"], "url"),
        # Of another kind it would be left aside without a word.
        (["--set", "store.url=s3://my-warmup-store/warm"], "kind"),
        (["--set", "store.credentialsSecret=warmup-bucket"], "kind"),
        (["--set", "sidecar.setings.a=b"], "setings"),
        (["--set", "sidecar.settings.warm_budget_s=600"], "warm_budget_s"),
        (["--set", "engine.port=70000"], "port"),
        (["--set", "sidecar.settings.group_startup=LeaderReady"], "Neither ever is"),
        (["--set", "sidecar.fallbacks[0]=--a 1;--b 2"], "fallbacks"),
        (["--set", "sidecar.golden.configmap=a"], "configmap"),
        (["--set", "replicaCount=-1"], "replicaCount"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_values_that_can_not_be_meant_are_refused(helm: str, words: Sequence[str], said: str):
    done = template(*words, helm=helm)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(
    ("name", "model", "flags"),
    [
        ("hopper", "Qwen/Qwen3-8B-FP8", ["--quantization=fp8", "--kv-cache-dtype=fp8"]),
        ("blackwell", "nvidia/Qwen3-8B-NVFP4", ["--quantization=modelopt_fp4", "--kv-cache-dtype=nvfp4"]),
        ("cpu", "Qwen/Qwen3-0.6B", []),
    ],
)
def test_the_gpu_type_decides_model_and_formats(name: str, model: str, flags: list[str]):
    assert named(pod_of(name), "engine")["args"] == ["vllm", "serve", model, "--port=8000", *flags]


def test_a_gpu_type_of_ones_own_can_be_added():
    own = {
        "model": "m",
        "image": "i:1",
        "args": ["--tensor-parallel-size=4"],
        "resources": {"limits": {"nvidia.com/gpu": "4"}},
    }
    done = template("--set", "gpuType=mine", "--set-json", f"gpuTypes.mine={json.dumps(own)}")
    assert done.returncode == 0, done.stderr
    assert "--tensor-parallel-size=4" in done.stdout
    assert "--quantization" not in done.stdout


@pytest.mark.parametrize(
    ("name", "there", "absent"),
    [
        (
            "defaults",
            {"PersistentVolumeClaim", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount"},
            {"Role", "PodMonitor", "ConfigMap"},
        ),
        ("hopper", {"Role", "RoleBinding", "PodMonitor", "PrometheusRule", "ConfigMap"}, set()),
        ("cpu", {"Deployment", "Service"}, {"PersistentVolumeClaim", "NetworkPolicy", "PodDisruptionBudget"}),
        ("bucket", set(), {"PersistentVolumeClaim"}),
        ("bucket-url", set(), {"PersistentVolumeClaim"}),
        ("node-local", set(), {"PersistentVolumeClaim"}),
        ("existing-read-only", set(), {"PersistentVolumeClaim", "ServiceAccount"}),
    ],
)
def test_what_is_switched_on_is_there_and_nothing_else(name: str, there: set[str], absent: set[str]):
    assert there <= set(kinds(name))
    assert absent.isdisjoint(kinds(name))


def test_budgets_follow_the_settings_that_they_must_cover():
    [deployment] = [document["spec"] for document in charted("api-key") if document["kind"] == "Deployment"]
    pod = deployment["template"]["spec"]
    # 5 + 10 + 60 + 1200 + 15 + 3600 s, asked every 5 s.
    assert named(pod, "engine")["startupProbe"]["failureThreshold"] == 978
    assert deployment["progressDeadlineSeconds"] == 960 + 4890 + 600 + 900
    assert pod["terminationGracePeriodSeconds"] == 160


def test_every_object_of_a_release_carries_its_name_and_labels():
    for name in VALUE_SETS:
        for document in charted(name):
            assert document["metadata"]["name"].startswith("test-warm-engine"), name
            assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "test"


def test_the_selector_finds_the_pods_and_the_service_too():
    documents: dict[str, Any] = {document["kind"]: document for document in charted("scheduling")}
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        documents["Deployment"]["spec"]["selector"]["matchLabels"],
        documents["Service"]["spec"]["selector"],
        documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        documents["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert labels["team"] == "a"


def test_the_charts_version_is_the_codes():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == __version__
    assert values["sidecar"]["image"].endswith(f":{__version__}")


def test_every_value_has_a_schema_and_every_schema_a_value():
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, inner in values.items():
        known = schema["properties"][name].get("properties")
        if known is not None and isinstance(inner, dict):
            assert set(known) == set(inner), name
