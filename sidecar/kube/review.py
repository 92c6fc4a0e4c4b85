"""Asks the API server which rights are missing, and what is wrong with the pod: what `check` says about Kubernetes.

Nothing is changed at the API server: a SelfSubjectAccessReview is only answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sidecar.config import Settings
from sidecar.errors import KubernetesError, KubernetesForbidden
from sidecar.kube import rights
from sidecar.kube.api import ApiServer, Call
from sidecar.kube.own_pod import OwnPod
from sidecar.kube.pod_checks import Concern, concerns
from sidecar.kube.rights import Feature, Right


@dataclass(frozen=True)
class Missing:
    """A right that a feature needs and the service account lacks."""

    feature: Feature
    right: Right

    @property
    def sentence(self) -> str:
        """Say what is missing and what follows."""
        kind = "ClusterRole" if self.right.cluster else "Role"
        held = " The pod stays unready for ever." if self.right == rights.PATCH_STATUS else ""
        return (
            f"The service account lacks the right to `{self.right.words}`, which {self.feature.name} needs "
            f"(WARMUP_{self.feature.setting.upper()}).{held} Bind the {kind} of k8s/ that grants it."
        )


async def missing(api: ApiServer, features: Iterable[Feature]) -> list[Missing]:
    """Ask for each right of these features whether it is there. Raises KubernetesError."""
    found = []
    for feature in features:
        for right in feature.rights:
            if not await allowed(api, right):
                found.append(Missing(feature, right))
    return found


async def allowed(api: ApiServer, right: Right) -> bool:
    """Ask whether the service account has one right. Raises KubernetesError."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        **({"subresource": subresource} if subresource else {}),
        **({} if right.cluster else {"namespace": api.account.namespace}),
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.ask(
        Call("review rights", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    )
    status = answer.get("status")
    return bool(status.get("allowed")) if isinstance(status, dict) else False


async def version(api: ApiServer) -> str:
    """Give the API server's version; empty when it does not say. Raises nothing."""
    try:
        return str((await api.ask(Call("get version", "GET", "/version"))).get("gitVersion") or "")
    except KubernetesError:
        return ""


async def review(api: ApiServer, settings: Settings) -> list[Concern]:
    """Give everything that is wrong with rights and pod. Raises KubernetesError when the API server can't be asked."""
    found = [Concern("problem", each.sentence) for each in await missing(api, rights.wanted(settings))]
    try:
        pod = await OwnPod(api).read()
    except KubernetesForbidden:
        return found
    return found + concerns(pod, settings, await version(api))
