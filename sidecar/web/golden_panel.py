"""The card about the output: what was sampled, how the comparison with the golden file ended, and every text that differs.

Reads its section of `/status` and copes with whatever is missing or odd in it; nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.web import parts, words
from sidecar.web.markup import Element, element, together

#: Prompts on the page; `/status` has all of them.
FAILED_SHOWN = 8
#: What a piece of a compared text is: element, and what a screen reader says before it.
_PIECES = {"gone": ("del", "expected: "), "new": ("ins", "got: ")}
_MARKS = {"del": ("[\N{MINUS SIGN}", "\N{MINUS SIGN}]"), "ins": ("[+", "+]")}


def _check(check: object) -> object:
    if not isinstance(check, Mapping) or "passed" not in check:
        return parts.value(check)
    mark = "\N{CHECK MARK}" if check["passed"] else "\N{MULTIPLICATION X}"
    said = f"{mark} {words.plain(check.get('name', 'check'))}: "
    said += str(check.get("detail") or ("passed" if check["passed"] else "failed"))
    return element("span", said, class_=None if check["passed"] else "alarm")


def went_wrong(compared: Mapping[str, Any]) -> str:
    """Say of how many prompts how many answers went wrong: a prompt is sent in several ways; empty when none did."""
    failed, asked = parts.mappings(compared, "failed"), words.number(compared.get("prompts"))
    names = len({str(one.get("name")) for one in failed})
    if not failed:
        return ""
    whole = f" of {words.count(asked)}" if asked else ""
    return f"{words.count(names)}{whole} {_many('prompt', asked or names)}, {_counted(len(failed), 'answer')}"


def _asked(compared: Mapping[str, Any]) -> str:
    counted = [
        _counted(number, name)
        for name, number in (
            ("prompt", words.number(compared.get("prompts"))),
            ("answer", words.number(compared.get("answers"))),
        )
        if number is not None
    ]
    return ", ".join(counted)


def _counted(number: float, name: str) -> str:
    return f"{words.count(number)} {_many(name, number)}"


def _many(name: str, number: float) -> str:
    return name if number == 1 else f"{name}s"


def golden(status: Mapping[str, Any]) -> Element:
    """Show how the check of the output ended, and what differs from the golden file."""
    found = parts.section(status, "golden")
    compared = parts.section(found, "golden")
    checks = found.get("checks")
    shown: list[object] = []
    if isinstance(checks, Mapping):
        shown = [f"{words.plain(name)}: {parts.value(value)}" for name, value in checks.items()]
    elif isinstance(checks, list | tuple):
        shown = [_check(check) for check in checks]
    elif checks is not None:
        shown = [f"{parts.value(checks)} checks"]
    return parts.card(
        "Output check",
        "golden",
        parts.said(found),
        element("ul", [element("li", line) for line in shown], class_="small") if shown else None,
        _comparison(compared) if compared else None,
        tag=parts.tag(found.get("outcome", "pending")),
    )


def _comparison(compared: Mapping[str, Any]) -> Element:
    failed = parts.mappings(compared, "failed")
    drift, allowed = words.number(compared.get("drift_percent")), words.number(compared.get("allowed_percent"))
    statistics = [
        (words.plain(name).capitalize(), f"{value:.4g}", None)
        for name, value in parts.section(compared, "statistics").items()
        if words.number(value) is not None
    ]
    rows: list[tuple[str, object, object]] = [
        ("Recording", compared.get("label"), None),
        ("Asked", _asked(compared), None),
        ("Went wrong", went_wrong(compared), None),
        (
            "Drift",
            f"{drift:.2f} %" if drift is not None else None,
            f"{allowed:g} % allowed" if allowed is not None else None,
        ),
        ("Took", words.seconds(compared.get("seconds")), None),
    ]
    notes = [element("li", note) for note in parts.listed(compared, "notes")]
    return together(
        element("h3", "Compared with the golden file"),
        parts.facts(rows),
        element("details", element("summary", "Statistics"), parts.facts(statistics)) if statistics else None,
        element("ul", notes, class_="small soft") if notes else None,
        [_failed(one, index == 0) for index, one in enumerate(failed[:FAILED_SHOWN])],
        element("p", f"{len(failed) - FAILED_SHOWN} more answers are in /status.", class_="small soft")
        if len(failed) > FAILED_SHOWN
        else None,
    )


def _failed(one: Mapping[str, Any], unfolded: bool) -> Element:
    """Show one prompt that went wrong: why, and both texts in one, marked by signs and words as well as by colour."""
    heading = element("summary", words.plain(one.get("name", "prompt")), ", ", words.plain(one.get("way", "")))
    difference = one.get("diff")
    pieces = [_piece(piece) for piece in (difference if isinstance(difference, list | tuple) else ())]
    return element(
        "details",
        heading,
        element("p", one.get("reason", ""), class_="small alarm"),
        element("p", pieces, class_="diff") if pieces else None,
        open="" if unfolded else None,
    )


def _piece(piece: object) -> object:
    if not isinstance(piece, Sequence) or isinstance(piece, str) or len(piece) != 2:
        return None
    kind, text = str(piece[0]), str(piece[1])
    if kind not in _PIECES:
        return text
    name, spoken = _PIECES[kind]
    before, after = _MARKS[name]
    return element(
        name,
        element("span", spoken, class_="hidden"),
        element("span", before, aria_hidden="true"),
        text,
        element("span", after, aria_hidden="true"),
    )
