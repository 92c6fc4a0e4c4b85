"""The pod condition `warmup-sidecar.io/engine-warm`: its words, made from the gate, and the patch that carries it.

When it is written is decided in `gate_writer.py`; whether traffic may come, in `lifecycle/gate.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.lifecycle import Gate, Phase, Snapshot
from sidecar.lifecycle.states import Suspension

CONDITION = "warmup-sidecar.io/engine-warm"
#: Room for every sentence of the gate; longer ones are engines' own words. meta/v1 Condition allows 32768.
MESSAGE_LIMIT = 1024

Status = Literal["True", "False"]

#: Reasons of the condition while the pod is not ready. Kubernetes API conventions: CamelCase, one word.
NOT_READY: Mapping[Phase, str] = {
    Phase.STARTING: "Starting",
    Phase.AWAITING_LAUNCHER: "AwaitingEngineContainer",
    Phase.RESTORING: "RestoringCaches",
    Phase.AWAITING_ENGINE: "AwaitingEngine",
    Phase.WARMING: "WarmingUp",
    Phase.VERIFYING: "CheckingOutput",
    Phase.READY: "Warm",
    Phase.SUSPENDED: "Suspended",
    Phase.DRAINING: "Draining",
    Phase.STOPPED: "SidecarStopped",
}
SUSPENDED: Mapping[Suspension, str] = {
    Suspension.ASLEEP: "EngineAsleep",
    Suspension.STALLED: "EngineStalled",
    Suspension.DEGENERATE: "OutputDegenerate",
    Suspension.WRONG: "OutputWrong",
    Suspension.UNCHECKED: "OutputUnchecked",
    Suspension.BROKEN: "EngineBroken",
    Suspension.UNWARMED: "NotWarmed",
    Suspension.GPU_LOST: "GpuLost",
}
WARM = "Warm"
BY_POLICY = "ReadyByPolicy"
ON_FALLBACK = "ReadyOnFallback"


@dataclass(frozen=True)
class Truth:
    """What Kubernetes should know: `status`, a reason in CamelCase, and the sentence that /readyz gives.

    `held`: no more happens by itself, so people should see it soon.
    """

    status: Status
    reason: str
    message: str
    held: bool = False


BIRTH = Truth("False", NOT_READY[Phase.STARTING], Gate.closed_at_birth().sentence)


def truth(snapshot: Snapshot, gate: Gate, sentence: str) -> Truth:
    """Give what Kubernetes should know of a snapshot and its gate; `sentence` is what /readyz says."""
    message = sentence if len(sentence) <= MESSAGE_LIMIT else sentence[: MESSAGE_LIMIT - 1] + "…"
    if gate.open:
        reason = BY_POLICY if snapshot.unproven else ON_FALLBACK if snapshot.fallback else WARM
        return Truth("True", reason, message)
    held = snapshot.phase is Phase.SUSPENDED
    cause = SUSPENDED.get(snapshot.suspension) if held and snapshot.suspension else None
    # A suspension without a reason of its own must not keep Kubernetes from knowing the status.
    return Truth("False", cause or NOT_READY[snapshot.phase], message, held)


def documented() -> list[tuple[str, str]]:
    """List the reasons for the README: reason and when it is given."""
    rows = [(reason, f"phase `{phase.value}`") for phase, reason in NOT_READY.items()]
    rows += [(reason, f"suspended: {cause.value}") for cause, reason in SUSPENDED.items()]
    rows += [(BY_POLICY, "ready by policy, without full proof"), (ON_FALLBACK, "ready and checked, with a fallback")]
    return rows


def patch(wanted: Truth, uid: str, now: str, changed_at: str) -> dict[str, Any]:
    """Give the strategic merge patch of a pod's status; `now` and `changed_at` are RFC 3339.

    The merge key of conditions is `type`, so others' conditions stay (Kubernetes API reference, PodStatus). With `uid`
    the API server refuses to patch another pod of the same name.
    """
    condition = {
        "type": CONDITION,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastProbeTime": now,
        "lastTransitionTime": changed_at,
    }
    return {**({"metadata": {"uid": uid}} if uid else {}), "status": {"conditions": [condition]}}


def read(pod: Mapping[str, Any], kind: str = CONDITION) -> Mapping[str, Any]:
    """Give one condition of a pod; empty when it has none."""
    status = pod.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, Mapping) and each.get("type") == kind:
            return each
    return {}


def agrees(pod: Mapping[str, Any], wanted: Truth) -> bool:
    """Say whether a pod carries the condition as wanted, in status and reason."""
    found = read(pod)
    return (found.get("status"), found.get("reason")) == (wanted.status, wanted.reason)


def lags(pod: Mapping[str, Any], wanted: Truth) -> bool:
    """Say whether the kubelet has not drawn its conclusion from the condition: all else is ready and the pod is not."""
    ready, gates = read(pod, "Ready").get("status"), gates_of(pod)
    if CONDITION not in gates:
        return False
    if wanted.status == "False":
        return ready == "True"
    met = all(read(pod, kind).get("status") == "True" for kind in ("ContainersReady", *gates))
    return ready == "False" and met


def gates_of(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """List the conditions that a pod's spec has among its readinessGates."""
    spec = pod.get("spec")
    gates = spec.get("readinessGates") if isinstance(spec, Mapping) else None
    return tuple(str(gate.get("conditionType")) for gate in gates or () if isinstance(gate, Mapping))
