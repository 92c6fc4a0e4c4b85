"""A change of the engine's command and environment: what a fallback sets, replaces and takes out.

Which one is taken, and when, is decided by the sidecar.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from sidecar.launcher.script import NESTED, Piece, chosen, commands_in, names_engine, script_at

Json = dict[str, Any]
#: From one word to before another, and the words that take their place.
Edit = tuple[int, int, list[str]]
#: A word with a dash that is a value all the same.
_NUMBER = re.compile(r"-\d")


class Unchangeable(ValueError):
    """The command can't be changed; the text says why."""


def is_change(found: object) -> bool:
    """Tell whether this is a change with every field of its type."""
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        return False
    lists = [found.get("options"), found.get("removed")]
    words = all(isinstance(each, list) and all(map(_is_words, each)) for each in lists)
    variables = found.get("environment")
    named = isinstance(variables, dict) and all(isinstance(word, str) for pair in variables.items() for word in pair)
    return words and named and isinstance(found.get("unset"), list) and all(isinstance(w, str) for w in found["unset"])


def _is_words(found: object) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(word, str) for word in found)


def changed_environment(environment: dict[str, str], change: Json) -> dict[str, str]:
    """Give the environment with what the change sets and without what it takes out."""
    kept = {name: value for name, value in environment.items() if name not in change["unset"]}
    return {**kept, **change["environment"]}


def changed_command(argv: list[str], change: Json) -> list[str]:
    """Give the command with the change in it, also where it stands in a shell's script. Raises Unchangeable."""
    if not change["options"] and not change["removed"]:
        return argv
    at = script_at(argv)
    if at is None:
        return _changed_words(argv, change)
    if names_engine(argv[at + 1 :]):
        # `sh -c 'exec "$@"' sh vllm serve`: the script only runs what comes after it.
        return [*argv[: at + 1], *_changed_words(argv[at + 1 :], change)]
    return [*argv[:at], _changed_script(argv[at], change, NESTED), *argv[at + 1 :]]


def _changed_words(words: list[str], change: Json) -> list[str]:
    changed = list(words)
    for first, last, new in _edits(words, change):
        changed[first:last] = new
    return changed


def _changed_script(script: str, change: Json, deep: int) -> str:
    commands = commands_in(script)
    if not commands or deep == 0:
        raise Unchangeable("its shell's script can't be taken apart")
    plain = [[word for _, _, word in command] for command in commands]
    pieces, words = commands[chosen(plain)], plain[chosen(plain)]
    inner = script_at(words)
    if inner is not None:
        return _replaced(script, pieces, (inner, inner + 1, [_changed_script(words[inner], change, deep - 1)]))
    for edit in _edits(words, change):
        script = _replaced(script, pieces, edit)
    return script


def _replaced(script: str, pieces: list[Piece], edit: Edit) -> str:
    first, last, new = edit
    text = " ".join(map(shlex.quote, new))
    if first == last:
        end = pieces[-1][1]
        return f"{script[:end]} {text}{script[end:]}"
    return script[: pieces[first][0]] + text + script[pieces[last - 1][1] :]


def _edits(words: list[str], change: Json) -> list[Edit]:
    """Give what is to be done to the words, the last first, so that the places of the others stay right."""
    edits: list[Edit] = []
    added: list[str] = []
    for option in change["removed"]:
        values = 1 if option[1:] == ["*"] else 0
        edits += [(first, last, []) for first, last in _places(words, option[0], values)]
    for option in change["options"]:
        places = _places(words, option[0], 1 if "=" in option[0] else len(option) - 1)
        edits += [(first, last, [] if index else option) for index, (first, last) in enumerate(places)]
        added += [] if places else option
    ends = [(len(words), len(words), added)] if added else []
    return [*ends, *sorted(edits, key=lambda edit: edit[0], reverse=True)]


def _places(words: list[str], option: str, values: int) -> list[tuple[int, int]]:
    """Find an option, from the engine's own name on, each time with its value or values."""
    found = []
    name = _spelt(option)
    for index in range(_first(words), len(words)):
        if not words[index].startswith("-") or _spelt(words[index]) != name:
            continue
        end = index + 1
        # With one value the next word is it; with more, all up to the next option.
        most = 0 if "=" in words[index] else len(words) if values > 1 else values
        while end - index - 1 < most and end < len(words) and _is_value(words[end]):
            end += 1
        found.append((index, end))
    return found


def _first(words: list[str]) -> int:
    """Tell where the engine's own options begin: not those of a tool that starts it."""
    named = [index for index in range(len(words)) if names_engine(words[index : index + 1])]
    return named[0] + 1 if named else 1


def _is_value(word: str) -> bool:
    return not word.startswith("-") or bool(_NUMBER.match(word))


def _spelt(word: str) -> str:
    """Spell an option's name in one way: argparse and vLLM take dashes for underscores."""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name
