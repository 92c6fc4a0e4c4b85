"""`demo`: where the demo's folders are, how it is shown, and where its figures go.

What the demo does is in `sidecar/demo/`.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError

if TYPE_CHECKING:
    from sidecar.demo.figures import DemoFigures
    from sidecar.demo.view import View


@click.command()
@click.option(
    "--engine-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=None,
    help="Where the CPU engine is prepared and found again (2.4 GB). [default: ~/.cache/warmup-sidecar/engine]",
)
@click.option("--keep", is_flag=True, help="Keep logs, store and caches of the two starts; a failed demo always does.")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=None,
    help="Write all figures to FILE as JSON; `-`: standard output, all else then on standard error.",
)
@click.option(
    "--no-baseline",
    is_flag=True,
    help="Leave out the third start, the engine without sidecar on an empty cache (one to two minutes).",
)
@click.option(
    "--pip-args",
    metavar="ARGS",
    default="",
    envvar="WARMUP_DEMO_PIP_ARGS",
    help="Added to `pip install` of the engine, such as an additional index. [WARMUP_DEMO_PIP_ARGS]",
)
@click.option("--plain", is_flag=True, help="Lines instead of a live view, as when the output is no terminal.")
def command(
    engine_dir: Path | None, keep: bool, json_file: Path | None, no_baseline: bool, pip_args: str, plain: bool
) -> int:
    """Start a real vLLM on this machine's CPU twice, and measure what a warm start is worth.

    Prepares a CPU build of vLLM in a virtual environment of its own (needs Python 3.11, g++, 6 GB of disk, a
    few minutes; later calls reuse it), makes a tiny model, and does the main job twice: first with an empty
    store, then, after the live cache was wiped, restored from it. The third start is the engine alone. Every
    number in the closing table is measured.

    Where pip does not find the CPU build of torch by itself, PyTorch's CPU package index is needed: give it
    with --pip-args "--extra-index-url ADDRESS".

    \b
    Examples:
      warmup-sidecar demo
      warmup-sidecar demo --no-baseline --json figures.json
    """
    from sidecar.demo.run import Options, run_demo

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmup-sidecar"
    if json_file and str(json_file) != "-" and not json_file.absolute().parent.is_dir():
        raise UsageError(f"{json_file} can't be written: its directory does not exist.")
    options = Options(
        engine_dir=(engine_dir or cache / "engine").absolute(),
        model_dir=cache / "models",
        environment=dict(os.environ),
        pip_arguments=_words(pip_args),
        keep=keep,
        baseline=not no_baseline,
    )
    to_stderr = str(json_file) == "-"
    figures = run_demo(options, _view(plain, to_stderr))
    _show(figures, to_stderr)
    if json_file:
        _write(figures, json_file)
    failed = any(case.error for start in figures.starts for case in start.cases)
    return EXIT_NOT_SO if failed else EXIT_OK


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--pip-args can't be read as words of a shell: {error}.") from error


def _view(plain: bool, to_stderr: bool) -> View:
    from rich.console import Console

    from sidecar.demo.live_view import LiveView
    from sidecar.demo.view import PlainView

    console = Console(stderr=to_stderr)
    if plain or not console.is_terminal:
        return PlainView(lambda text: click.echo(text, err=to_stderr))
    return LiveView(console)


def _show(figures: DemoFigures, to_stderr: bool) -> None:
    from rich.console import Console

    from sidecar.commands.tables import PLAIN_WIDTH, Grid, show
    from sidecar.demo.summary import rows, sentences

    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, highlight=False, width=PLAIN_WIDTH, no_color=True)
    titles = tuple(start.title for start in figures.starts)
    console.print()
    show([Grid("What was measured", ("", *titles), rows(figures.starts), frozenset(titles))], console)
    for sentence in sentences(figures):
        console.print()
        console.print(sentence, markup=False)


def _write(figures: DemoFigures, json_file: Path) -> None:
    text = json.dumps(figures.to_json(), indent=2) + "\n"
    if str(json_file) == "-":
        click.echo(text, nl=False)
    else:
        json_file.write_text(text, encoding="utf-8")
