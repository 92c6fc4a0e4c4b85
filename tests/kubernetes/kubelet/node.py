"""A node: images as commands, claims as directories, and pods whose containers are processes in namespaces of their own.

Order, probes and restarts are decided in `life.py`; here things are started and asked.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.kubernetes.kubelet.network import POD_ADDRESS, PodNetwork
from tests.kubernetes.kubelet.process import ContainerProcess
from tests.kubernetes.kubelet.spec import Container, Env, PodSpec, SpecRefused, Volume

CHECKOUT = Path(__file__).resolve().parents[3]
#: Directories that may be covered by an empty one to make room for mount points; nothing that runs here lies in them.
COVERED = ("/mnt", "/run", "/var/cache", "/media", "/opt", "/srv")
#: Where a container's own files lie: new with every instance, at the same path in all of them.
LAYER = "/media/layer"
_REFERENCE = re.compile(r"\$\((\w+)\)")


@cache
def why_no_node() -> str:
    """Say in a sentence why no pod can run on this machine; empty when one can."""
    if os.geteuid() != 0:
        return "pods need namespaces, and those need root"
    words = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "true"]
    try:
        tried = subprocess.run(words, capture_output=True, text=True, timeout=30)
        PodNetwork().close()
    except (OSError, subprocess.SubprocessError) as error:
        return f"pods need namespaces, which can't be had here: {error}"
    return f"pods need namespaces, which can't be had here: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass(frozen=True)
class Node:
    """What the pods of a test share. `images` gives each image's entrypoint; `claims` the directory of each claim."""

    root: Path
    images: Mapping[str, Sequence[str]] = field(default_factory=dict)
    claims: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "node-1"

    def pod(self, name: str, spec: PodSpec) -> PodRuntime:
        """Make room for a pod: its volumes and its network."""
        return PodRuntime(self, name, spec)


class PodRuntime:
    """One pod's volumes and network, and its containers as processes. A Runtime of `runtime.py`."""

    def __init__(self, node: Node, name: str, spec: PodSpec) -> None:
        self.name, self._node, self._spec = name, node, spec
        self.root = node.root / name
        (self.root / "layers").mkdir(parents=True)
        self._instances = 0
        self._processes: list[ContainerProcess] = []
        self._volumes = {volume.name: self._make(volume) for volume in spec.volumes}
        self._network = PodNetwork()

    def volume(self, name: str) -> Path:
        """Give the directory of a volume."""
        return self._volumes[name]

    def log(self, container: str) -> str:
        """Give what a container's instances have written."""
        path = self.root / f"{container}.log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    async def start(self, container: Container) -> ContainerProcess:
        """Start an instance of a container."""
        self._instances += 1
        layer = self.root / "layers" / str(self._instances)
        for folder in ("home", "tmp"):
            (layer / folder).mkdir(parents=True)
        variables = self._environment(container)
        argv = [*(container.command or self._entrypoint(container)), *container.args]
        argv = [expanded(word, variables) for word in argv]
        script = self._script(container, layer, container.working_dir or str(CHECKOUT))
        log = self.root / f"{container.name}.log"
        process = ContainerProcess(self._network, container, log, variables)
        self._processes.append(process)
        await process.begin(script, argv)
        return process

    async def get(self, port: int, path: str, timeout_s: float = 5) -> tuple[int, str]:
        """Ask a port of the pod from inside; give status and body, or 0 and the reason when nobody answers."""
        return await asyncio.to_thread(self.request, port, "GET", path, None, timeout_s)

    def request(
        self,
        port: int,
        method: str,
        path: str,
        body: Any = None,
        timeout_s: float = 5,
        begun: threading.Event | None = None,
    ) -> tuple[int, str]:
        """Send a request with a body of JSON over the pod's loopback device, and wait for the whole answer.

        `begun` is set with the answer's first byte, and when there is none.
        """
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        try:
            client.sock = self._network.socket()
            client.sock.settimeout(timeout_s)
            client.sock.connect(("127.0.0.1", port))
            headers = {"Content-Type": "application/json"} if body is not None else {}
            client.request(method, path, None if body is None else json.dumps(body), headers)
            answer = client.getresponse()
            first = answer.read(1)
            if begun:
                begun.set()
            return answer.status, (first + answer.read()).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, f"{type(error).__name__}: {error}"
        finally:
            if begun:
                begun.set()
            client.close()

    async def close(self) -> None:
        """Kill what still runs, and give the network up."""
        for process in self._processes:
            await process.close()
        self._network.close()

    # --- what a container is given ----------------------------------------------------------------------------------

    def _make(self, volume: Volume) -> Path:
        """Give the directory behind a volume. "Volumes": an emptyDir lives as long as the pod, whatever its containers do."""
        if volume.persistent_volume_claim is not None:
            name = str(volume.persistent_volume_claim["claimName"])
            if name not in self._node.claims:
                raise SpecRefused(f"the node has no claim named {name}")
            return self._node.claims[name]
        if volume.host_path is not None:
            return Path(volume.host_path["path"])
        if volume.empty_dir is None:
            source = volume.config_map or volume.secret
            if not (source and source.get("optional")):
                raise SpecRefused(f"volume {volume.name} comes from the API server, and there is none")
        made = self.root / "volumes" / volume.name
        made.mkdir(parents=True)
        return made

    def _entrypoint(self, container: Container) -> Sequence[str]:
        if container.image not in self._node.images:
            raise SpecRefused(
                f"container {container.name} has no command, and the node does not know {container.image}"
            )
        return self._node.images[container.image]

    def _environment(self, container: Container) -> dict[str, str]:
        given = {
            # The python3 of an image is the one that runs this.
            "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOSTNAME": self.name,
            "HOME": f"{LAYER}/home",
            "TMPDIR": f"{LAYER}/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self._node.environment,
        }
        for each in container.env:
            given[each.name] = expanded(self._value(each), given)
        return given

    def _value(self, variable: Env) -> str:
        if variable.value_from is None:
            return variable.value
        known = {
            "metadata.name": self.name,
            "metadata.namespace": "default",
            "metadata.uid": f"uid-of-{self.name}",
            "spec.nodeName": self._node.name,
            "spec.serviceAccountName": self._spec.service_account_name,
            "status.podIP": POD_ADDRESS,
        }
        return known[variable.value_from.field_ref.field_path]

    def _script(self, container: Container, layer: Path, working_dir: str) -> str:
        """Write the commands that make a container's view of files, and that end in becoming its first process."""
        lines = ["set -e", f"echo {shlex.quote(self.name)} > /proc/sys/kernel/hostname"]
        covered: set[str] = set()
        hosts = layer / "hosts"
        # "Adding entries to Pod /etc/hosts with HostAliases": the kubelet manages this file of every container.
        hosts.write_text(f"127.0.0.1 localhost\n{POD_ADDRESS} {self.name}\n")
        lines.append(f"mount --bind {shlex.quote(str(hosts))} /etc/hosts")
        mounts = [(layer, LAYER, False)]
        mounts += [(self._volumes[m.name], m.mount_path.rstrip("/"), m.read_only) for m in container.volume_mounts]
        for source, path, read_only in sorted(mounts, key=lambda mount: mount[1]):
            cover = next((place for place in COVERED if path.startswith(place + "/")), "")
            if cover and cover not in covered:
                covered.add(cover)
                lines.append(f"mount -t tmpfs none {cover}")
            elif not cover and not Path(path).is_dir():
                raise SpecRefused(f"{container.name} mounts {path}, which is not there and below none of {COVERED}")
            place = shlex.quote(path)
            lines.append(f"mkdir -p {place}" if cover else ":")
            lines.append(f"mount --bind {shlex.quote(str(source))} {place}")
            if read_only:
                lines.append(f"mount -o remount,bind,ro {place}")
        return "\n".join([*lines, f"cd {shlex.quote(working_dir)}", 'exec "$@"'])


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Put variables into a text. "Define Dependent Environment Variables": what is not defined stays as it is."""
    return _REFERENCE.sub(lambda found: variables.get(found[1], found[0]), text)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that another process writes; empty while it is not there or not whole."""
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_text("utf-8")))
    return {}
