"""Metrics of the sidecar in a registry of their own: declared in `table.py`, recorded and rendered in
`recording.py`.

Nothing is measured here; the supervisor tells numbers, a scrape reads them.
"""

from sidecar.metrics.declaration import OTHER, PREFIX, Metric
from sidecar.metrics.recording import Metrics
from sidecar.metrics.series import CONTENT_TYPE
from sidecar.metrics.table import HEADINGS, TABLE, documented

__all__ = ["CONTENT_TYPE", "HEADINGS", "OTHER", "PREFIX", "TABLE", "Metric", "Metrics", "documented"]
