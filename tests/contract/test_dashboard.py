"""The dashboard: made from code, every name declared, every query PromQL, nothing overlapping.

What the queries give is seen in tests/faults/test_dashboard_queries.py; no Grafana server is asked.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml

from sidecar.metrics import PREFIX, TABLE
from sidecar.metrics.dashboard import ROWS, VARIABLES
from sidecar.metrics.dashboard import text as dashboard_text
from sidecar.metrics.grafana import COLUMNS
from sidecar.metrics.injector import INJECTOR_TABLE
from tests.unit.commands import CHECKOUT, sidecar

K8S = CHECKOUT / "k8s"
COPIES = (K8S / "components" / "monitoring" / "dashboard.json", K8S / "chart" / "files" / "dashboard.json")
DASHBOARD = json.loads(dashboard_text())
#: What Grafana puts in before it asks.
FILLED = {"$__rate_interval": "1m", "$__range": "3h", "$namespace": ".*", "$pod": ".*"}
#: Series of Prometheus' own: alerts that fire, and whether a target was reached.
FOREIGN = ("ALERTS", "up")
#: Brought by the scrape, not by us.
OUTER_LABELS = {"namespace", "pod"}
DECLARED = {PREFIX + metric.name: metric for metric in (*TABLE, *INJECTOR_TABLE)}


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def queries() -> dict[str, str]:
    return {f"{p['title']} {t['refId']}": t["expr"] for p in panels() for t in p["targets"]}


QUERIES = queries()


def alerts() -> dict[str, str]:
    rules = yaml.safe_load((K8S / "chart" / "files" / "rules.yaml").read_text(encoding="utf-8"))
    return {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def filled(query: str) -> str:
    for variable, value in FILLED.items():
        query = query.replace(variable, value)
    return query


def selectors(expr: Any) -> list[Any]:
    """List the vector selectors in a parsed expression."""
    found: list[Any] = []

    def look(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(expr, look)
    return found


def strange(query: str) -> list[str]:
    """Name what a query asks for that isn't declared: metrics, labels, labels' values."""
    found = []
    for selector in selectors(promql_parser.parse(query)):
        if selector.name in FOREIGN:
            continue
        name = re.sub(r"_(bucket|sum|count)$", "", selector.name)
        metric = DECLARED.get(selector.name) or DECLARED.get(name)
        if metric is None or (metric.kind == "histogram") != (name != selector.name):
            found.append(selector.name)
            continue
        for matcher in selector.matchers.matchers:
            values = metric.labels.get(matcher.name)
            if matcher.name not in {*metric.labels, *OUTER_LABELS}:
                found.append(f"{selector.name}: label {matcher.name}")
            elif values is not None and not set(matcher.value.split("|")) <= set(values):
                found.append(f"{selector.name}: {matcher.name}={matcher.value}")
    return found


def test_the_shipped_copies_are_what_the_code_makes():
    assert [copy.read_text(encoding="utf-8") == dashboard_text() for copy in COPIES] == [True, True]


@pytest.mark.parametrize("name", QUERIES)
def test_a_panel_asks_for_what_is_declared(name: str):
    assert selectors(promql_parser.parse(filled(QUERIES[name])))
    assert strange(filled(QUERIES[name])) == []


@pytest.mark.parametrize("name", alerts())
def test_an_alert_asks_for_what_is_declared(name: str):
    assert strange(alerts()[name]) == []


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("warmup_sidecar_raedy", "warmup_sidecar_raedy"),
        ("sum(rate(warmup_sidecar_restore_seconds[1m]))", "warmup_sidecar_restore_seconds"),
        ('1 - warmup_sidecar_phase{fase="ready"}', "warmup_sidecar_phase: label fase"),
        ('sum(warmup_sidecar_phase{phase="raedy"}) / 2', "warmup_sidecar_phase: phase=raedy"),
    ],
)
def test_what_is_not_declared_is_found(query: str, what: str):
    assert strange(query) == [what]


def test_every_query_is_of_the_pods_that_were_chosen():
    for name, query in QUERIES.items():
        if not name.startswith("Injector"):
            for selector in selectors(promql_parser.parse(filled(query))):
                assert {matcher.name for matcher in selector.matchers.matchers} >= OUTER_LABELS, name


def test_a_legend_names_labels_that_the_query_keeps():
    for panel in panels():
        for target in panel["targets"]:
            kept = re.findall(r"by \(([^)]*)\)", target["expr"])
            labels = {label.strip() for part in kept for label in part.split(",")}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, panel["title"]


def test_panels_lie_beside_each_other_and_not_upon_each_other():
    places = [(panel["title"], *panel["gridPos"].values()) for panel in panels()]
    cells = [
        (title, column, line)
        for title, x, y, w, h in places
        for column, line in itertools.product(range(x, x + w), range(y, y + h))
    ]
    assert len({cell[1:] for cell in cells}) == len(cells)
    assert max(column for _, column, _ in cells) < COLUMNS


def test_what_grafana_tells_apart_is_unique():
    numbers = [panel["id"] for panel in (*DASHBOARD["panels"], *panels())]
    rows = [panel["id"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert len(set(numbers)) == len(rows) + len(list(panels()))
    titles = [panel.title for row in ROWS for panel in row.panels]
    assert len(set(titles)) == len(titles)
    for panel in panels():
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_on_call_comes_first_and_every_panel_says_what_it_means():
    assert ROWS[0].title.startswith("On call")
    assert not ROWS[0].collapsed
    assert all(panel.means.endswith(".") for row in ROWS for panel in row.panels)
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", *VARIABLES]


async def test_the_command_prints_it_and_finds_a_file_that_differs(tmp_path):
    printed = await sidecar("dashboard")
    assert (printed.code, printed.out) == (0, dashboard_text())
    assert (await sidecar("dashboard", "--check", str(COPIES[0]))).code == 0
    other = tmp_path / "other.json"
    other.write_text(dashboard_text().replace("Ready", "Raedy"))
    ended = await sidecar("dashboard", "--check", str(other))
    assert (ended.code, str(other) in ended.err) == (3, True)
    assert (await sidecar("dashboard", "--check", str(tmp_path / "none"))).code == 2
