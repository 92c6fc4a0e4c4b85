"""The whole dashboard: its rows in the order in which somebody needs them, and its text as it is shipped.

The rows' panels are declared in the `dashboard_` modules beside this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sidecar.metrics.dashboard_fleet import STARTS, TRUST
from sidecar.metrics.dashboard_machines import GPUS, PROCESSES
from sidecar.metrics.dashboard_serving import ON_CALL, TRAFFIC
from sidecar.metrics.grafana import rendered

ROWS = (ON_CALL, TRAFFIC, STARTS, TRUST, GPUS, PROCESSES)

#: What can be chosen at the dashboard's top, with the query that lists the values.
VARIABLES: Mapping[str, str] = {
    "namespace": "label_values(warmup_sidecar_build_info, namespace)",
    "pod": 'label_values(warmup_sidecar_build_info{namespace=~"$namespace"}, pod)',
}


def text() -> str:
    """Give the dashboard as JSON with its last newline, the same for the same code."""
    return json.dumps(rendered(ROWS, VARIABLES), indent=1, ensure_ascii=False) + "\n"
