"""Finds the engine's own command among what a shell runs, and says what of it can't be told.

Nothing is run or expanded here, and flags are read in `argv.py`. The launcher has its own finder, since it imports nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"}
#: A shell in a shell is looked into so deep.
_NESTED = 3
_SCRIPT_FLAG = re.compile(r"-[A-Za-z]*c")
#: What a command prints there is not known, and its words are none of the engine's.
_SUBSTITUTED = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`")
_REDIRECTED = re.compile(r"(?<!\d)\d*[<>]&[\d-]*|&>")
#: Stands behind each line's end, so that a comment, which takes the line's end with it, still ends a command.
_LINE = "\x01"
_ENDS = f";&|(){_LINE}"


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """Words of the engine's command, and those of the other commands beside it.

    `open_ended`: it may have flags that are not seen; `mixed`: its words may be those of several commands.
    """

    words: list[str]
    open_ended: bool = False
    mixed: bool = False
    beside: tuple[str, ...] = ()


def own_command(argv: Sequence[str], is_engine: Callable[[Sequence[str]], bool]) -> OwnCommand:
    """Give the one command of a shell's script that starts an engine; the words as they are where no shell has a script.

    Where several commands of a script start one, or none that is known, all words of the script are given as `mixed`.
    """
    words = list(argv)
    if _script_at(words) is None:
        return OwnCommand(words, open_ended="" in words)
    try:
        commands = list(_commands(words, _NESTED))
    except ValueError:
        # Quotes that make no sense to us, such as an apostrophe in a here-document.
        return OwnCommand(" ".join(words).split(), open_ended=True, mixed=True)
    engines = [command for command in commands if is_engine(command)]
    if len(engines) != 1:
        return OwnCommand([word for command in commands for word in command], open_ended=True, mixed=True)
    beside = tuple(word for command in commands if command is not engines[0] for word in command)
    return OwnCommand(engines[0], any(not word or word.startswith("$") for word in engines[0]), beside=beside)


def _script_at(words: Sequence[str]) -> int | None:
    for index, word in enumerate(words):
        if PurePosixPath(word).name in _SHELLS:
            for at in range(index + 1, min(index + 6, len(words) - 1)):
                if _SCRIPT_FLAG.fullmatch(words[at]):
                    return at + 2 if words[at + 1] == "--" and at + 2 < len(words) else at + 1
    return None


def _commands(words: list[str], depth: int) -> Iterator[list[str]]:
    at = _script_at(words)
    if at is None or not depth:
        yield words
        return
    for command in _split(words[at]):
        yield from _commands(_with_arguments(command, words[at + 1 :]), depth - 1)


def _split(script: str) -> list[list[str]]:
    """Split a script into its commands. Raises ValueError where its quotes make no sense."""
    plain = script.replace("\\\n", " ")
    for _ in range(_NESTED):
        plain = _SUBSTITUTED.sub("$", plain)
    lexer = shlex.shlex(_REDIRECTED.sub(" ", plain).replace("\n", f"\n{_LINE}"), posix=True, punctuation_chars=_ENDS)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word and not word.strip(_ENDS):
            commands.append([])
        else:
            commands[-1].append(word.replace(_LINE, ""))
    return [command for command in commands if command]


def _with_arguments(command: list[str], arguments: list[str]) -> list[str]:
    """Put in what stands behind the script: its first word is `$0`, the others are `$@`."""
    found: list[str] = []
    for word in command:
        if word in ("$@", "$*", "${@}", "${*}"):
            found += arguments[1:]
        elif word in ("$0", "${0}") and arguments:
            found.append(arguments[0])
        else:
            found.append(word)
    return found
