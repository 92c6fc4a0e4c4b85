"""A real kube-apiserver with its etcd on the loopback address, and one face for it and for the fake.

How the server is built: `tests/prepare/apiserver.py`. Nothing is asserted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sidecar.kube import rights
from sidecar.kube.account import Account
from sidecar.kube.api import JSON, STRATEGIC, ApiServer, Call
from sidecar.kube.condition import CONDITION
from sidecar.kube.rights import Feature
from tests.fakes.apiserver import FakeApiServer, Subject
from tests.fakes.certificates import make_certificates
from tests.own_processes import STANDING
from tests.ports import unused_port
from tests.prepare import apiserver as prepared

#: Users that the real server knows by a token of the same name; Roles are bound to them by name.
USERS = [f"user{number}" for number in range(400)]
_unused = itertools.count()
UP_S = 180.0


@dataclass(frozen=True)
class RealServer:
    """The running server: its port, and the folder with its certificate."""

    port: int
    folder: Path


@contextlib.contextmanager
def running(root: Path) -> Iterator[RealServer]:
    """Start etcd and the API server below `root`, end both afterwards."""
    certificates = make_certificates(root / "pki")
    (root / "tokens.csv").write_text(
        'admin,admin,admin,"system:masters"\n' + "".join(f"{name},{name},{name}\n" for name in USERS)
    )
    for command in (
        ["openssl", "genrsa", "-out", str(root / "sa.key"), "2048"],
        ["openssl", "rsa", "-in", str(root / "sa.key"), "-pubout", "-out", str(root / "sa.pub")],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    # In memory: every write is synced otherwise, and a busy disk makes elections time out.
    with tempfile.TemporaryDirectory(prefix="etcd-", dir=_memory()) as data, contextlib.ExitStack() as stack:
        client, peer, port = (unused_port() for _ in range(3))
        stack.enter_context(_process(_etcd(data, client, peer), root / "etcd.log"))
        server = stack.enter_context(_process(_apiserver(root, client, port, certificates), root / "apiserver.log"))
        _wait(server, port, certificates.authority, root)
        yield RealServer(port, root / "pki")


def _memory() -> str | None:
    shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    return "/dev/shm" if shared > 200 << 20 else None


def _etcd(data: str, client: int, peer: int) -> list[str]:
    at = f"http://127.0.0.1:{peer}"
    return [
        prepared.etcd(), "--data-dir", data, "--unsafe-no-fsync", "--log-level=error",
        "--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}",
        "--listen-peer-urls", at, "--initial-advertise-peer-urls", at, "--initial-cluster", f"default={at}",
    ]  # fmt: skip


def _apiserver(root: Path, etcd: int, port: int, certificates: Any) -> list[str]:
    return [
        str(prepared.binary()), f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={port}", "--insecure-port=0",
        f"--cert-dir={root / 'generated'}", f"--tls-cert-file={certificates.certificate}",
        f"--tls-private-key-file={certificates.key}", "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC", f"--token-auth-file={root / 'tokens.csv'}",
        f"--service-account-key-file={root / 'sa.pub'}", f"--service-account-signing-key-file={root / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc", "--allow-privileged=true",
        # No controller makes service accounts' tokens here, and pods would be refused without.
        "--disable-admission-plugins=ServiceAccount", "--enable-priority-and-fairness=false",
    ]  # fmt: skip


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        STANDING.add(process.pid)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        STANDING.discard(process.pid)


def _wait(server: subprocess.Popen[bytes], port: int, authority: Path, root: Path) -> None:
    context = ssl.create_default_context(cafile=str(authority))
    asked = urllib.request.Request(f"https://127.0.0.1:{port}/readyz", headers={"Authorization": "Bearer admin"})
    ends = time.monotonic() + UP_S
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(asked, context=context, timeout=5).close()
            return
        said = (root / "apiserver.log").read_text(errors="replace")[-2000:]
        assert server.poll() is None, f"kube-apiserver ended: {said}"
        assert time.monotonic() < ends, f"kube-apiserver is not ready after {UP_S:.0f} s: {said}"
        time.sleep(0.1)


class Cluster(Protocol):
    """What a test needs of an API server, real or fake."""

    port: int
    folder: Path

    async def grant(self, user: str, features: Iterable[Feature]) -> None:
        """Bind the Roles of these features to a user."""


class FakeCluster:
    """The fake behind that face."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.folder = server.folder

    @property
    def port(self) -> int:
        """Give its port."""
        return self.server.port

    async def grant(self, user: str, features: Iterable[Feature]) -> None:
        """Bind the Roles of these features to a user."""
        listed = tuple(features)
        self.server.subjects[user] = Subject(
            user, rights.rules(listed), rights.rules(listed, cluster=True), namespace="default"
        )


class RealCluster:
    """The real one behind that face."""

    def __init__(self, server: RealServer, admin: ApiServer) -> None:
        self.port, self.folder = server.port, server.folder
        self._admin = admin

    async def grant(self, user: str, features: Iterable[Feature]) -> None:
        """Bind the Roles of these features to a user."""
        listed = tuple(features)
        api = f"/apis/{rights.RBAC}/v1"
        for namespace, folder in (("default", f"{api}/namespaces/default/"), ("", f"{api}/cluster")):
            role = rights.role(listed, user, namespace)
            if not role["rules"]:
                continue
            binding = {
                "apiVersion": role["apiVersion"],
                "kind": f"{role['kind']}Binding",
                "metadata": {"name": user},
                "roleRef": {"apiGroup": rights.RBAC, "kind": role["kind"], "name": user},
                "subjects": [{"apiGroup": rights.RBAC, "kind": "User", "name": user}],
            }
            await self._admin.ask(Call("grant", "POST", f"{folder}roles", role))
            await self._admin.ask(Call("grant", "POST", f"{folder}rolebindings", binding))


def unused() -> tuple[str, str]:
    """Give a user and the name of a pod that no other test has."""
    number = next(_unused)
    return USERS[number], f"vllm-{number}"


def account(cluster: Cluster | RealServer, tmp_path: Path, token: str, pod: str = "vllm-0") -> Account:
    """Give the identity of a pod that has this token, in files as the kubelet lays them."""
    folder = tmp_path / f"account-{token}"
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(token)
    (folder / "namespace").write_text("default")
    shutil.copy(cluster.folder / "ca.crt", folder / "ca.crt")
    return Account(folder, "127.0.0.1", str(cluster.port), pod_name=pod)


def pod_of(
    name: str, *, gates: Iterable[str] = (CONDITION,), node: str = "", command: Sequence[str] = ()
) -> dict[str, Any]:
    """Give a pod as small as the API server takes it; `command` is the engine's."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "engine", "image": "engine", **({"command": [*command]} if command else {})}],
            "readinessGates": [{"conditionType": gate} for gate in gates],
            **({"nodeName": node} if node else {}),
        },
    }


async def create(admin: ApiServer, kind: str, thing: dict[str, Any]) -> dict[str, Any]:
    """Create an object as the administrator; `kind` is `pods` or `nodes`."""
    folder = "/api/v1/nodes" if kind == "nodes" else f"/api/v1/namespaces/default/{kind}"
    return await admin.ask(Call("create", "POST", folder, thing))


async def read_pod(admin: ApiServer, name: str) -> dict[str, Any]:
    """Read a pod as the administrator."""
    return await admin.ask(Call("get pod", "GET", f"/api/v1/namespaces/default/pods/{name}"))


async def patch_pod(
    admin: ApiServer, name: str, body: dict[str, Any], content: str = STRATEGIC, *, status: bool = True
) -> dict[str, Any]:
    """Patch a pod's status as the administrator, as a kubelet or another controller would."""
    path = f"/api/v1/namespaces/default/pods/{name}" + ("/status" if status else "")
    return await admin.ask(Call("patch", "PATCH", path, body, content))


async def list_events(admin: ApiServer, pod: str) -> list[dict[str, Any]]:
    """List the Events that are about a pod."""
    found = await admin.ask(Call("list", "GET", "/apis/events.k8s.io/v1/namespaces/default/events", None, JSON))
    return [each for each in found["items"] if each["regarding"]["name"] == pod]


async def until(holds: Any, what: str, deadline_s: float = 20.0) -> None:
    """Wait until an awaitable check holds."""
    ends = time.monotonic() + deadline_s
    while not await holds():
        assert time.monotonic() < ends, f"{what}: not within {deadline_s:.0f} s"
        await asyncio.sleep(0.05)
