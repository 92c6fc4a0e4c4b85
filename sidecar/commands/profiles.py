"""`profiles`: list the shipped warm-up profiles, or show one, also a file of one's own.

What a profile means is decided in `warmup/profiles.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sidecar.errors import EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from sidecar.commands.tables import Grid
    from sidecar.warmup.profiles import Profile


@click.group(invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the warm-up profiles, or show one.

    A profile says what traffic warms which GPU. `auto` takes the one made for the engine's SM version.

    \b
    Examples:
      warmup-sidecar profiles list
      warmup-sidecar profiles show sm90
      warmup-sidecar profiles show ./my-profile.yaml
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_(as_json: bool = False) -> int:
    """List the shipped profiles, and what is wrong with those that can't be used.

    \b
    Example:
      warmup-sidecar profiles list --json
    """
    from sidecar.warmup.profiles import list_profiles

    found = list_profiles()
    if as_json:
        entries = [
            {
                "name": each.name,
                "path": str(each.path),
                "problem": each.problem,
                "description": each.profile.description if each.profile else "",
                "sm": list(each.profile.match.sm) if each.profile else [],
                "steps": len(each.profile.steps) if each.profile else 0,
            }
            for each in found
        ]
        click.echo(json.dumps(entries, indent=2))
    else:
        from sidecar.commands.tables import Grid, show

        rows = [
            (
                each.name,
                ", ".join(each.profile.match.sm) or "any",
                str(len(each.profile.steps)),
                each.profile.description,
            )
            if each.profile
            else (each.name, "", "", each.problem)
            for each in found
        ]
        show([Grid("Profiles", ("name", "for", "steps", "description"), rows, frozenset({"steps"}))])
    return EXIT_USAGE if any(each.problem for each in found) else EXIT_OK


@command.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_(name: str, as_json: bool) -> None:
    """Show one profile: a shipped NAME, or the path of a file. Exit code 2 when it can't be used.

    \b
    Example:
      warmup-sidecar profiles show cpu
    """
    from sidecar.warmup.profiles import load_profile

    profile = load_profile(name)
    if as_json:
        click.echo(json.dumps(profile.model_dump(mode="json", by_alias=True), indent=2))
        return
    from sidecar.commands.tables import make_console, show

    console = make_console()
    console.print(f"{profile.name}: {profile.description}", markup=False)
    console.print()
    show([_steps(profile), _rules(profile)], console)


def _steps(profile: Profile) -> Grid:
    from sidecar.commands.tables import Grid

    rows = []
    for step in profile.steps:
        given: dict[str, Any] = step.model_dump(mode="json", by_alias=True, exclude={"kind", "name"}, exclude_none=True)
        shape = "; ".join(f"{name.replace('_', ' ')}: {_text(value)}" for name, value in given.items())
        rows.append((step.title, str(getattr(step, "kind", "")), shape))
    return Grid("Steps", ("step", "kind", "traffic"), rows)


def _rules(profile: Profile) -> Grid:
    from sidecar.commands.tables import Grid

    rows = [
        (name.replace("_", " "), _text(value))
        for part in (profile.converge, profile.budget, profile.assume)
        for name, value in part.model_dump(mode="json").items()
        if value is not None
    ]
    return Grid("Rules", ("rule", "value"), rows)


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return " ".join(f"{name} {_text(item)}" for name, item in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
