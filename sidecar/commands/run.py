"""`run`: the daemon itself, beside an engine or with the engine as its child.

Nothing of the daemon's work is here, and nothing it does not need is imported: it must start within a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from sidecar import config
from sidecar.commands.settings_flags import loaded, settings_options, value_flags

#: Words that people write after a switch.
SAID = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False, "on": True, "off": False}


@dataclass(frozen=True)
class Split:
    """The words after `run`: `flags` that are known, sentences about the others, and the engine's command."""

    flags: tuple[str, ...]
    unknown: tuple[str, ...]
    command: tuple[str, ...]


def split(words: Sequence[str]) -> Split:
    """Part known flags from everything else, and from the engine's command, which begins after `--` only.

    Never raises, and takes no stray word for a command: a native sidecar that ends over a wrong flag would keep
    its engine from starting for ever.
    """
    known = {**value_flags(), "--help": False, "-h": False}
    flags: list[str] = []
    unknown: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        name, joined, value = word.partition("=")
        follows = bool(rest) and not _is_flag(rest[0], known)
        if not word.startswith("-"):
            # What follows may be flags of a command whose `--` was forgotten; taken for ours they would do harm.
            rest = rest[rest.index("--") :] if "--" in rest else []
            unknown.append(f"Everything from {word} on is left out: the engine's command begins after `--`.")
        elif name not in known:
            unknown.append(_not_a_flag(name))
            if not joined and follows:
                rest.pop(0)
        elif not known[name]:
            said = value if joined else rest.pop(0) if follows and rest[0].lower() in SAID else ""
            flags.append(_switched(name, said))
        elif not joined and not follows:
            unknown.append(f"{name} has no value; it is left out. Write {name}=VALUE.")
        else:
            flags += [word] if joined else [word, rest.pop(0)]
    return Split(tuple(flags), tuple(unknown), tuple(rest[1:]))


def _is_flag(word: str, known: Mapping[str, bool]) -> bool:
    return word == "--" or word.partition("=")[0] in known


def _not_a_flag(name: str) -> str:
    return f"{name} is not a flag of `run`; it is left out. `warmup-sidecar run --help` lists them all."


def _switched(name: str, said: str) -> str:
    """Give the form of a switch that a following `true` or `false` means."""
    if SAID.get(said.lower(), True):
        return name
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else f"--no-{name.removeprefix('--')}"


class RunCommand(click.Command):
    """A command whose wrong flags become problems of the settings instead of an exit."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Hand click only what it knows; keep the rest for `run`."""
        found = split(args)
        ctx.meta["split"] = found
        return super().parse_args(ctx, list(found.flags))


@click.command(cls=RunCommand, options_metavar="[FLAGS] [-- COMMAND …]")
@settings_options()
@click.pass_context
def command(ctx: click.Context, /, **arguments: Any) -> int:
    """Run the sidecar until it is told to end.

    Beside an engine that somebody else starts (a pod's container), it restores the kernel caches, warms the
    engine up and answers probes. With a COMMAND after `--` it also starts the engine as its child, passes
    signals on, and ends with the engine's exit code.

    A wrong setting never ends it: the default counts instead, and log, /status and `warmup-sidecar check` say
    which.

    \b
    Examples:
      warmup-sidecar run
      warmup-sidecar run --store /mnt/store --on-unwarmed hold
      warmup-sidecar run --store /mnt/store -- vllm serve Qwen/Qwen3-8B --max-model-len 8192
    """
    from sidecar.daemon import run_daemon

    found: Split = ctx.meta["split"]
    merged = loaded(arguments)
    if any(sentence.startswith("--trusted-keys-file ") for sentence in found.unknown):
        merged = dataclasses.replace(merged, settings=merged.settings.model_copy(update={"store": ""}))
    problems = tuple(config.Problem("flag", sentence) for sentence in found.unknown)
    return run_daemon(dataclasses.replace(merged, problems=problems + merged.problems), found.command)
