"""The cards about compiling: warm-up steps with their times to first token, and kernels before and after
ready.

The other cards are in `panels.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sidecar.web import figures, parts, words
from sidecar.web.markup import Element, element


def steps_of(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Give the steps of the warm-up that are mappings."""
    return parts.mappings(parts.section(status, "warmup"), "steps")


def warmup(status: Mapping[str, Any]) -> Element:
    """Show each step with its first, best and last time to first token, and the kernels it brought about."""
    found = parts.section(status, "warmup")
    steps = steps_of(status)
    firsts = [words.number(step.get("ttft_first_s")) or 0.0 for step in steps]
    largest = max(firsts, default=0.0)
    about = [
        f"profile {found['profile']}" if found.get("profile") else "",
        f"round {found['round']}" if found.get("round") else "",
        f"{words.count(found['requests'])} requests" if found.get("requests") else "",
        words.seconds(found.get("seconds")) if found.get("seconds") else "",
    ]
    headings: list[tuple[object, str]] = [
        ("Step", ""),
        ("State", ""),
        ("TTFT first", "n"),
        ("best", "n wide-only"),
        ("last", "n"),
        (parts.key(("before", "first"), ("after", "last")) if largest else "", "key-column"),
        ("Kernels", "n"),
        ("Took", "n wide-only"),
    ]
    return parts.card(
        "Warm-up",
        "warmup",
        parts.said(found),
        element("p", " · ".join(part for part in about if part), class_="soft small") if any(about) else None,
        parts.table(headings, [row for step in steps for row in _step(step, largest)], "Warm-up steps")
        if steps
        else element("p", "No step was planned yet.", class_="soft"),
        _notes(parts.listed(found, "notes")),
        tag=parts.tag(found.get("outcome", "pending")),
    )


def _notes(notes: list[Any]) -> Element | None:
    if not notes:
        return None
    return element("ul", [element("li", note) for note in notes], class_="soft small")


def _step(step: Mapping[str, Any], largest: float) -> Iterable[Element]:
    state = step.get("state", "pending")
    first, last = words.number(step.get("ttft_first_s")), words.number(step.get("ttft_last_s"))
    label = f"first {words.seconds(first)}, last {words.seconds(last)}"
    kernels = words.number(step.get("kernels"))
    detail = step.get("detail")
    tone = words.tone(state)
    yield element(
        "tr",
        element("th", step.get("name", ""), scope="row"),
        element("td", parts.tag(state)),
        element("td", words.seconds(first), class_="n"),
        element("td", words.seconds(step.get("ttft_best_s")), class_="n wide-only"),
        element("td", words.seconds(last), class_="n"),
        element("td", figures.pair(first, last, largest, label, ("before", "after")), class_="figure"),
        element("td", words.count(kernels) if kernels is not None else words.NOTHING, class_="n"),
        element("td", words.seconds(step.get("seconds")), class_="n wide-only"),
        class_=f"{tone} has-why" if detail else tone,
    )
    if detail:
        yield element("tr", element("td", element("span", detail, class_="said"), colspan=8), class_=f"{tone} why")


def kernel_rows(status: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Give by family the kernels compiled before and after ready."""
    found = parts.section(status, "warmup")
    rows: dict[str, tuple[int, int]] = {}
    for position, key in enumerate(("kernels_before_ready", "kernels_after_ready")):
        # While a warm-up runs `kernels` are those that it has brought about; they become part of the others at its end.
        kernels = found.get(key, found.get("kernels") if position == 0 else None)
        counted = [kernels]
        if position == 0 and key in found and found.get("outcome") == "running":
            counted.append(found.get("kernels"))
        for family, n in (pair for each in counted if isinstance(each, Mapping) for pair in each.items()):
            found_so_far = list(rows.get(str(family), (0, 0)))
            found_so_far[position] += int(words.number(n) or 0)
            rows[str(family)] = (found_so_far[0], found_so_far[1])
    return rows


def kernel_sums(status: Mapping[str, Any]) -> tuple[int, int]:
    """Count the kernels compiled before and after ready, over all families."""
    rows = kernel_rows(status).values()
    return sum(before for before, _ in rows), sum(after for _, after in rows)


def _family_rows(status: Mapping[str, Any], families: object) -> list[Element]:
    counted = kernel_rows(status)
    present = families if isinstance(families, Mapping) else {}
    largest = max((max(pair) for pair in counted.values()), default=0)
    rows = []
    for family in dict.fromkeys([*counted, *map(str, present)]):
        before, after = counted.get(family, (0, 0))
        said = f"{family}: {before} before, {after} after"
        figure = figures.pair(before, after, largest, said, ("before", "late"))
        rows.append(
            element(
                "tr",
                element("th", family, scope="row"),
                element("td", figure, class_="figure"),
                element("td", words.count(before), class_="n"),
                element("td", words.count(after), class_="n alarm" if after else "n"),
                element("td", words.count(present.get(family)), class_="n wide-only"),
            )
        )
    return rows


def kernels(status: Mapping[str, Any]) -> Element:
    """Show by family what the engine compiled before and after ready, and how large its live cache is."""
    sizes = parts.section(status, "cache")
    rows = _family_rows(status, sizes.get("kernels"))
    return parts.card(
        "Kernels",
        "kernels",
        parts.table(
            [
                ("Family", ""),
                (parts.key(("before", "before"), ("late", "after")), "key-column"),
                ("Before ready", "n"),
                ("After ready", "n"),
                ("In cache", "n wide-only"),
            ],
            rows,
            "Kernels by family",
        )
        if rows
        else element("p", "None were compiled.", class_="soft"),
        parts.facts(
            [
                (
                    "Live cache",
                    f"{words.count(sizes.get('files'))} files, {words.size(sizes.get('bytes'))}"
                    if sizes.get("files")
                    else None,
                    sizes.get("path"),
                ),
            ]
        ),
    )
