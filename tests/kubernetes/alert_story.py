"""What a story for an alert is; the stories are in the `alert_stories_` modules.

No rule is read here and nothing is played; test_alerts.py does both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Story:
    """What a pod's metrics do, one value a minute (promtool's notation), and in which minutes the alert fires or doesn't.

    `labels` are the alert's besides the pod's; `value` is what its summary makes of the value; `summary` the whole
    sentence where it says more.
    """

    alert: str
    name: str
    series: Mapping[str, str]
    fires: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    value: str = ""
    summary: str = ""
