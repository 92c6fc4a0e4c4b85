"""`run`: the daemon itself, beside an engine or with the engine as its child.

Nothing of the daemon's work is here, and nothing it does not need is imported: it must start within a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from sidecar import config
from sidecar.commands.settings_flags import loaded, settings_options, value_flags


@dataclass(frozen=True)
class Split:
    """The words after `run`: `flags` that are known, sentences about the others, and the engine's command."""

    flags: tuple[str, ...]
    unknown: tuple[str, ...]
    command: tuple[str, ...]


def split(words: Sequence[str]) -> Split:
    """Part known flags from unknown ones and from the engine's command, which begins after `--` or with the
    first word.

    Never raises: a native sidecar that ends over a wrong flag would keep its engine from starting for ever.
    """
    known = {**value_flags(), "--help": False, "-h": False}
    flags: list[str] = []
    unknown: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        name, joined, _ = word.partition("=")
        follows = bool(rest) and rest[0] != "--"
        if not word.startswith("-"):
            rest = ["--", word, *rest]
        elif name not in known or (joined and not known[name]):
            unknown.append(
                f"{name} is not a flag of `run`; it is left out. `warmup-sidecar run --help` lists them all."
            )
            if not joined and follows and not rest[0].startswith("-"):
                rest.pop(0)
        elif known[name] and not joined and not follows:
            unknown.append(f"{name} has no value; it is left out. Write {name}=VALUE.")
        else:
            flags += [word, rest.pop(0)] if known[name] and not joined else [word]
    return Split(tuple(flags), tuple(unknown), tuple(rest[1:]))


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
    problems = tuple(config.Problem("flag", sentence) for sentence in found.unknown)
    return run_daemon(dataclasses.replace(merged, problems=problems + merged.problems), found.command)
