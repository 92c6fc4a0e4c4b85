"""The injector's own numbers, declared and held here: it is another process than the daemon, with other metrics.

Nothing is measured here.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sidecar.metrics import PREFIX, Metric

#: The API server waits 3 s at most (timeoutSeconds of the shipped configuration); the goal is 0.02 s.
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 3.0)

#: README and k8s/README.md: every metric of the injector.
INJECTOR_TABLE: tuple[Metric, ...] = (
    Metric(
        "injector_reviews_total",
        "counter",
        "Pods that the webhook was asked about: injected, unchanged (not selected), refused (admitted as they are, with a "
        "warning), failed (a bug of ours; admitted as they are).",
        "",
        {"outcome": ("injected", "unchanged", "refused", "failed")},
    ),
    Metric("injector_review_seconds", "histogram", "How long an answer took.", "seconds", buckets=len(_BOUNDS) + 1),
    Metric(
        "injector_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate that is served ends, since the epoch; 0 while there is none.",
        "seconds",
    ),
)


class InjectorMetrics:
    """The numbers of one injector."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        reviews, seconds, expiry = INJECTOR_TABLE
        name = (PREFIX + reviews.name).removesuffix("_total")
        self._reviews = Counter(name, reviews.help, ["outcome"], registry=self._registry)
        for outcome in reviews.labels["outcome"] or ():
            self._reviews.labels(outcome)
        self._seconds = Histogram(PREFIX + seconds.name, seconds.help, buckets=_BOUNDS, registry=self._registry)
        self._expiry = Gauge(PREFIX + expiry.name, expiry.help, registry=self._registry)

    def reviewed(self, outcome: str, seconds: float) -> None:
        """Count one answer."""
        self._reviews.labels(outcome).inc()
        self._seconds.observe(seconds)

    def certificate_ends(self, timestamp: float) -> None:
        """Note when the served certificate ends, in seconds since the epoch."""
        self._expiry.set(timestamp)

    def render(self) -> bytes:
        """Give all series in Prometheus' text format."""
        return generate_latest(self._registry)
