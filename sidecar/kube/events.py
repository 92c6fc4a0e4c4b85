"""Kubernetes Events about important changes: their reasons, declared once, and the objects that carry them.

When one is written is decided in `event_writer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: Who reports, as events.k8s.io/v1 wants it: a qualified name.
CONTROLLER = "warmup-sidecar.io/sidecar"
API = "events.k8s.io/v1"
#: Bytes of a note that events.k8s.io/v1 accepts (Kubernetes API reference, Event).
NOTE_LIMIT = 1024


@dataclass(frozen=True)
class Reason:
    """One kind of Event: its reason and action in CamelCase, its type, and when it is written."""

    name: str
    action: str
    type: Literal["Normal", "Warning"]
    meaning: str


ENGINE_WARM = Reason("EngineWarm", "OpenGate", "Normal", "The engine is warm and checked; traffic may come.")
READY_BY_POLICY = Reason(
    "ReadyByPolicy", "OpenGate", "Warning", "Traffic may come although warm-up or the check proved nothing."
)
WITHDRAWN = Reason("ReadinessWithdrawn", "CloseGate", "Warning", "A pod that was ready is not any more.")
HELD = Reason("TrafficHeld", "CloseGate", "Warning", "The pod is held back, and nothing changes that by itself.")
ENGINE_ENDED = Reason("EngineEnded", "WatchEngine", "Warning", "The engine's process ended without being asked to.")
QUARANTINED = Reason(
    "GenerationQuarantined", "ProtectStore", "Warning", "A published cache did harm; no pod restores it any more."
)
FALLBACK = Reason(
    "FallbackActive",
    "RestartEngine",
    "Warning",
    "The engine starts with a fallback, because its output was bad without it.",
)
OUTPUT_BAD = Reason("OutputBad", "CheckOutput", "Warning", "The output is degenerate, or not what the golden file has.")
COMPILED_LATE = Reason(
    "KernelsCompiledLate", "WatchCaches", "Warning", "Kernels were compiled while serving, and requests waited."
)
DEGRADED = Reason("Degraded", "Degrade", "Warning", "Something is switched off or replaced by a default.")

REASONS: tuple[Reason, ...] = (
    ENGINE_WARM,
    READY_BY_POLICY,
    WITHDRAWN,
    HELD,
    ENGINE_ENDED,
    QUARANTINED,
    FALLBACK,
    OUTPUT_BAD,
    COMPILED_LATE,
    DEGRADED,
)


@dataclass(frozen=True)
class Regarding:
    """The pod that an Event is about."""

    namespace: str
    name: str
    uid: str


def create(reason: Reason, note: str, about: Regarding, name: str, at: str) -> dict[str, Any]:
    """Give the object of a new Event; `at` is RFC 3339 with microseconds."""
    return {
        "apiVersion": API,
        "kind": "Event",
        "metadata": {"name": name, "namespace": about.namespace},
        "eventTime": at,
        "reportingController": CONTROLLER,
        "reportingInstance": about.name[:128],
        "action": reason.action,
        "reason": reason.name,
        "type": reason.type,
        "note": _cut(note),
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": about.namespace,
            "name": about.name,
            **({"uid": about.uid} if about.uid else {}),
        },
    }


def repeat(count: int, at: str) -> Mapping[str, Any]:
    """Give the patch that counts an Event once more (Kubernetes API reference, EventSeries)."""
    return {"series": {"count": count, "lastObservedTime": at}}


def documented() -> list[tuple[str, str, str]]:
    """List the reasons for the README: reason, type, meaning."""
    return [(reason.name, reason.type, reason.meaning) for reason in REASONS]


def _cut(note: str) -> str:
    data = note.encode()
    if len(data) <= NOTE_LIMIT:
        return note
    return data[: NOTE_LIMIT - 3].decode(errors="ignore") + "…"
