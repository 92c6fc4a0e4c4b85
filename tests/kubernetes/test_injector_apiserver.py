"""The webhook and its certificate against a real kube-apiserver: what is stored is what was meant, with the shipped rights.

The server is of version 1.20, which drops restartPolicy of init containers; schemas of newer ones: test_schemas.py.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import itertools
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from sidecar.errors import KubernetesError, KubernetesForbidden
from sidecar.kube.api import JSON, ApiServer, Call
from sidecar.kube.injection.certificates import make_authority, make_serving
from sidecar.kube.injection.keeping import Cluster, Wanted, keep
from tests.kubernetes import apiserver as k8s
from tests.kubernetes import pod_shapes
from tests.kubernetes.apiserver import RealServer
from tests.kubernetes.pod_shapes import Json, engine, labelled, pod
from tests.kubernetes.rendered import containers, kustomized
from tests.kubernetes.test_injector_certificate import lay
from tests.unit.commands import end_of, start

HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
PODS = "/api/v1/namespaces/default/pods"
NAMESPACE = "warmup-system"
_numbers = itertools.count()

#: Where an object of a kind is created; "" stands for its namespace.
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "MutatingWebhookConfiguration": HOOKS,
}


@pytest.fixture
async def admin(real_server: RealServer, tmp_path: Path) -> AsyncIterator[ApiServer]:
    made = ApiServer(k8s.account(real_server, tmp_path, "admin"), call_s=30)
    yield made
    await made.close()


@pytest.fixture
async def port(tmp_path: Path, free_port: Callable[[], int]) -> AsyncIterator[int]:
    """Start an injector with a certificate for localhost, and give its port; its CA lies in ca.crt."""
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(now)
    folder = tmp_path / "tls"
    folder.mkdir()
    lay(folder, make_serving(authority, ["localhost"], now))
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    reviews, probes = free_port(), free_port()
    process = await start(
        *("injector", "--image", "registry.example.com/warmup-sidecar:0.1.0", "--linger", "0"),
        *("--listen", f"127.0.0.1:{reviews}", "--probes", f"127.0.0.1:{probes}"),
        *("--certificate", str(folder / "tls.crt"), "--key", str(folder / "tls.key")),
    )
    async with aiohttp.ClientSession() as session:
        async with asyncio.timeout(60):
            while True:
                try:
                    async with session.get(f"http://127.0.0.1:{probes}/readyz") as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.05)
        yield reviews
    process.send_signal(signal.SIGTERM)
    await end_of(process)


def shipped(name: str, kind: str) -> list[Json]:
    return [document for document in kustomized(name) if document["kind"] == kind]


async def configure(admin: ApiServer, bundle: bytes, port: int, policy: str = "Fail") -> str:
    """Create the shipped webhook configuration, but with an address on this machine."""
    [configuration] = shipped("injector/base", "MutatingWebhookConfiguration")
    name = f"warmup-injector-{next(_numbers)}"
    [hook] = configuration["webhooks"]
    client = {"url": f"https://localhost:{port}/mutate", "caBundle": base64.b64encode(bundle).decode()}
    # Slower machines than an API server's: the shipped 3 s are tested by the bench.
    changed = {**hook, "clientConfig": client, "failurePolicy": policy, "timeoutSeconds": 30}
    await admin.ask(Call("create", "POST", HOOKS, {**configuration, "metadata": {"name": name}, "webhooks": [changed]}))
    return name


async def created(admin: ApiServer, document: Json, query: str = "") -> Json:
    document = {**document, "metadata": {**document["metadata"], "name": f"pod-{next(_numbers)}"}}
    document["metadata"].pop("generateName", None)
    return await admin.ask(Call("create", "POST", PODS + query, document))


async def injected(admin: ApiServer, document: Json) -> Json:
    """Create a pod until the webhook is known to the server, which takes a moment."""
    async with asyncio.timeout(60):
        while True:
            made = await created(admin, document, "?dryRun=All")
            if any(container["name"] == "warmup-sidecar" for container in containers(made["spec"])):
                return made
            await asyncio.sleep(0.1)


async def until_refused(admin: ApiServer) -> None:
    """Create pods until one is refused."""
    async with asyncio.timeout(60):
        while True:
            await created(admin, labelled(pod(engine())), "?dryRun=All")
            await asyncio.sleep(0.1)


async def test_pods_are_stored_with_the_sidecar_and_others_are_left_alone(admin: ApiServer, port: int, tmp_path: Path):
    hook = await configure(admin, (tmp_path / "ca.crt").read_bytes(), port)
    try:
        # Without native sidecars: this server is too old for their probes.
        plain = pod(
            engine(), annotations={"warmup-sidecar.io/native": "false", "warmup-sidecar.io/store": "pvc:kernels"}
        )
        made = await injected(admin, labelled(plain))
        assert [each["name"] for each in made["spec"]["containers"]] == ["warmup-sidecar", "vllm"]
        assert made["spec"]["containers"][1]["command"][1] == "/run/warmup/launcher.py"
        assert {"kernels"} == {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in made["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        }
        stored = await created(admin, labelled(plain))
        assert stored["spec"]["securityContext"]["fsGroup"] == 2000
        other = await created(admin, pod(engine()))
        assert [each["name"] for each in other["spec"]["containers"]] == ["vllm"]
        for name in ("unknown entrypoint", "two engines"):
            given, _ = pod_shapes.REFUSED[name]
            admitted = await created(admin, labelled(given))
            assert "warmup-sidecar" not in [each["name"] for each in admitted["spec"]["containers"]]
    finally:
        await admin.ask(Call("delete", "DELETE", f"{HOOKS}/{hook}"))


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
async def test_while_no_injector_answers_the_failure_policy_decides(
    admin: ApiServer, port: int, tmp_path: Path, free_port: Callable[[], int], policy: str
):
    nobody = await configure(admin, (tmp_path / "ca.crt").read_bytes(), free_port(), policy)
    try:
        if policy == "Ignore":
            made = await created(admin, labelled(pod(engine())))
            assert [each["name"] for each in made["spec"]["containers"]] == ["vllm"]
            return
        with pytest.raises(KubernetesError, match="failed calling webhook"):
            await until_refused(admin)
        # Pods that did not ask for it are touched by neither policy.
        await created(admin, pod(engine()), "?dryRun=All")
    finally:
        await admin.ask(Call("delete", "DELETE", f"{HOOKS}/{nobody}"))


async def test_the_shipped_rights_are_enough_for_the_certificate_and_for_nothing_else(
    admin: ApiServer, real_server: RealServer, tmp_path: Path
):
    documents = kustomized("injector/self-signed")
    for kind, place in PLACES.items():
        for document in documents:
            if document["kind"] == kind:
                await admin.ask(Call("create", "POST", place, document))
    try:
        account = f"{PLACES['ServiceAccount']}/warmup-injector-certificate/token"
        token = await admin.ask(
            Call(
                "token", "POST", account, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            )
        )
        job = ApiServer(k8s.account(real_server, tmp_path, token["status"]["token"][-20:]), call_s=30)
        (job.account.directory / "token").write_text(token["status"]["token"])
        try:
            await _keeps(job, admin)
        finally:
            await job.close()
    finally:
        await admin.ask(Call("delete", "DELETE", f"{HOOKS}/warmup-injector"))


async def _keeps(job: ApiServer, admin: ApiServer) -> None:
    wanted = Wanted(NAMESPACE, "warmup-injector", "warmup-injector-tls", "warmup-injector")
    now = datetime.datetime.now(datetime.UTC)
    async with asyncio.timeout(60):
        # The server learns of new rights a moment after it has stored them; the Job is tried again for that.
        while True:
            try:
                told = await keep(Cluster(job), wanted, now)
                break
            except KubernetesForbidden:
                await asyncio.sleep(0.2)
    assert told[-1] == "MutatingWebhookConfiguration warmup-injector trusts this CA now."
    assert await keep(Cluster(job), wanted, now) == ["Nothing to do: the certificate is good."]
    assert len(await keep(Cluster(job), wanted, now + datetime.timedelta(days=61))) == 1
    found = await admin.ask(Call("get", "GET", f"{HOOKS}/warmup-injector"))
    [hook] = found["webhooks"]
    secret = await admin.ask(Call("get", "GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/warmup-injector-tls"))
    assert hook["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]
    # What the patch did not name is as it was.
    assert hook["objectSelector"] == {"matchLabels": {"warmup-sidecar.io/inject": "true"}}
    assert hook["clientConfig"]["service"]["name"] == "warmup-injector"
    for method, path in (
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/other"),
        ("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/warmup-injector-tls"),
        ("GET", HOOKS),
        ("GET", "/api/v1/namespaces/default/pods"),
    ):
        with pytest.raises(KubernetesForbidden):
            await job.ask(Call("try", method, path, None, JSON))
