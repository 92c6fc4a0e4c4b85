"""Finds the engine's own command in what a shell was given to run.

Nothing is run or expanded here, and what counts as a secret is not known.
"""

from __future__ import annotations

import os
import re
import shlex
from itertools import zip_longest

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
#: Python modules that are engines; Dynamo's others, such as its frontend, often begin the same script.
MODULES = ("vllm.", "sglang.", "dynamo.vllm", "dynamo.sglang", "dynamo.trtllm", "dynamo.mocker")
#: A shell in a shell is looked into so deep.
NESTED = 3
_FLAG = re.compile(r"-[A-Za-z]*c$")
_PIECE = re.compile(
    r"(?P<note>(?<![^\s;&|()])#[^\n]*)|(?P<gap>(?:;|&(?!>)|\||\n|\(|\))+)"
    r"|(?P<word>(?:[<>]&|&>|[^\s;&|()\"'\\]|\\.|\"(?:[^\"\\]|\\.)*\"|'[^']*')+)|(?P<odd>\S)",
    re.DOTALL,
)

#: Where a word stands in a script, and the word as the shell understands it.
Piece = tuple[int, int, str]


def commands_in(script: str) -> list[list[Piece]] | None:
    """Split a script into its commands' words; None when its quotes make no sense."""
    commands: list[list[Piece]] = [[]]
    for found in _PIECE.finditer(script.replace("\\\n", "  ")):
        if found["odd"]:
            return None
        if found["gap"]:
            commands.append([])
        elif found["word"]:
            word = "".join(shlex.split(found["word"]))
            commands[-1].append((found.start(), found.end(), word))
    return [command for command in commands if command]


def script_at(words: list[str]) -> int | None:
    """Tell which word a shell's `-c` has as its script."""
    for index, word in enumerate(words):
        if os.path.basename(word) in SHELLS:
            for at in range(index + 1, min(index + 6, len(words) - 1)):
                if _FLAG.match(words[at]):
                    return at + 1
    return None


def starts_engine(words: list[str]) -> bool:
    """Tell whether a command starts an inference engine that is known by name."""
    return any(
        os.path.basename(word) == "trtllm-serve"
        or (os.path.basename(word) in ("vllm", "sglang") and after == "serve")
        or (word in ("-m", "--module") and after.startswith(MODULES))
        for word, after in zip_longest(words, words[1:], fillvalue="")
    )


def names_engine(words: list[str]) -> bool:
    """Tell whether a command has a word by which an inference engine is known: `vllm "$@"` may start it."""
    return any(
        os.path.basename(word) in ("vllm", "trtllm-serve") or word.startswith(("vllm.", "sglang.")) for word in words
    )


def chosen(commands: list[list[str]]) -> int:
    """Tell which of a script's commands is the engine's: `cd /opt/vllm && vllm serve` names it twice and starts it once."""
    for is_engine in (starts_engine, names_engine):
        for index, words in enumerate(commands):
            if is_engine(words):
                return index
    return len(commands) - 1


def engine_words(argv: list[str]) -> list[str]:
    """Give the words of the engine's own command, out of a shell's script where there is one."""
    words = list(argv)
    for _ in range(NESTED):
        at = script_at(words)
        if at is None:
            break
        commands = commands_in(words[at])
        if not commands:
            return words[at].split()
        plain = [[word for _, _, word in command] for command in commands]
        words = plain[chosen(plain)]
    return words
