"""`profiles from-aiconfigurator`: a profile and bench targets out of what a planner of deployments left.

What is read and written is decided in `warmup/aiconfigurator.py` and `warmup/planned_profile.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sidecar.commands.made_files import force_option, write_new
from sidecar.errors import EXIT_OK


@click.command("from-aiconfigurator")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--experiment", metavar="NAME", default="", help="agg, disagg, …; left out: the one with the best result."
)
@click.option("--rank", type=click.IntRange(1), default=1, show_default=True, help="Which of its configurations.")
@click.option(
    "--role", type=click.Choice(("prefill", "decode")), default=None, help="Of disagg: engines for which part."
)
@click.option("--sm", metavar="SM", default=None, help="SM version, where the system's name tells none.")
@click.option("--output", metavar="FILE", default=None, help="Write the profile to FILE, else print it.")
@click.option("--targets", metavar="FILE", default=None, help="Write targets for bench to FILE; -: print them.")
@force_option
def command(
    folder: Path, role: str | None, sm: str | None, output: str | None, targets: str | None, **rest: Any
) -> int:
    """Make a profile and bench targets from a result folder of AIConfigurator.

    DIR is what `aiconfigurator cli default … --save-dir` made. The profile extends the shipped one for that GPU, adds
    prefill and decode steps at the planned lengths and batches, and sets the traffic mix; each number has a comment that
    says where it stands in DIR. The targets are what was asked for, beside what the plan predicts.

    \b
    Examples:
      warmup-sidecar profiles from-aiconfigurator ./results --output mine.yaml --targets targets.yaml
      warmup-sidecar profiles from-aiconfigurator ./results --experiment disagg --role decode
      warmup-sidecar bench --url http://127.0.0.1:8000 --targets targets.yaml
    """
    from sidecar.commands.engine_given import checked_sm
    from sidecar.warmup.aiconfigurator import read_plan
    from sidecar.warmup.planned_profile import profile_text, targets_text

    plan = read_plan(folder, rest["experiment"], rest["rank"], role or "")
    profile = profile_text(plan, checked_sm(sm or ""))
    # Both are made before one is written: a fault leaves nothing behind.
    texts: list[tuple[str | None, str]] = [(targets, targets_text(plan))] if targets else []
    texts += [(output, profile)] if output or not targets else []
    write_new(texts, force=rest["force"])
    return EXIT_OK
