"""The metrics of the daemon's calls to the API server, and of how well Kubernetes knows the truth.

What is asked is the business of `kube/`; no number lives here.
"""

from __future__ import annotations

from sidecar.kube.api import CALLS, OUTCOMES
from sidecar.kube.rights import FEATURES
from sidecar.metrics.declaration import OTHER, Metric

KUBERNETES_TABLE: tuple[Metric, ...] = (
    Metric(
        "kubernetes_calls_total",
        "counter",
        "Calls to the API server by how they ended.",
        "",
        {"call": (*CALLS, OTHER), "outcome": (*OUTCOMES, OTHER)},
        optional=True,
    ),
    Metric(
        "kubernetes_right_missing",
        "gauge",
        "1 while the API server refuses what this feature needs; the feature's Role is not bound.",
        "",
        {"feature": tuple(feature.setting for feature in FEATURES)},
    ),
    Metric(
        "readiness_gate_condition",
        "gauge",
        "1 while the pod condition warmup-sidecar.io/engine-warm should be True, 0 while it should be False.",
        optional=True,
    ),
    Metric(
        "readiness_gate_in_step",
        "gauge",
        "1 while Kubernetes was told the status that holds; 0 while it was not, and traffic may go wrong.",
        optional=True,
    ),
)
