"""Names, paths and ports that a pod has taken already, and what is left for ours.

Nothing is changed here.
"""

from __future__ import annotations

import posixpath
import urllib.parse
from typing import Any

from sidecar.kube.injection.engine import NotInjected
from sidecar.kube.injection.options import Options, key

Json = dict[str, Any]

#: Port of probes and metrics; with the host's network it follows the engine's, so that two pods of a node differ.
PORT, ENGINE_PORT = 9797, 8000
OURS = ("control", "live-cache", "store", "api-key", "token")


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

    def check(self) -> str:
        """Give the engine's own volume at the live cache's path, if it can be used; empty: make one.

        Raises NotInjected where something else lies at our paths.
        """
        found = ""
        for mount in self._engine.get("volumeMounts") or []:
            path = posixpath.normpath(str(mount.get("mountPath", "")))
            volume = self._volumes.get(str(mount.get("name")), {})
            if path == self._options.live_cache:
                plain = not (mount.get("subPath") or mount.get("subPathExpr") or mount.get("readOnly"))
                if "emptyDir" not in volume or not plain:
                    raise NotInjected(
                        f"its volume {mount.get('name')} lies at {path}, where the live cache belongs, which must be "
                        f"private to the pod; move it, or set {key('live-cache')} to another path."
                    )
                found = str(mount["name"])
            elif path == self._options.control_dir:
                raise NotInjected(
                    f"its volume {mount.get('name')} lies at {path}; move it, or set {key('control-dir')} to another path."
                )
        return found

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
