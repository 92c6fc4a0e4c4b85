"""How a dashboard's panels are written as Grafana's JSON: positions, queries, units, variables.

Which panels there are is declared in `dashboard.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: The version of the JSON's form that Grafana 11 writes; later ones read it and migrate (Grafana documentation,
#: "Dashboard JSON model").
SCHEMA_VERSION = 39
#: Columns of Grafana's grid (same source).
COLUMNS = 24
UID = "warmup-sidecar"
TITLE = "Warm engines"

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_KINDS = {"graph": "timeseries", "number": "stat", "table": "table"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """One PromQL expression and how its series are called, in Grafana's notation."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel: what it shows, in which unit of Grafana's, and from which value on it turns `bad`.

    `width` is in columns of 24, `height` in Grafana's rows; `most` is the axis's end where there is one.
    """

    title: str
    means: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Literal["graph", "number", "table"] = "graph"
    width: int = 8
    height: int = 7
    most: float | None = None
    bad: float | None = None
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    """Panels under one heading; a collapsed row is not asked for before it is opened."""

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


def rendered(rows: Sequence[Row], variables: Mapping[str, str]) -> Json:
    """Give the dashboard as Grafana imports it; `variables` are names with the queries that list their values."""
    return {
        "uid": UID,
        "title": TITLE,
        "description": "Made by `warmup-sidecar dashboard`; changes belong into its source.",
        "tags": ["warmup-sidecar", "inference"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source(), *(_variable(name, query) for name, query in variables.items())]},
        "annotations": {"list": []},
        "links": [],
        "panels": list(_placed(rows)),
    }


def _source() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        # Read anew whenever the range of time changes: pods come and go.
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: Sequence[Row]) -> Iterator[Json]:
    number, top = 0, 0
    for row in rows:
        number += 1
        heading: Json = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            "panels": [],
        }
        top += 1
        inside: list[Json] = []
        left, tallest = 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, tallest = 0, top + tallest, 0
            number += 1
            inside.append(_panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": panel.height}))
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest
        yield {**heading, "panels": inside} if row.collapsed else heading
        yield from [] if row.collapsed else inside


def _panel(panel: Panel, number: int, place: Mapping[str, int]) -> Json:
    return {
        "id": number,
        "type": _KINDS[panel.kind],
        "title": panel.title,
        "description": panel.means,
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "targets": [_target(panel, query, chr(ord("A") + at)) for at, query in enumerate(panel.queries)],
        # Prometheus gives each table cell a time, and names of metrics that the title says already.
        "transformations": [{"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True}}}]
        if panel.kind == "table"
        else [],
    }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.bad is not None:
        steps.append({"color": "red", "value": panel.bad})
    found: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "graph":
        found |= {"min": 0, "custom": _lines(panel)}
    if panel.most is not None:
        found["max"] = panel.most
    return found


def _lines(panel: Panel) -> Json:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if panel.stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "off" if panel.bad is None else "dashed"},
    }


def _options(panel: Panel) -> Json:
    if panel.kind == "number":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value" if panel.bad is None else "background",
            "graphMode": "none",
            "textMode": "auto",
        }
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _target(panel: Panel, query: Query, name: str) -> Json:
    at_once = panel.kind != "graph"
    return {
        "refId": name,
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": at_once,
        "range": not at_once,
        "format": "table" if panel.kind == "table" else "time_series",
    }
