"""The sidecar in a pod, declared once: container, probes, environment, volumes, rights.

The webhook's output is made from it; manifests and chart are compared with it by tests/contract/test_pod_shape.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.config import Settings, variable
from sidecar.kube.injection import budgets

Json = dict[str, Any]

NAME = "warmup-sidecar"
INIT_NAME = "warmup-launcher"
RESTORE_NAME = "warmup-restore"
PORT_NAME = "warmup"
DOMAIN = "warmup-sidecar.io"

#: The user of the image (k8s/Containerfile) and the group that both containers share: engine images run as root,
#: the sidecar does not.
USER, GROUP = 10001, 2000
#: Where the store is mounted in the sidecar, and only there.
STORE_PATH = "/mnt/store"
#: Where client libraries look for the pod's token; nothing but the sidecar gets one.
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
API_KEY_FOLDER = "/run/secrets/warmup-api-key"
API_KEY_FILE = "api-key"
#: Where a ConfigMap with golden files is mounted in the sidecar, and only there.
GOLDEN_PATH = "/etc/warmup/golden"

#: The launcher, a few small files for each start of the engine, and a socket; in memory, where no busy disk delays them.
CONTROL_SIZE = "64Mi"
#: A full set of kernels is a few GB, and a restore stages a second one beside it.
LIVE_CACHE_SIZE = "20Gi"
#: Idle it takes less than 1 % of a core and less than 64 MiB; the rest is for the process that packs and unpacks. No limit for
#: cpu: it would slow the restore that the engine's start waits for.
RESOURCES: Mapping[str, Mapping[str, str]] = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"memory": "1Gi"},
}
#: A token lives an hour; the kubelet renews it in time.
TOKEN_S = 3600


@dataclass(frozen=True)
class Shape:
    """What one pod's sidecar looks like. `prefix` begins the names of volumes; `settings` are those beyond the first five.

    `store` is the path in the sidecar, empty for none. `group` is the gid both containers share. `golden` is a ConfigMap
    with golden files, or one of its keys as `NAME/KEY`.
    """

    image: str
    engine_url: str = "http://127.0.0.1:8000"
    port: int = 9797
    control_dir: str = "/run/warmup"
    live_cache: str = "/var/cache/engine"
    store: str = STORE_PATH
    store_read_only: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    group: int = GROUP
    native: bool = True
    launcher: bool = True
    gate: bool = False
    api_key: bool = False
    golden: str = ""
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: RESOURCES)
    live_cache_size: str = LIVE_CACHE_SIZE

    def volume(self, name: str) -> str:
        """Name a volume of ours."""
        return self.prefix + name

    def number(self, name: str) -> float:
        """Give a duration that the sidecar of this pod goes by, in seconds."""
        default = Settings.model_fields[name].default
        try:
            return float(self.settings.get(name, default))
        except ValueError:
            return float(default)

    @property
    def launcher_path(self) -> str:
        """Give the path of the launcher in the engine's container."""
        return f"{self.control_dir}/launcher.py"


def sidecar_container(shape: Shape) -> Json:
    """Make the sidecar's container: a native sidecar, or a plain container where the cluster has none."""
    native = {"restartPolicy": "Always"} if shape.native else {}
    return {
        "name": NAME,
        "image": shape.image,
        **native,
        "args": ["run"],
        "env": environment(shape),
        "ports": [{"name": PORT_NAME, "containerPort": shape.port}],
        **probes(shape),
        "resources": {name: dict(amounts) for name, amounts in shape.resources.items()},
        "securityContext": rights(shape),
        "volumeMounts": mounts(shape),
    }


def launcher_container(shape: Shape) -> Json:
    """Make the init container that lays the launcher down, for clusters without native sidecars."""
    return {
        "name": INIT_NAME,
        "image": shape.image,
        "args": ["launcher"],
        "env": [{"name": variable("control_dir"), "value": shape.control_dir}],
        "resources": {name: dict(amounts) for name, amounts in shape.resources.items()},
        "securityContext": rights(shape),
        "volumeMounts": [{"name": shape.volume("control"), "mountPath": shape.control_dir}],
    }


def restore_container(shape: Shape) -> Json:
    """Make the init container that restores, where neither a native sidecar nor a launcher makes the engine wait for it.

    It has the sidecar's environment and volumes: what it laid down, the sidecar beside the engine knows by them.
    """
    whole = sidecar_container(shape)
    same = {field: whole[field] for field in ("image", "env", "resources", "securityContext", "volumeMounts")}
    return {"name": RESTORE_NAME, "args": ["restore"], **same}


def environment(shape: Shape) -> list[Json]:
    """Give the sidecar's environment: what the pod decides, then the settings that somebody chose."""
    found = {
        "engine_url": shape.engine_url,
        "listen": f"0.0.0.0:{shape.port}",
        "control_dir": shape.control_dir,
        "live_cache": shape.live_cache,
        "live_cache_limit_bytes": shape.live_cache_size,
    }
    if shape.store:
        found["store"] = shape.store
    if shape.store_read_only:
        found["store_mode"] = "read-only"
    if not shape.launcher:
        found["launcher"] = "false"
    if shape.api_key:
        found["api_key_file"] = f"{API_KEY_FOLDER}/{API_KEY_FILE}"
    if shape.golden:
        found["golden"] = "/".join([GOLDEN_PATH, *shape.golden.split("/")[1:]])
    if shape.gate:
        found["readiness_gate"] = "true"
    found.update(shape.settings)
    listed: list[Json] = [{"name": variable(name), "value": value} for name, value in found.items()]
    if shape.gate:
        # A host name may be cut or another than the pod's.
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}
        listed.append({"name": variable("pod_name"), "valueFrom": source})
    return listed


def probes(shape: Shape) -> Json:
    """Make the three probes. What each number is for stands beside it."""
    start_s = budgets.sidecar_start_s(shape.launcher, shape.number("restore_timeout_s"))
    startup = {
        "httpGet": {"path": "/startupz", "port": PORT_NAME},
        # Until it has passed, the engine's container is not started.
        "periodSeconds": 1,
        "timeoutSeconds": 1,
        # Longer than the daemon's own cap, after which it answers 200 whatever happened: this probe never ends a sidecar
        # that only waits.
        "failureThreshold": budgets.attempts(start_s, 1),
    }
    readiness = {
        "httpGet": {"path": "/readyz", "port": PORT_NAME},
        # An engine that died must be out of the endpoints in seconds; the daemon sees it within 2 s.
        "periodSeconds": 1,
        # Answered from memory within 20 ms; 2 s tolerates a node whose processors are all busy.
        "timeoutSeconds": 2,
        # The answer is a decision, not a measurement, so the first one counts.
        "failureThreshold": 1,
    }
    liveness = {
        "httpGet": {"path": "/livez", "port": PORT_NAME},
        # Half a minute without a heartbeat is a hang, not load.
        "periodSeconds": 10,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }
    # A plain container needs no startup probe: nobody waits for it.
    first = {"startupProbe": startup} if shape.native else {}
    return {**first, "readinessProbe": readiness, "livenessProbe": liveness}


def rights(shape: Shape) -> Json:
    """Make the security context: everything that Kubernetes' `restricted` standard asks for, and a read-only root."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": shape.group,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def mounts(shape: Shape) -> list[Json]:
    """Give the sidecar's mounts; the first two are the engine's as well."""
    found = engine_mounts(shape)
    if shape.store:
        read_only = {"readOnly": True} if shape.store_read_only else {}
        found.append({"name": shape.volume("store"), "mountPath": shape.store, **read_only})
    if shape.api_key:
        found.append({"name": shape.volume("api-key"), "mountPath": API_KEY_FOLDER, "readOnly": True})
    if shape.golden:
        found.append({"name": shape.volume("golden"), "mountPath": GOLDEN_PATH, "readOnly": True})
    if shape.gate:
        found.append({"name": shape.volume("token"), "mountPath": TOKEN_PATH, "readOnly": True})
    return found


def engine_mounts(shape: Shape) -> list[Json]:
    """Give what the engine's container mounts, at the sidecar's paths: compiled kernels hold absolute ones."""
    return [
        {"name": shape.volume("control"), "mountPath": shape.control_dir},
        {"name": shape.volume("live-cache"), "mountPath": shape.live_cache},
    ]


def volumes(shape: Shape) -> list[Json]:
    """Make the volumes that need nothing of the cluster: control, live cache, golden files, the sidecar's own token."""
    found: list[Json] = [
        {"name": shape.volume("control"), "emptyDir": {"medium": "Memory", "sizeLimit": CONTROL_SIZE}},
        {"name": shape.volume("live-cache"), "emptyDir": {"sizeLimit": shape.live_cache_size}},
    ]
    if shape.golden:
        # A ConfigMap that is missing must not keep the engine from starting; the sidecar says that nothing is there.
        source = {"name": shape.golden.split("/")[0], "optional": True}
        found.append({"name": shape.volume("golden"), "configMap": source})
    return [*found, token_volume(shape)] if shape.gate else found


def token_volume(shape: Shape) -> Json:
    """Make the token that only the sidecar mounts, as the kubelet would have made it for every container."""
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources: list[Json] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_S}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return {"name": shape.volume("token"), "projected": {"sources": sources}}


def engine_startup_probe(shape: Shape, port: str | int, cold_start_s: float) -> Json:
    """Make the engine's startup probe: launcher wait, restore and cold compile fit into it."""
    waits = (shape.number("restore_timeout_s"), shape.number("single_flight_s"))
    budget_s = budgets.engine_start_s(*waits, cold_start_s)
    return {
        "httpGet": {"path": "/health", "port": port},
        "periodSeconds": budgets.ENGINE_PROBE_PERIOD_S,
        "timeoutSeconds": budgets.ENGINE_PROBE_PERIOD_S,
        "failureThreshold": budgets.attempts(budget_s, budgets.ENGINE_PROBE_PERIOD_S),
    }
