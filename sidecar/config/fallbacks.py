"""How changes of the engine's command are written in `WARMUP_FALLBACKS`, and what each of them asks for.

Nothing is changed here: the launcher does that (`launcher/change.py`), when the output check fails (`lifecycle`).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

#: A variable and its value; options begin with a dash, removals with an exclamation mark.
_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
#: What the toolchain's facts come from, and what names the pod's own parts: a key would not tell of the change.
_FIXED = re.compile(r"(PATH|HOME|TMPDIR|CC|CXX|CUDA_HOME|CUDA_PATH|WARMUP_.*|LD_.*|PYTHON.*|KUBERNETES_.*)")
#: A change is shown in the status and kept in the store.
_SECRET = re.compile(r"(api|access|private|auth)[_-]?key|token$|secret|passw|credential", re.IGNORECASE)
#: A longer list would restart an engine for hours before somebody is asked.
MOST = 8


@dataclass(frozen=True)
class Change:
    """One change of the engine's command. `text` is how it is shown, and known in the store.

    `options` are set, each with its values as further words (or as `--name=value`); of `removed` those with a star lose
    their value, too. `environment` is set, `unset` is taken out.
    """

    text: str
    options: tuple[tuple[str, ...], ...] = ()
    removed: tuple[tuple[str, ...], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give the change as it stands in `sidecar.json` and `decision.json`."""
        return {
            "text": self.text,
            "options": [list(words) for words in self.options],
            "removed": [list(words) for words in self.removed],
            "environment": dict(self.environment),
            "unset": list(self.unset),
        }


def changes(text: str) -> tuple[Change, ...]:
    """Read a list of changes, separated by semicolons. Raises ValueError with a sentence that says what is wrong."""
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";")
        lexer.whitespace_split, lexer.commenters = True, ""
        words = list(lexer)
    except ValueError as error:
        raise ValueError(f"its quotes don't match ({str(error).lower()})") from None
    found: list[list[str]] = [[]]
    for word in words:
        if word.strip(";"):
            found[-1].append(word)
        else:
            found.append([])
    read = tuple(_change(each) for each in found if each)
    texts = [each.text for each in read]
    if doubled := next((text for text in texts if texts.count(text) > 1), ""):
        raise ValueError(f"`{doubled}` is named twice")
    if len(read) > MOST:
        raise ValueError(f"it names {len(read)} changes, and {MOST} are the most")
    return read


def _change(words: list[str]) -> Change:
    options: list[list[str]] = []
    removed: list[tuple[str, ...]] = []
    environment: dict[str, str] = {}
    unset: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("!"):
            name = word[1:]
            starred = rest[:1] == ["*"]
            rest = rest[1:] if starred else rest
            _put_removal(name, starred, removed, unset)
        elif (variable := _VARIABLE.fullmatch(word)) is not None:
            environment[_allowed(variable[1])] = variable[2]
        elif _OPTION.fullmatch(word.partition("=")[0]):
            _refuse_secret(word)
            options.append([word])
        elif options and "=" not in options[-1][0]:
            options[-1].append(word)
        else:
            raise ValueError(
                f"`{word}` is no change: write `--option value`, `NAME=value`, `!--option` (a flag is removed), "
                "`!--option *` (with its value) or `!NAME`"
            )
    doubled = {words[0].partition("=")[0] for words in options} & {name for name, *_ in removed}
    if doubled or (doubled := set(environment) & set(unset)):
        raise ValueError(f"`{min(doubled)}` is both set and removed: to set an option replaces it, with its value")
    return Change(
        text=" ".join(word if word == "*" else shlex.quote(word) if _is_odd(word) else word for word in words),
        options=tuple(map(tuple, options)),
        removed=tuple(removed),
        environment=tuple(sorted(environment.items())),
        unset=tuple(unset),
    )


def _put_removal(name: str, starred: bool, removed: list[tuple[str, ...]], unset: list[str]) -> None:
    if _NAME.fullmatch(name) and not starred:
        unset.append(_allowed(name))
    elif _OPTION.fullmatch(name):
        removed.append((name, "*") if starred else (name,))
    else:
        raise ValueError(f"`!{name}` removes nothing: write `!--option`, `!--option *` (with its value) or `!NAME`")


def _allowed(name: str) -> str:
    _refuse_secret(name)
    if _FIXED.fullmatch(name):
        raise ValueError(
            f"{name} can't be changed by a fallback, because the caches' keys are made of what it leads to"
        )
    return name


def _refuse_secret(word: str) -> None:
    if _SECRET.search(word.partition("=")[0]):
        raise ValueError("a fallback must not hold a secret: it is shown in the status and kept in the store")


def _is_odd(word: str) -> bool:
    return not word or re.search(r"[\s;'\"\\]", word) is not None
