"""Keeps the webhook's own certificate in a Secret, and its CA in the webhook's configuration.

Runs as a job of its own, so that the injector itself needs no rights. Certificates are made in `certificates.py`.
"""

from __future__ import annotations

import base64
import datetime
from dataclasses import dataclass
from typing import Any

from sidecar.errors import KubernetesConflict, KubernetesNotFound
from sidecar.kube.api import STRATEGIC, ApiServer, Call
from sidecar.kube.injection.certificates import (
    Pair,
    make_authority,
    make_serving,
    service_names,
    usable,
    why_new_authority,
    why_renew,
)

Json = dict[str, Any]
#: Keys of the Secret. The first two are those of type kubernetes.io/tls, which cert-manager fills as well.
CERTIFICATE, KEY, CA, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Cluster:
    """The calls to the API server that keeping a certificate needs. Each raises KubernetesError."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    async def read_secret(self, namespace: str, name: str) -> Json | None:
        """Give a Secret; None when there is none."""
        try:
            return await self._api.ask(Call("get secret", "GET", f"{_secrets(namespace)}/{name}"))
        except KubernetesNotFound:
            return None

    async def write_secret(self, namespace: str, name: str, body: Json) -> bool:
        """Create a Secret, or replace it as it was read; False when somebody was faster."""
        known = "resourceVersion" in body["metadata"]
        place = f"{_secrets(namespace)}/{name}" if known else _secrets(namespace)
        verb = ("replace secret", "PUT") if known else ("create secret", "POST")
        try:
            await self._api.ask(Call(*verb, place, body))
        except KubernetesConflict:
            return False
        return True

    async def set_ca(self, webhook: str, bundle: str) -> bool:
        """Put a CA into every webhook of a MutatingWebhookConfiguration; False when it was there already."""
        found = await self._api.ask(Call("get webhook configuration", "GET", f"{_WEBHOOKS}/{webhook}"))
        hooks = found.get("webhooks") or []
        if all((hook.get("clientConfig") or {}).get("caBundle") == bundle for hook in hooks):
            return False
        # Strategic: webhooks are merged by name, so that whatever else stands in the configuration stays.
        changed = [{"name": hook["name"], "clientConfig": {"caBundle": bundle}} for hook in hooks]
        call = Call("patch webhook configuration", "PATCH", f"{_WEBHOOKS}/{webhook}", {"webhooks": changed}, STRATEGIC)
        await self._api.ask(call)
        return True


def _secrets(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"


@dataclass(frozen=True)
class Wanted:
    """What is to be there: a certificate for this Service in this Secret, trusted by this webhook configuration."""

    namespace: str
    service: str
    secret: str
    webhook: str


async def keep(cluster: Cluster, wanted: Wanted, now: datetime.datetime) -> list[str]:
    """Make what is missing and renew what is due; give a sentence for each thing done. Twice does nothing more.

    The CA goes into the configuration after the Secret, so that nobody is trusted who can't answer.
    """
    told: list[str] = []
    for _ in range(5):
        secret = await cluster.read_secret(wanted.namespace, wanted.secret)
        data = {name: base64.b64decode(value) for name, value in ((secret or {}).get("data") or {}).items()}
        body, why = _renewed(data, wanted, now)
        if body is None or await _written(cluster, wanted, secret, body):
            bundle = (body or data)[CA]
            if why:
                told.append(f"Secret {wanted.secret}: {why}.")
            if await cluster.set_ca(wanted.webhook, base64.b64encode(bundle).decode()):
                told.append(f"MutatingWebhookConfiguration {wanted.webhook} trusts this CA now.")
            return told or ["Nothing to do: the certificate is good."]
    return ["Somebody else changes the Secret all the time; the next run looks again."]


def _renewed(data: dict[str, bytes], wanted: Wanted, now: datetime.datetime) -> tuple[dict[str, bytes] | None, str]:
    names = service_names(wanted.service, wanted.namespace)
    authority = Pair(data.get(CA, b""), data.get(CA_KEY, b""))
    there = bool(authority.certificate and authority.key)
    new_ca = why_new_authority(authority, now) if there else "there is none"
    why = new_ca or why_renew(Pair(data.get(CERTIFICATE, b""), data.get(KEY, b"")), authority.certificate, names, now)
    if not why:
        return None, ""
    bundle = authority.certificate
    if new_ca:
        authority = make_authority(now)
        # The old one behind it: injectors go on with its certificate until the kubelet has brought them the new one.
        bundle = authority.certificate + (bundle if there and usable(bundle) else b"")
    serving = make_serving(authority, names, now)
    made = {CERTIFICATE: serving.certificate, KEY: serving.key, CA: bundle, CA_KEY: authority.key}
    return made, f"new {'CA' if new_ca else 'serving certificate'}, because {why}"


async def _written(cluster: Cluster, wanted: Wanted, secret: Json | None, made: dict[str, bytes]) -> bool:
    data = {name: base64.b64encode(value).decode() for name, value in made.items()}
    metadata: Json = {"name": wanted.secret, "namespace": wanted.namespace}
    body: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls", "data": data}
    if secret is not None:
        # What was read: a run at the same time must not be overwritten.
        metadata["resourceVersion"] = secret["metadata"]["resourceVersion"]
        body["type"] = secret.get("type", body["type"])
    return await cluster.write_secret(wanted.namespace, wanted.secret, body)
