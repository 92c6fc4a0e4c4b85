"""What the cards of the status page are made of: frames, coloured words, lists of facts, tables, meters.

What is shown is decided in `panels.py` and `warmup_panels.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sidecar.web import figures, words
from sidecar.web.markup import Element, element, together


def card(title: str, name: str, *children: object, tag: Element | None = None) -> Element:
    """Make a card with its heading; `name` is its anchor and class."""
    heading = element("h2", element("span", title, id=f"{name}-title"), tag)
    return element("section", heading, *children, class_=f"card {name}", id=name, aria_labelledby=f"{name}-title")


def tag(word: object) -> Element:
    """Make a coloured word of an outcome or state."""
    return element("span", words.plain(word), class_=f"tag {words.tone(word)}")


def facts(rows: Iterable[tuple[str, object, object]]) -> Element | None:
    """Make a list of name, value and (if any) where it came from; rows without a value are left out."""
    found = [
        (
            element("dt", name),
            element("dd", value, element("span", source, class_="from") if source else None),
        )
        for name, value, source in rows
        if value not in (None, "", words.NOTHING)
    ]
    return element("dl", found, class_="facts") if found else None


def table(headings: Sequence[tuple[object, str]], rows: Iterable[Element], label: str) -> Element:
    """Make a table of (heading, class) and rows that scrolls by itself on a narrow screen."""
    head = element(
        "thead",
        element("tr", [element("th", name, scope="col", class_=class_ or None) for name, class_ in headings]),
    )
    return element(
        "div",
        element("table", head, element("tbody", rows)),
        class_="scroll",
        role="region",
        aria_label=label,
        tabindex="0",
    )


def section(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Give a section of the status, empty when it is absent or no mapping."""
    found = status.get(name)
    return found if isinstance(found, Mapping) else {}


def listed(found: Mapping[str, Any], name: str) -> list[Any]:
    """Give a list of the status, empty when it is absent or no list."""
    items = found.get(name)
    return list(items) if isinstance(items, list | tuple) else []


def mappings(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Give those items of a list of the status that are mappings."""
    return [item for item in listed(found, name) if isinstance(item, Mapping)]


def said(section: Mapping[str, Any]) -> Element | None:
    """Make the section's own sentence, if it has one."""
    return element("p", section["sentence"]) if section.get("sentence") else None


def short(digest: object) -> Element | None:
    """Shorten a digest; the whole of it is its title."""
    return element("code", str(digest)[:16], title=digest) if digest else None


def key(*parts: tuple[str, str]) -> Element:
    """Make a legend of (colour class, name)."""
    return together([element("span", figures.swatch(class_), name, class_="key") for class_, name in parts])


def legend(*parts: tuple[str, str]) -> Element:
    """Make a legend of (colour class, name) as a line of its own above a drawing."""
    return element("p", key(*parts), class_="keys small")


def value(found: object) -> object:
    """Write any JSON value for people; None and empty ones give nothing."""
    if isinstance(found, Mapping):
        return ", ".join(
            f"{words.plain(key)} {value(item)}" for key, item in found.items() if item not in (None, "", [])
        )
    if isinstance(found, list | tuple):
        return ", ".join(str(value(item)) for item in found) or None
    if isinstance(found, bool):
        return "yes" if found else "no"
    return words.count(found) if isinstance(found, int) else found


def gauge(name: str, ratio: float, value: str) -> Element:
    """Make a meter with its name and value; ratio 0..1."""
    tone = "bad" if ratio > 0.97 else "care" if ratio > 0.9 else "work"
    line = element("p", element("span", name), element("span", value, class_="n"), class_="small")
    return element("div", line, figures.meter(ratio, f"{name}: {value}"), class_=f"meter {tone}")
