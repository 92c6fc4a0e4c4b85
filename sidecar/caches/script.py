"""Finds the engine's own command in an argument list: in a shell's script, behind other commands.

Nothing is run or expanded here, and options have no meaning here (`normalise`). The launcher has its own copy of the
splitting (`launcher/script.py`), because nothing of it may be imported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
# Python modules that are engines; Dynamo's others, such as its frontend, often begin the same script.
_MODULES = ("vllm.", "sglang.", "dynamo.vllm", "dynamo.sglang", "dynamo.trtllm", "dynamo.mocker")
# A shell in a shell is looked into so deep.
_NESTED = 3
_FLAG = re.compile(r"-[A-Za-z]*c")
_PIECE = re.compile(
    r"(?P<note>(?<![^\s;&|()])#[^\n]*)|(?P<gap>(?:;|&(?!>)|\||\n|\(|\))+)"
    r"|(?P<word>(?:[<>]&|&>|[^\s;&|()\"'\\]|\\.|\"(?:[^\"\\]|\\.)*\"|'[^']*')+)|(?P<odd>\S)",
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Command:
    """The engine's words, the commands around them, and whether all of its options can be seen in the words.

    `expands` tells that a shell will expand variables and commands in the words.
    """

    words: tuple[str, ...]
    around: tuple[str, ...] = ()
    clear: bool = True
    expands: bool = False


def command_of(argv: Sequence[str]) -> Command:
    """Unwrap what shells are given by `-c`. Words that make no sense to a shell are taken as they are; never raises."""
    words, around, clear, expands = list(argv), list[str](), True, False
    for _ in range(_NESTED):
        at = _script_at(words)
        if at is None:
            break
        shell, script = at
        around += words[:shell] + words[script + 1 :]
        commands = _commands_in(words[script])
        if not commands:
            return Command(words=tuple(words[script].split()), around=tuple(around), clear=False)
        # `cd /opt/vllm && vllm serve` names it twice and starts it once.
        engines = [command for command in commands if _starts_engine(command)] or [
            command for command in commands if _names_engine(command)
        ]
        words, expands = (engines or commands[-1:])[0], True
        # Which of two commands will run is not known here.
        clear = clear and len(engines) < 2
        around += _joined(command for command in commands if command is not words)
    if expands and words[:1] == ["exec"]:
        words = words[1:]
    return Command(
        words=tuple(words), around=tuple(around), clear=clear and not _is_script_file(words), expands=expands
    )


def _commands_in(script: str) -> list[list[str]]:
    """Split a script into commands; none when its quotes make no sense."""
    commands: list[list[str]] = [[]]
    for found in _PIECE.finditer(script.replace("\\\n", "  ")):
        if found["odd"]:
            return []
        if found["gap"]:
            commands.append([])
        elif found["word"]:
            commands[-1].append("".join(shlex.split(found["word"])))
    return [command for command in commands if command]


def _script_at(words: Sequence[str]) -> tuple[int, int] | None:
    """Tell where a shell is and which word its `-c` has as its script."""
    for index, word in enumerate(words):
        if _file(word) in _SHELLS:
            for at in range(index + 1, min(index + 6, len(words) - 1)):
                if _FLAG.fullmatch(words[at]):
                    return index, at + 1
    return None


def _joined(commands: Iterable[Sequence[str]]) -> list[str]:
    return [word for command in commands for word in (*command, ";")]


def _starts_engine(words: Sequence[str]) -> bool:
    return any(
        _file(word) == "trtllm-serve"
        or (_file(word) in ("vllm", "sglang") and after == "serve")
        or (word in ("-m", "--module") and after.startswith(_MODULES))
        for word, after in zip_longest(words, words[1:], fillvalue="")
    )


def _names_engine(words: Sequence[str]) -> bool:
    return any(_file(word) in ("vllm", "trtllm-serve") or word.startswith(("vllm.", "sglang.")) for word in words)


def _is_script_file(words: Sequence[str]) -> bool:
    """Tell whether a file that can't be seen here says how the engine is started."""
    first = _file(words[0]) if words else ""
    return (first in _SHELLS or first.endswith(".sh")) and not _names_engine(words)


def _file(word: str) -> str:
    return word.rsplit("/", 1)[-1]
