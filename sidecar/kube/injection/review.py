"""The API server's question about a pod, and the answer: always admitted, with a patch or with the reason why not.

Protocol: Kubernetes documentation, "Dynamic Admission Control", AdmissionReview v1. Nothing listens here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.errors import UsageError
from sidecar.kube.injection.mutation import inject
from sidecar.kube.injection.options import LABEL, Options
from sidecar.kube.injection.patch import difference

Json = dict[str, Any]
Outcome = Literal["injected", "unchanged", "refused", "failed"]

#: Longer warnings may be cut by the API server ("Dynamic Admission Control", warnings).
WARNING_CHARACTERS = 256


@dataclass(frozen=True)
class Answer:
    """What is sent back, and how it ended. `refused`: a pod that asked for the sidecar stays without; `failed`: our bug."""

    body: Json
    outcome: Outcome
    warnings: tuple[str, ...] = ()


class Reviewer:
    """Answers reviews with one set of options. `caches`: see `inject`."""

    def __init__(self, options: Options, caches: Mapping[str, str], version: str) -> None:
        self.options = options
        self._caches, self._version = caches, version

    def answer(self, review: object) -> Answer:
        """Answer one review. Raises UsageError for what is no review, which nobody could be answered about."""
        request = review.get("request") if isinstance(review, dict) else None
        uid = request.get("uid") if isinstance(request, dict) else None
        if not isinstance(request, dict) or not isinstance(uid, str) or not uid:
            raise UsageError("This is no AdmissionReview: it has no request with a uid.")
        try:
            return self._answer(uid, request)
        except Exception as error:  # our own bug must not keep a pod from starting
            sentence = (
                f"The pod starts without warmup-sidecar, because of a bug of its webhook ({type(error).__name__})."
            )
            return Answer(_body(uid, [], (sentence,)), "failed", (sentence,))

    def _answer(self, uid: str, request: Json) -> Answer:
        pod = request.get("object")
        if not isinstance(pod, dict) or request.get("operation") != "CREATE" or not _is_pod(request):
            return Answer(_body(uid, [], ()), "unchanged")
        labels = (pod.get("metadata") or {}).get("labels") or {}
        if labels.get(LABEL) != "true":
            return Answer(_body(uid, [], ()), "unchanged")
        made = inject(pod, self.options, self._caches, self._version)
        operations = difference(pod, made.pod) if made.injected else []
        outcome: Outcome = "injected" if made.injected else "refused" if made.warnings else "unchanged"
        return Answer(_body(uid, operations, made.warnings), outcome, made.warnings)


def _is_pod(request: Json) -> bool:
    resource = request.get("resource") or {}
    return resource.get("resource") == "pods" and not request.get("subResource")


def _body(uid: str, operations: list[Json], warnings: tuple[str, ...]) -> Json:
    response: Json = {"uid": uid, "allowed": True}
    if operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(operations).encode()).decode()
    if warnings:
        response["warnings"] = [_short(warning) for warning in warnings]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _short(text: str) -> str:
    """Make a warning of one line that is not cut in its middle by somebody else."""
    line = " ".join(text.split())
    return line if len(line) <= WARNING_CHARACTERS else line[: WARNING_CHARACTERS - 1] + "…"
