"""HTML and SVG elements as functions: whatever is not an element already is escaped, so that nothing can be
forgotten.

What the page shows is decided in `page.py` and `panels.py`.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable


class Element(str):
    """Markup that is safe to put into a page as it is. Only this file makes it from text."""

    __slots__ = ()


#: Elements that HTML closes by itself. HTML Living Standard, "Void elements".
VOID = frozenset({"meta", "link", "br", "hr"})
#: Longest piece of foreign text on the page, in characters; an engine's error may be a whole traceback.
LONGEST = 2000


def text(value: object) -> Element:
    """Escape any value; control characters, which HTML forbids, become a visible mark."""
    if isinstance(value, Element):
        return value
    shown = str(value)
    if len(shown) > LONGEST:
        shown = shown[:LONGEST] + " …"
    return Element(
        html.escape("".join("\N{REPLACEMENT CHARACTER}" if _misleads(letter) else letter for letter in shown))
    )


def _misleads(letter: str) -> bool:
    """Tell control, half-surrogate and direction-changing characters, by Unicode's general category."""
    return letter not in "\n\t" and unicodedata.category(letter) in ("Cc", "Cs", "Cf")


def element(name: str, /, *children: object, **attributes: object) -> Element:
    """Make an element. None children and attributes are left out; `class_` and `aria_label` lose and
    change their `_`.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            words.append(f'{key.rstrip("_").replace("_", "-")}="{text(value)}"')
    opening = Element("<" + " ".join(words) + ">")
    if name in VOID:
        return opening
    return Element(opening + together(*children) + f"</{name}>")


def together(*children: object) -> Element:
    """Put elements and values side by side; iterables are flattened, None is left out."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Iterable) and not isinstance(child, str | bytes):
            parts.append(together(*child))
        else:
            parts.append(text(child))
    return Element("".join(parts))


def raw(content: str) -> Element:
    """Mark a constant of this package, such as the style sheet, as safe. Never call it with anything from
    outside.
    """
    return Element(content)
