"""The command `warmup-sidecar`: its subcommands, loaded when they are used, and what errors turn into.

No command does its work here; each has a file in `commands/`.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from sidecar import __version__
from sidecar.errors import EXIT_BUG, EXIT_OK, EXIT_USAGE, WarmupError

PROGRAM = "warmup-sidecar"

#: What a shell reports for a command that its terminal interrupted (128 + SIGINT), or whose reader went away
#: (128 + SIGPIPE).
EXIT_INTERRUPTED = 130
EXIT_READER_GONE = 141


@dataclass(frozen=True)
class Entry:
    """One subcommand: the module of `sidecar.commands` whose `command` it is, and what it does."""

    module: str
    summary: str


#: README: every subcommand with its meaning.
COMMANDS: Mapping[str, Entry] = {
    "run": Entry("run", "Run the sidecar beside an engine, or start the engine too: run -- COMMAND."),
    "demo": Entry("demo", "Start a real vLLM on this machine's CPU twice and measure what a warm start is worth."),
    "check": Entry("check", "Say what the settings are, where they come from, and what is wrong with them."),
    "status": Entry("status", "Show where one or many running sidecars are, once or live, as tables or JSON."),
    "wait": Entry("wait", "Wait until a running sidecar is ready, or lets the engine start."),
    "drain": Entry("drain", "Withdraw readiness of a running sidecar, until `rewarm` is asked for."),
    "rewarm": Entry("rewarm", "Warm the engine up and check its output once more."),
    "warm": Entry("warm", "Warm a running engine up once, without a sidecar, and show what it was good for."),
    "bench": Entry("bench", "Measure what requests to a running engine wait for, or compare two such runs."),
    "golden": Entry("golden", "Record what a trusted engine answers, and check any engine against it."),
    "profiles": Entry("profiles", "List, show, check and explain the warm-up profiles; make one of a plan or of what users send."),
    "plan": Entry("plan", "Show what warm-up would send to an engine, request by request, without sending it."),
    "store": Entry("store", "List, check and explain the shared store; keep bad generations from being used."),
    "injector": Entry("injector", "Serve the admission webhook that puts the sidecar into labelled pods."),
    "restore": Entry("restore", "Lay the kernel caches down once, for clusters without native sidecars, and end."),
    "launcher": Entry("launcher", "Put the launcher into the control directory, for clusters without native sidecars."),
    "dashboard": Entry("dashboard", "Print the Grafana dashboard for this version, or check a file against it."),
    "docs": Entry("docs", "Print the reference tables, write them into the README, or check those there."),
    "completion": Entry("completion", "Print the completion script for bash, zsh or fish."),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is used, so that `run` starts fast and stays small."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click gives it
        """List the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the subcommand."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(f"sidecar.commands.{entry.module}").command
        assert isinstance(command, click.Command), f"sidecar.commands.{entry.module}.command must be a click command"
        command.short_help = entry.summary
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write names and meanings without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done; 2 wrong use, setting or profile; 3 what was asked for is not so; 70 our bug.",
)
@click.version_option(__version__, prog_name=PROGRAM)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an unexpected error.")
def cli() -> None:
    """Start LLM inference engines warm, and let a pod be ready only when it is.

    Settings come from flags, else from WARMUP_ variables, else from the YAML file that WARMUP_CONFIG names,
    else from defaults; `warmup-sidecar check` shows them.

    \b
    Examples:
      warmup-sidecar demo
      warmup-sidecar run -- vllm serve Qwen/Qwen3-8B
      warmup-sidecar check --store /mnt/store
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give the exit code: errors become one sentence each on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # An engine may name itself with what no terminal can show.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = cli.main(args=words, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except WarmupError as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"{PROGRAM}: interrupted.", err=True)
        return EXIT_INTERRUPTED
    except SystemExit as ending:
        # From click, in this mode: 1 when the reader of the output went away, else the end of a completion.
        return EXIT_READER_GONE if ending.code == 1 else EXIT_OK
    except BrokenPipeError:
        # What is still buffered would fail again when the interpreter flushes at its end (Python
        # documentation, signal).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_READER_GONE
    except Exception as error:
        return _bug(error, words)
    return code if isinstance(code, int) else EXIT_OK


def _bug(error: Exception, words: list[str]) -> int:
    verbose = "--debug" in words[:1] or os.environ.get("WARMUP_LOG_LEVEL") == "debug"
    if verbose:
        traceback.print_exception(error)
    more = "" if verbose else f" Run `{PROGRAM} --debug …` again for the traceback."
    what = " ".join(f"{type(error).__name__}: {error}".split())
    click.echo(f"{PROGRAM}: this is a bug of ours, please report it ({what}).{more}", err=True)
    return EXIT_BUG


if __name__ == "__main__":
    sys.exit(main())
