"""Pods as people write them, and as the API server hands them to the webhook: those that get the sidecar, and those that can't.

What is expected of each stands in test_injector_shapes.py.
"""

from __future__ import annotations

import copy
from typing import Any

from sidecar.kube.injection.options import LABEL
from sidecar.kube.injection.shape import DOMAIN

Json = dict[str, Any]

GPU = {"limits": {"nvidia.com/gpu": "1"}}


def pod(*containers: Json, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    """Make a pod of a ReplicaSet: it has no name yet."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "engine-5c9f-", **({"annotations": annotations} if annotations else {})},
        "spec": {
            "terminationGracePeriodSeconds": 30,
            "restartPolicy": "Always",
            "containers": list(containers),
            **spec,
        },
    }


def engine(**fields: Any) -> Json:
    """Make vLLM's container, arguments only unless told otherwise."""
    return {"name": "vllm", "image": "vllm/vllm-openai:v0.25.1", "args": ["Qwen/Qwen3-8B"], "resources": GPU, **fields}


def proxy(**fields: Any) -> Json:
    """Make a container that is no engine."""
    return {"name": "proxy", "image": "envoyproxy/envoy:v1.30", "ports": [{"containerPort": 8080}], **fields}


HEALTH = {"httpGet": {"path": "/health", "port": 8000}}
SECRET_KEY = {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "engine", "key": "api-key"}}}
PLAIN_VOLUME: Json = {"name": "cache", "emptyDir": {}}
CACHE_MOUNT = {"name": "cache", "mountPath": "/var/cache/engine"}

INJECTED: dict[str, Json] = {
    "args only": pod(engine()),
    "args only, old entrypoint": pod(engine(image="vllm/vllm-openai:v0.9.2", args=["--model", "Qwen/Qwen3-8B"])),
    "args only, by digest": pod(
        engine(image="mirror.example.com:5000/hub/vllm-openai@sha256:" + "a" * 64, args=["--model=Qwen/Qwen3-8B"])
    ),
    "command and args": pod(engine(image="example.com/own:1", command=["vllm", "serve"], args=["m", "--port", "9001"])),
    "command only": pod(
        engine(
            image="example.com/own:1", command=["/opt/venv/bin/python3.12", "-m", "vllm.entrypoints.openai.api_server"]
        )
    ),
    "shell": pod(
        engine(command=["/bin/sh", "-c", "exec vllm serve m --port=${PORT}"], env=[{"name": "PORT", "value": "8100"}])
    ),
    "annotated command": pod(
        engine(image="example.com/own:1"), annotations={f"{DOMAIN}/engine-command": '["python3", "-m", "my.engine"]'}
    ),
    "several containers": pod(proxy(), engine(), proxy(name="logs", ports=[])),
    "several engines, one named": pod(
        engine(), engine(name="draft", args=["d", "--port=8001"]), annotations={f"{DOMAIN}/container": "vllm"}
    ),
    "found by its GPU": pod(proxy(), engine(image="example.com/own:1", command=["serve-it"])),
    "volumes of the same name": pod(
        engine(volumeMounts=[{"name": "warmup-control", "mountPath": "/data"}]),
        volumes=[{"name": "warmup-control", "emptyDir": {}}, {"name": "warmup-store", "emptyDir": {}}],
    ),
    "own live cache": pod(engine(volumeMounts=[CACHE_MOUNT]), volumes=[PLAIN_VOLUME]),
    "init containers": pod(
        engine(),
        initContainers=[
            {"name": "weights", "image": "busybox", "command": ["true"]},
            proxy(name="mesh", restartPolicy="Always"),
        ],
    ),
    "host users": pod(engine(), hostUsers=False),
    "read-only root": pod(
        engine(securityContext={"readOnlyRootFilesystem": True, "runAsUser": 1000, "runAsNonRoot": True}),
        securityContext={"fsGroup": 1234, "runAsUser": 1000},
    ),
    "host network": pod(
        engine(args=["m", "--port=8003"], ports=[{"containerPort": 8003, "hostPort": 8003}]), hostNetwork=True
    ),
    "port taken": pod(engine(), proxy(ports=[{"containerPort": 9797}])),
    "liveness probe": pod(
        engine(livenessProbe={**HEALTH, "initialDelaySeconds": 30, "periodSeconds": 30, "failureThreshold": 3})
    ),
    "startup probe": pod(
        engine(startupProbe={**HEALTH, "periodSeconds": 10, "failureThreshold": 30}, livenessProbe=HEALTH)
    ),
    "long startup probe": pod(engine(startupProbe={**HEALTH, "periodSeconds": 60, "failureThreshold": 120})),
    "key in a secret": pod(engine(env=[SECRET_KEY])),
    "tls": pod(engine(args=["m", "--ssl-keyfile", "/k", "--ssl-certfile", "/c"])),
    "store of a claim": pod(
        engine(), annotations={f"{DOMAIN}/store": "pvc:kernels", f"{DOMAIN}/store-mode": "read-only"}
    ),
    "store of a node": pod(engine(), annotations={f"{DOMAIN}/store": "hostPath:/var/lib/warmup-store"}),
    "settings": pod(
        engine(), annotations={f"setting.{DOMAIN}/warm_budget_s": "600", f"setting.{DOMAIN}/drain_s": "300"}
    ),
    "readiness gate": pod(engine(), annotations={f"{DOMAIN}/readiness-gate": "true"}),
    "without launcher": pod(
        engine(image="example.com/own@sha256:" + "b" * 64, env=[{"name": "A_CACHE", "value": "/mine"}]),
        annotations={f"{DOMAIN}/launcher": "false"},
    ),
    "without native sidecars": pod(engine(), annotations={f"{DOMAIN}/native": "false"}),
    "without launcher and native sidecars": pod(
        engine(image="example.com/own@sha256:" + "b" * 64, env=[{"name": "LWS_WORKER_INDEX", "value": "0"}]),
        annotations={f"{DOMAIN}/launcher": "false", f"{DOMAIN}/native": "false", f"{DOMAIN}/store": "pvc:kernels"},
    ),
    "golden files": pod(
        engine(),
        annotations={
            f"{DOMAIN}/golden": "warmup-golden/golden.yaml",
            f"setting.{DOMAIN}/fallbacks": "--kv-cache-dtype auto; VLLM_USE_DEEP_GEMM=0",
            f"setting.{DOMAIN}/on_golden_failed": "fallback,hold",
        },
    ),
    "pre-stop hook": pod(engine(lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "sleep 40"]}}})),
    "job": pod(engine(), restartPolicy="Never"),
    "group of pods": pod(engine(env=[{"name": "LWS_LEADER_ADDRESS", "value": "engine-0.engine"}])),
    "no spec beyond containers": {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {},
        "spec": {"containers": [engine()]},
    },
}

#: Pod → a part of the warning with which it is admitted as it is.
REFUSED: dict[str, tuple[Json, str]] = {
    "unknown entrypoint": (pod(engine(image="example.com/own:1")), "set warmup-sidecar.io/engine-command"),
    "no arguments": (pod(engine(args=[])), "names no model"),
    "which is the engine": (pod(proxy(ports=[]), proxy(name="other", ports=[])), "set warmup-sidecar.io/container"),
    "two engines": (pod(engine(), engine(name="draft")), "which of vllm, draft"),
    "no such container": (pod(engine(), annotations={f"{DOMAIN}/container": "x"}), "the pod has vllm"),
    "shared live cache": (
        pod(
            engine(volumeMounts=[CACHE_MOUNT]), volumes=[{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}]
        ),
        "private to the pod",
    ),
    "part of a live cache": (
        pod(engine(volumeMounts=[{**CACHE_MOUNT, "subPath": "x"}]), volumes=[PLAIN_VOLUME]),
        "private to the pod",
    ),
    "control directory taken": (
        pod(engine(volumeMounts=[{"name": "cache", "mountPath": "/run/warmup/"}]), volumes=[PLAIN_VOLUME]),
        "set warmup-sidecar.io/control-dir",
    ),
    "windows": (pod(engine(), os={"name": "windows"}), "Windows"),
    "sidecar by hand": (
        pod(engine(), initContainers=[{"name": "warmup-sidecar", "image": "x", "restartPolicy": "Always"}]),
        "a container of this name already",
    ),
    "job without native sidecars": (
        pod(engine(), restartPolicy="OnFailure", annotations={f"{DOMAIN}/native": "false"}),
        "to end by itself",
    ),
    "nothing of a pod": ({"metadata": {}, "spec": {"containers": "none"}}, "can't read it"),
}


def labelled(document: Json) -> Json:
    """Give the pod with the label that selects it."""
    made = copy.deepcopy(document)
    made.setdefault("metadata", {}).setdefault("labels", {})[LABEL] = "true"
    return made


def review(document: Json, **fields: Any) -> Json:
    """Make the API server's question about the creation of a pod (AdmissionReview v1)."""
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "inference",
        "operation": "CREATE",
        "object": document,
        "dryRun": False,
        **fields,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
