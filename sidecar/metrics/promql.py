"""The queries that panels are made of: PromQL over the declared metrics, for the pods that were chosen.

Which panels there are is declared in the `dashboard_` modules.
"""

from __future__ import annotations

from sidecar.metrics.declaration import PREFIX
from sidecar.metrics.grafana import Query

#: Grafana puts what was chosen into the two variables; the labels are those that the PodMonitor in k8s/ brings.
_PODS = 'namespace=~"$namespace", pod=~"$pod"'
EACH_POD = "{{pod}}"


def asked(expr: str, legend: str = "") -> Query:
    """Make a query: `@name` stands for a metric of ours, PODS for the pods that were chosen."""
    return Query(expr.replace("PODS", _PODS).replace("@", PREFIX), legend)


def grown(name: str, by: str, window: str = "$__range", labels: str = "") -> Query:
    """Ask by how much a counter grew within a window, by one of its labels; `labels` are more of the selector."""
    return asked(f"sum by ({by}) (increase(@{name}{{PODS{labels}}}[{window}]))", f"{{{{{by}}}}}")


def counted(name: str, by: str = "", legend: str = "") -> Query:
    """Ask how often something happened within the range of time, by one of its labels; what never did is left out.

    What a new pod had counted before its first scrape is counted, which `increase` alone doesn't see; pods that are gone
    count as well.
    """
    each = f"@{name}{{PODS}}"
    first = f"min_over_time({each}[$__range]) unless {each} offset $__range or min_over_time({each}[$__range]) * 0"
    total = f"sum by ({by})" if by else "sum"
    return asked(f"round({total} (increase({each}[$__range]) + ({first}))) > 0", legend or f"{{{{{by}}}}}")


def quantile(share: float, name: str, labels: str = "") -> Query:
    """Ask for a quantile (0 to 1) of a histogram, as it was at each moment."""
    expr = f"histogram_quantile({share:g}, sum by (le) (rate(@{name}_bucket{{PODS{labels}}}[$__rate_interval])))"
    return asked(expr, f"p{share * 100:g}")


def in_range(share: float, name: str, by: str = "", legend: str = "") -> Query:
    """Ask for a quantile (0 to 1) over the whole range of time: starts are too few for a rate."""
    groups, called = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    expr = f"histogram_quantile({share:g}, sum by ({groups}) (increase(@{name}_bucket{{PODS}}[$__range])))"
    return asked(expr, legend or f"{called}p{share * 100:g}")
