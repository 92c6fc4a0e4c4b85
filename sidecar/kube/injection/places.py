"""Names, paths and ports that a pod has taken already, and what is left for ours.

Nothing is changed here.
"""

from __future__ import annotations

import posixpath
import urllib.parse
from typing import Any

from sidecar.kube.injection.engine import NotInjected
from sidecar.kube.injection.options import Options, key
from sidecar.kube.injection.shape import API_KEY_FOLDER, GOLDEN_PATH, STORE_PATH, TOKEN_PATH

Json = dict[str, Any]

#: Port of probes and metrics; with the host's network it follows the engine's, so that two pods of a node differ.
PORT, ENGINE_PORT = 9797, 8000
#: Volumes that no other pod has, and those in which no directory can be made to mount something at.
PRIVATE = {"emptyDir", "ephemeral"}
SEALED = {"configMap", "secret", "downwardAPI", "projected", "image"}
OURS = ("control", "live-cache", "store", "api-key", "golden", "token")


class Places:
    """What is taken in one pod. `prefix` makes the names of our volumes unlike all that are there."""

    def __init__(self, pod: Json, engine: Json, options: Options, prefix: str) -> None:
        self._spec: Json = pod["spec"]
        self._engine, self._options = engine, options
        self._volumes = {str(volume.get("name")): volume for volume in self._spec.get("volumes") or []}
        self.prefix = prefix
        number = 1
        while any(self.prefix + name in self._volumes for name in OURS):
            number += 1
            self.prefix = f"{prefix}{number}-"

    def check(self) -> Json:
        """Give the engine's own volume at the live cache's path, if it can be used; empty: make one.

        Raises NotInjected where something else lies at our paths, in one of them, or around one where nothing can be made.
        """
        self._check_ours()
        found: Json = {}
        for mount in self._engine.get("volumeMounts") or []:
            path = posixpath.normpath(str(mount.get("mountPath", "")))
            volume = self._volumes.get(str(mount.get("name")), {})
            if _inside(path, self._options.live_cache):
                plain = not (mount.get("subPath") or mount.get("subPathExpr") or mount.get("readOnly"))
                if not PRIVATE & set(volume) or not plain or path != self._options.live_cache:
                    raise NotInjected(
                        f"its volume {mount.get('name')} lies at {path}, where the live cache belongs, which must be "
                        f"private to the pod; move it, or set {key('live-cache')} to another path."
                    )
                found = volume
            elif _inside(path, self._options.control_dir):
                raise NotInjected(
                    f"its volume {mount.get('name')} lies at {path}; move it, or set {key('control-dir')} to another path."
                )
            elif mount.get("readOnly") or SEALED & set(volume):
                self._check_around(path, str(mount.get("name")))
        return found

    def _check_ours(self) -> None:
        """Refuse paths of ours that lie in each other: the API server would refuse the pod, or one would hide the other."""
        chosen = {"live-cache": self._options.live_cache, "control-dir": self._options.control_dir}
        fixed = (STORE_PATH, API_KEY_FOLDER, GOLDEN_PATH, TOKEN_PATH)
        for name, path in chosen.items():
            for other in (*fixed, *(value for key_, value in chosen.items() if key_ != name)):
                if _inside(path, other) or _inside(other, path):
                    raise NotInjected(f"{key(name)} is {path}, and the sidecar has {other}; set it to another path.")

    def _check_around(self, path: str, name: str) -> None:
        for option, ours in (("live-cache", self._options.live_cache), ("control-dir", self._options.control_dir)):
            if _inside(ours, path):
                raise NotInjected(
                    f"its volume {name} at {path} can't be written, so nothing can be mounted at {ours} in it; set "
                    f"{key(option)} to another path."
                )

    def port(self, engine_url: str) -> int:
        """Choose the sidecar's port: 9797 where it is free, and with the host's network one that follows the engine's."""
        taken = {
            port.get("containerPort")
            for container in [*(self._spec.get("initContainers") or []), *self._spec["containers"]]
            for port in container.get("ports") or []
        }
        engine = urllib.parse.urlsplit(engine_url).port or ENGINE_PORT
        first = PORT + engine - ENGINE_PORT if self._spec.get("hostNetwork") else PORT
        candidates = (1024 + (first - 1024 + step) % (65536 - 1024) for step in range(1000))
        return next(port for port in candidates if port not in taken and port != engine)


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
