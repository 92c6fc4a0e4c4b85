"""Puts the sidecar into a pod: volumes, containers, launcher before the engine's command, probe budgets, grace period.

The pod given is not changed, and nothing here talks to anybody. Which container is the engine is decided in `engine.py`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.kube.condition import CONDITION
from sidecar.kube.injection import budgets, probing
from sidecar.kube.injection.engine import (
    NotInjected,
    command_of,
    find_engine,
    has_plain_key,
    interpreter,
    parse_image,
    secret_of,
    url_of,
)
from sidecar.kube.injection.options import INJECTED, Options, for_pod, key
from sidecar.kube.injection.places import Places
from sidecar.kube.injection.shape import (
    API_KEY_FILE,
    INIT_NAME,
    NAME,
    RESTORE_NAME,
    STORE_PATH,
    Shape,
    engine_mounts,
    launcher_container,
    restore_container,
    sidecar_container,
    volumes,
)
from sidecar.kube.pod_object import unanswered

Json = dict[str, Any]

#: Begins the names of our volumes in a pod that somebody else wrote.
PREFIX = "warmup-"
#: Variables of an engine's container that say where it stands in a group of pods (LeaderWorkerSet).
GROUP_VARIABLES = re.compile(r"^LWS_")


@dataclass(frozen=True)
class Mutation:
    """The pod as it is to be, whether the sidecar was put in, and sentences for whoever created it."""

    pod: Json
    injected: bool
    warnings: tuple[str, ...] = ()


def inject(pod: Json, defaults: Options, caches: Mapping[str, str], version: str) -> Mutation:
    """Put the sidecar into a pod, or say why it stays as it is. Never raises for what a pod may look like.

    `caches` are the variables that put the engine's caches under a live cache named `{live}`; only an engine without
    launcher gets them here. Doing it again changes nothing.
    """
    try:
        annotations = (pod.get("metadata") or {}).get("annotations") or {}
        if INJECTED in annotations and NAME in _names(pod["spec"]):
            return Mutation(pod, False)
        options, warnings = for_pod(defaults, annotations)
        found = _Injection(_without_nulls(pod), options, caches, version)
        found.run()
        return Mutation(found.pod, True, (*warnings, *found.warnings))
    except NotInjected as why:
        return Mutation(pod, False, (f"The pod starts without warmup-sidecar: {why}",))
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        return Mutation(pod, False, (f"The pod starts without warmup-sidecar, whose webhook can't read it ({what}).",))


class _Injection:
    """One pod on its way."""

    def __init__(self, pod: Json, options: Options, caches: Mapping[str, str], version: str) -> None:
        self.pod, self._options, self._caches, self._version = pod, options, caches, version
        self.warnings: list[str] = []
        self._spec: Json = pod["spec"]

    def run(self) -> None:
        """Change the pod. Raises NotInjected before anything is changed."""
        self._refuse_what_can_not_be()
        engine = self._spec["containers"][find_engine(self._spec["containers"], self._options)]
        places = Places(self.pod, engine, self._options, PREFIX)
        own = places.check()
        live_cache_volume = str(own.get("name", ""))
        shape = self._shape(engine, places, own)
        command = command_of(engine, self._options) if shape.launcher else []
        if self._options.engine_command and engine.get("command"):
            self.warnings.append(f"{key('engine-command')} is not used: the container has a command of its own.")
        self._add_volumes(shape, engine, live_cache_volume)
        self._add_containers(shape, engine, live_cache_volume)
        self._change_engine(shape, engine, command, live_cache_volume)
        self._change_pod(shape, engine)

    def _refuse_what_can_not_be(self) -> None:
        spec = self._spec
        ours = {NAME} if self._options.native else {NAME, INIT_NAME if self._options.launcher else RESTORE_NAME}
        if taken := sorted(ours & {str(name) for name in _names(spec)}):
            raise NotInjected(f"it has a container of this name already ({taken[0]}).")
        selected = (spec.get("nodeSelector") or {}).get("kubernetes.io/os")
        if "windows" in ((spec.get("os") or {}).get("name"), selected):
            raise NotInjected("it is a pod for Windows.")
        if not self._options.native and spec.get("restartPolicy", "Always") != "Always":
            raise NotInjected("it is to end by itself, and without native sidecars it never would.")
        if not self._options.image:
            raise NotInjected("the injector was started without --image.")

    def _shape(self, engine: Json, places: Places, own: Json) -> Shape:
        options = self._options
        settings = dict(options.settings)
        if not options.launcher and not settings.get("image"):
            reference = str(engine.get("image", ""))
            settings |= {"image": reference} if parse_image(reference).digest.startswith("sha256:") else {}
        secret = secret_of(engine, options)
        if secret is None and has_plain_key(engine):
            self.warnings.append(
                f"The engine's API key stands in the pod; put it into a Secret and name that in {key('api-key-secret')}, "
                "else warm-up is refused by the engine."
            )
        return Shape(
            image=options.image,
            engine_url=url_of(engine, options),
            port=places.port(url_of(engine, options)),
            control_dir=options.control_dir,
            live_cache=options.live_cache,
            store=STORE_PATH if options.store else "",
            store_read_only=options.store_mode == "read-only",
            settings=settings,
            prefix=places.prefix,
            group=self._group(),
            native=options.native,
            launcher=options.launcher,
            gate=self._gate(),
            api_key=secret is not None,
            golden=options.golden,
            resources=options.resources,
            # Of a volume that is there already it is the pod's word that counts: the kubelet would end the pod.
            live_cache_size=str((own.get("emptyDir") or {}).get("sizeLimit", 0)) if own else options.live_cache_size,
        )

    def _gate(self) -> bool:
        """Say whether the sidecar writes the condition: a pod that waits for it asks for that, whatever the options say."""
        listed = {"conditionType": CONDITION} in (self._spec.get("readinessGates") or [])
        return self._options.readiness_gate or listed

    def _group(self) -> int:
        given = (self._spec.get("securityContext") or {}).get("fsGroup")
        return given if isinstance(given, int) else self._options.group

    def _add_volumes(self, shape: Shape, engine: Json, live_cache: str) -> None:
        ours = [each for each in volumes(shape) if not (live_cache and each["name"] == shape.volume("live-cache"))]
        kind, _, name = self._options.store.partition(":")
        if kind == "pvc":
            read_only = {"readOnly": True} if shape.store_read_only else {}
            ours.append({"name": shape.volume("store"), "persistentVolumeClaim": {"claimName": name, **read_only}})
        elif kind == "hostPath":
            ours.append({"name": shape.volume("store"), "hostPath": {"path": name, "type": "Directory"}})
        else:
            self.warnings.append(
                f"No store was chosen ({key('store')}): the pod is warmed up and its kernels are lost."
            )
        secret = secret_of(engine, self._options)
        if secret is not None:
            item = {"key": secret[1], "path": API_KEY_FILE}
            # Read by the group, and not by the world. A key that is missing must not keep the engine from starting.
            source = {"secretName": secret[0], "defaultMode": 0o440, "optional": True, "items": [item]}
            ours.append({"name": shape.volume("api-key"), "secret": source})
        self._spec.setdefault("volumes", []).extend(ours)

    def _add_containers(self, shape: Shape, engine: Json, live_cache: str) -> None:
        container = sidecar_container(shape)
        _mount_instead(container, shape, live_cache)
        container["env"] += [
            copy.deepcopy(entry) for entry in engine.get("env") or [] if GROUP_VARIABLES.match(str(entry.get("name")))
        ]
        if shape.native:
            self._spec.setdefault("initContainers", []).append(container)
            return
        first = launcher_container(shape)
        if not shape.launcher:
            # Without it the engine would start beside the restore.
            same = {field: copy.deepcopy(container[field]) for field in ("env", "volumeMounts")}
            first = {**restore_container(shape), **same}
        self._spec.setdefault("initContainers", []).append(first)
        # The kubelet starts containers in this order, and the engine's launcher waits for the sidecar.
        self._spec["containers"].insert(0, container)

    def _change_engine(self, shape: Shape, engine: Json, command: list[str], live_cache: str) -> None:
        mounts = {"volumeMounts": engine_mounts(shape)}
        _mount_instead(mounts, shape, live_cache)
        there = {mount.get("mountPath") for mount in engine.get("volumeMounts") or []}
        added = [mount for mount in mounts["volumeMounts"] if mount["mountPath"] not in there]
        engine.setdefault("volumeMounts", []).extend(added)
        environment = {entry.get("name") for entry in engine.get("env") or []}
        extra: dict[str, str] = {}
        if shape.launcher:
            engine["command"] = [interpreter(command, self._options), shape.launcher_path, "--", *command]
            if not shape.native:
                extra["WARMUP_LAUNCHER_GRACE_S"] = str(budgets.PLAIN_GRACE_S)
        else:
            extra |= {name: value.replace("{live}", shape.live_cache) for name, value in self._caches.items()}
            probing.hold_termination(engine)
        new = [{"name": name, "value": value} for name, value in extra.items() if name not in environment]
        if new:
            engine.setdefault("env", []).extend(new)
        probing.raise_budgets(engine, shape, self._options.engine_start_s)
        if sentence := unanswered(engine):
            self.warnings.append(sentence)

    def _change_pod(self, shape: Shape, engine: Json) -> None:
        security = self._spec.setdefault("securityContext", {})
        if not isinstance(security.get("fsGroup"), int):
            security["fsGroup"] = shape.group
            # Without this, every start would walk the volumes to change owners.
            security.setdefault("fsGroupChangePolicy", "OnRootMismatch")
        needed = probing.grace_s(engine, shape)
        if self._spec.get("terminationGracePeriodSeconds", 30) < needed:
            self._spec["terminationGracePeriodSeconds"] = needed
        if shape.gate:
            gates = self._spec.setdefault("readinessGates", [])
            if {"conditionType": CONDITION} not in gates:
                gates.append({"conditionType": CONDITION})
        metadata = self.pod.setdefault("metadata", {})
        metadata.setdefault("annotations", {})[INJECTED] = self._version


def _without_nulls(value: Any) -> Any:
    """Copy an object; a field that is null is the same as one that is not there (Kubernetes API conventions)."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _names(spec: Json) -> list[object]:
    return [each.get("name") for each in [*(spec.get("initContainers") or []), *spec["containers"]]]


def _mount_instead(container: Json, shape: Shape, live_cache: str) -> None:
    """Use the volume that the engine has at the live cache's path already."""
    for mount in container["volumeMounts"]:
        if live_cache and mount["name"] == shape.volume("live-cache"):
            mount["name"] = live_cache
