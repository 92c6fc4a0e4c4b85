"""`profiles`: list, show, check and explain warm-up profiles, shipped ones and files of one's own.

What a profile means is decided in `warmup/profiles.py`, which one is taken in `warmup/choice.py`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands import learning, profile_making
from sidecar.commands.engine_given import Given, chosen, engine_options, given
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from sidecar.commands.tables import Grid
    from sidecar.warmup.choice import Choice, Considered
    from sidecar.warmup.planner import Plan
    from sidecar.warmup.profiles import Listed, Profile


@click.group(invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the warm-up profiles, show one, check one's own, explain which one is taken, and make one.

    A profile says what traffic warms which GPU. `auto` takes the most specific one that fits the engine.

    \b
    Examples:
      warmup-sidecar profiles list
      warmup-sidecar profiles show sm90
      warmup-sidecar profiles check ./my-profile.yaml
      warmup-sidecar profiles explain --sm sm90 --kv-cache-dtype fp8_e4m3
      warmup-sidecar profiles from-aiconfigurator ./results --output mine.yaml --targets targets.yaml
      warmup-sidecar profiles learn --prometheus http://127.0.0.1:9090 --sm sm90 --output mine.yaml
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
        click.echo(json.dumps([_entry(each) for each in found], indent=2))
    else:
        from sidecar.commands.tables import Grid, show

        rows = [
            (each.name, _made_for(each.profile), str(len(each.profile.steps)), each.profile.description)
            if each.profile
            else (each.name, "", "", each.problem)
            for each in found
        ]
        show([Grid("Profiles", ("name", "for", "steps", "description"), rows, frozenset({"steps"}))])
    return EXIT_USAGE if any(each.problem for each in found) else EXIT_OK


def _entry(listed: Listed) -> dict[str, Any]:
    profile = listed.profile
    return {
        "name": listed.name,
        "path": str(listed.path),
        "problem": listed.problem,
        "description": profile.description if profile else "",
        "only_extended": profile.only_extended if profile else False,
        "match": profile.match.model_dump(mode="json") if profile else {},
        "sm": list(profile.match.sm) if profile else [],
        "steps": len(profile.steps) if profile else 0,
    }


def _made_for(profile: Profile) -> str:
    if profile.only_extended:
        return "others to extend"
    conditions = [
        value if isinstance(value, str) else "|".join(value)
        for name, value in profile.match
        if value and name not in ("sm", "engine")
    ]
    return ", ".join((" ".join(profile.match.sm) or "any", *conditions))


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
    show([_match(profile), _steps(profile), _rules(profile)], console)


@command.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def check_(names: tuple[str, ...], as_json: bool) -> int:
    """Check profiles: shipped NAMEs, or paths of files; without any, all shipped ones.

    Every problem has its file, line and column. What a profile lacks on any engine is a warning. Exit code 2 when one
    can't be used.

    \b
    Example:
      warmup-sidecar profiles check ./my-profile.yaml
    """
    from sidecar.errors import ProfileError
    from sidecar.warmup.planner import profile_warnings
    from sidecar.warmup.profiles import list_profiles, load_profile

    rows: list[tuple[str, str, str]] = []
    for name in names or tuple(each.name for each in list_profiles()):
        try:
            warnings = profile_warnings(load_profile(name))
        except ProfileError as error:
            rows += [(name, "problem", line) for line in str(error).splitlines()]
            continue
        rows += [(name, "warning", each) for each in warnings] or [(name, "ok", "It can be used.")]
    if as_json:
        click.echo(json.dumps([dict(zip(("name", "level", "sentence"), row, strict=True)) for row in rows], indent=2))
    else:
        from sidecar.commands.tables import Grid, show

        show([Grid("Checks", ("profile", "", "sentence"), rows)])
    return EXIT_USAGE if any(level == "problem" for _, level, _ in rows) else EXIT_OK


@command.command("explain")
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def explain_(as_json: bool, **arguments: Any) -> int:
    """Explain which profile is taken for an engine, why not the others, and what its limits leave of it.

    The engine's facts come from the flags, from the engine at --url, or from an attempt's --facts. Exit code 3 when
    nothing may be sent to this engine.

    \b
    Examples:
      warmup-sidecar profiles explain --sm sm90 --kv-cache-dtype fp8_e4m3
      warmup-sidecar profiles explain --url http://127.0.0.1:8000
    """
    from sidecar.commands.plan import plan_json
    from sidecar.warmup.outline import estimate
    from sidecar.warmup.planner import make_plan

    found = given(arguments)
    choice = chosen("auto", found)
    plan = make_plan(choice.profile, found.facts)
    if as_json:
        shown = plan_json(choice, found, plan, estimate(plan, cpu=found.sm == "cpu"))
        shown["considered"] = [_considered_json(each, choice) for each in choice.considered]
        click.echo(json.dumps(shown, indent=2))
    else:
        _show_decision(choice, found, plan)
    return EXIT_NOT_SO if plan.unwarmed else EXIT_OK


def _show_decision(choice: Choice, found: Given, plan: Plan) -> None:
    from sidecar.commands.plan import notes_grid, step_grid
    from sidecar.commands.tables import Grid, make_console, show

    console = make_console()
    console.print(choice.sentence, markup=False)
    console.print(f"Facts from {found.asked}.", markup=False)
    console.print()
    considered = [
        ("→" if each.name == choice.profile.name else "", each.name, str(each.specificity), each.sentence)
        for each in choice.considered
    ]
    facts = [
        (name, _text(value), found.facts.sources.get(name, ""))
        for name, value in found.facts.to_json().items()
        if name != "sources" and value not in (None, "", [], {})
    ]
    show(
        [
            Grid("Profiles", ("", "name", "weight", "why"), considered, frozenset({"weight"})),
            Grid("Engine", ("fact", "value", "source"), [("sm", found.sm or "unknown", ""), *facts]),
            step_grid(plan),
            notes_grid(plan),
        ],
        console,
    )
    if plan.unwarmed:
        console.print(plan.unwarmed, markup=False)


def _considered_json(each: Considered, choice: Choice) -> dict[str, Any]:
    return {
        "name": each.name,
        "path": str(each.path),
        "chosen": each.name == choice.profile.name,
        "fits": each.fits,
        "specificity": each.specificity,
        "sm": list(each.sm),
        "sentence": each.sentence,
        "conditions": [dataclasses.asdict(condition) for condition in each.conditions],
    }


@command.command("schema")
def schema_() -> None:
    """Print the JSON schema of profile files, for editors and for programs that make profiles.

    \b
    Example:
      warmup-sidecar profiles schema > profile.schema.json
    """
    from sidecar.warmup.schema import schema_text

    click.echo(schema_text(), nl=False)


command.add_command(profile_making.command)
command.add_command(learning.command)


def _match(profile: Profile) -> Grid:
    from sidecar.commands.tables import Grid

    rows = [
        (name.replace("_", " "), value if isinstance(value, str) else " or ".join(value))
        for name, value in profile.match
        if value
    ]
    return Grid("For", ("condition", "value"), rows)


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
        for part in (profile.converge, profile.search, profile.budget, profile.policy, profile.assume)
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
