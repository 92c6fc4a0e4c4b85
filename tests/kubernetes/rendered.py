"""Everything in k8s/ as the documents that a cluster would get: kustomizations, the chart's value sets, plain examples.

Nothing is judged here.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.prepare import kubernetes_tools

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
CHART = K8S / "chart"

#: Native sidecars are on by default from 1.29; 1.37 is the newest whose schemas are published.
VERSIONS = [f"1.{minor}" for minor in range(29, 38)]

#: Kinds whose pods are in `spec.template.spec`, and those with more than one.
TEMPLATED = ("Deployment", "DaemonSet", "StatefulSet", "Job")

#: Files of Kubernetes' own format that are no manifests.
NO_MANIFESTS = ("prometheus-adapter.yaml", "compose.yaml", "options.yaml")


def _kustomizations(kind: str) -> list[str]:
    found = []
    for path in sorted(K8S.rglob("kustomization.yaml")):
        if yaml.safe_load(path.read_text(encoding="utf-8"))["kind"] == kind:
            found.append(path.parent.relative_to(K8S).as_posix())
    return found


KUSTOMIZATIONS = _kustomizations("Kustomization")
#: Parts that are added to the base; one of them alone is no kustomization.
COMPONENTS = [name for name in _kustomizations("Component") if name.startswith("components/")]

#: Name → what follows `helm template`. Together they reach every branch of the templates.
VALUE_SETS: Mapping[str, Sequence[str]] = {
    "defaults": (),
    "hopper": (
        "--set",
        "gpuType=hopper,sidecar.readinessGate=true,sidecar.processMetrics=true,"
        "monitoring.podMonitor=true,monitoring.webhook=true,monitoring.rules=true,monitoring.dashboard=true",
    ),
    "blackwell": ("--set", "gpuType=blackwell,engine.kvCacheDtype=nvfp4,sidecar.events=true"),
    "cpu": ("--set", "gpuType=cpu,store.kind=none,networkPolicy.enabled=false,podDisruptionBudget.enabled=false"),
    "plain-sidecar": ("--set", "sidecar.native=false,sidecar.readinessGate=true"),
    "signed-store": ("--set", "store.trustedKeys=warmup-trusted-keys"),
    "golden": (
        "--set",
        "sidecar.golden.configMap=warmup-golden,sidecar.golden.key=golden.yaml",
        "--set-json",
        'sidecar.fallbacks=["--kv-cache-dtype auto","VLLM_USE_DEEP_GEMM=0"]',
    ),
    "golden-folder": (
        "--set",
        "sidecar.native=false,sidecar.golden.configMap=warmup-golden,sidecar.fallbacks[0]=--kv-cache-dtype auto",
        "--set-string",
        "sidecar.settings.on_golden_failed=fallback\\,serve",
    ),
    "node-local": ("--set", "store.kind=nodeLocal"),
    "bucket": ("--set", "store.kind=bucket,store.claimName=warmup-bucket"),
    "bucket-url": (
        "--set",
        "store.kind=url,store.url=s3://my-warmup-store/warm,store.credentialsSecret=warmup-bucket,"
        "store.packCache.path=/var/lib/warmup-packs",
    ),
    "existing-read-only": (
        "--set",
        "store.kind=existing,store.claimName=mine,store.readOnly=true,serviceAccount.create=false",
    ),
    "api-key": (
        "--set",
        "engine.apiKey.secretName=engine-key,engine.port=8200,sidecar.port=9898,engine.coldStartSeconds=3600",
        "--set-string",
        "sidecar.settings.single_flight_s=1200,sidecar.settings.warm_budget_s=600,sidecar.settings.drain_s=120",
    ),
    "scheduling": (
        "--set",
        "nodeSelector.zone=a,tolerations[0].key=nvidia.com/gpu,tolerations[0].operator=Exists,imagePullSecrets[0].name=pull,"
        "podLabels.team=a,podAnnotations.note=b,store.storageClassName=fast",
        "--set-json",
        'engine.weights={"persistentVolumeClaim":{"claimName":"weights"}}',
    ),
}


def need(tool: str) -> Path:
    """Give a tool of the tests, or skip."""
    found = kubernetes_tools.tool(tool)
    if found is None:
        pytest.skip(f"no {tool}; `python -m tests --only {kubernetes_tools.STAGE}` says why")
    return found


def run(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a tool with a home of its own: Helm and kubectl look for settings and plug-ins there."""
    with tempfile.TemporaryDirectory(prefix="warmup-sidecar-home-") as home:
        environment = {"HOME": home, "PATH": "/usr/bin:/bin", "HELM_NO_PLUGINS": "1"}
        return subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, check=False, timeout=120, env=environment
        )


def loaded(text: str) -> list[Json]:
    """Read YAML documents; empty ones are left out, lists taken apart."""
    found: list[Json] = []
    for document in yaml.safe_load_all(text):
        if document:
            found += document["items"] if document.get("kind") == "List" else [document]
    return found


@functools.cache
def kustomized(name: str) -> tuple[Json, ...]:
    """Give what `kubectl kustomize` makes of a folder of k8s/; a component is laid over the base."""
    kubectl = need("kubectl")
    folder = K8S / name
    with tempfile.TemporaryDirectory(prefix="warmup-sidecar-k8s-") as scratch:
        if name in COMPONENTS:
            copy = Path(scratch, "k8s")
            shutil.copytree(K8S, copy)
            folder = copy / "laid-over"
            folder.mkdir()
            content = {"resources": ["../base"], "components": [f"../{name}"]}
            (folder / "kustomization.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        done = run([kubectl, "kustomize", folder])
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return tuple(loaded(done.stdout))


@functools.cache
def charted(name: str, helm: str = "helm4") -> tuple[Json, ...]:
    """Give what Helm makes of the chart with a value set."""
    done = run([need(helm), "template", "test", CHART, "--namespace", "inference", *VALUE_SETS[name]])
    assert done.returncode == 0, done.stderr
    return tuple(loaded(done.stdout))


@functools.cache
def plain() -> tuple[tuple[str, Json], ...]:
    """Give the manifests in k8s/examples that no kustomization names, with their file names."""
    named: set[Path] = set()
    for path in K8S.rglob("kustomization.yaml"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        named |= {(path.parent / entry).resolve() for entry in content.get("resources", [])}
        named |= {(path.parent / entry["path"]).resolve() for entry in content.get("patches", []) if "path" in entry}
    found = []
    for path in sorted((K8S / "examples").rglob("*.yaml")):
        if path.name not in ("kustomization.yaml", *NO_MANIFESTS) and path.resolve() not in named:
            found += [(path.relative_to(K8S).as_posix(), each) for each in loaded(path.read_text(encoding="utf-8"))]
    return tuple(found)


def everything() -> Iterator[tuple[str, Json]]:
    """Give every document with where it comes from."""
    for name in (*KUSTOMIZATIONS, *COMPONENTS):
        yield from ((name, document) for document in kustomized(name))
    for name in VALUE_SETS:
        yield from ((f"chart {name}", document) for document in charted(name))
    yield from plain()


def pods(document: Json) -> Iterator[Json]:
    """Give the pod specs in a document."""
    spec = document.get("spec") or {}
    if document["kind"] == "Pod":
        yield spec
    elif document["kind"] in TEMPLATED:
        yield spec["template"]["spec"]
    elif document["kind"] == "CronJob":
        yield spec["jobTemplate"]["spec"]["template"]["spec"]
    elif document["kind"] == "AnalysisTemplate":
        jobs = [metric["provider"]["job"] for metric in spec["metrics"] if "job" in metric["provider"]]
        yield from (job["spec"]["template"]["spec"] for job in jobs)
    elif document["kind"] == "LeaderWorkerSet":
        yield from (
            template["spec"] for name, template in spec["leaderWorkerTemplate"].items() if name.endswith("Template")
        )


def containers(pod: Json) -> list[Json]:
    """Give all containers of a pod's spec."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def named(pod: Json, name: str) -> Json:
    """Give the container of this name."""
    [found] = [container for container in containers(pod) if container["name"] == name]
    return found
