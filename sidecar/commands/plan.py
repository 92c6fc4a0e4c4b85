"""`plan`: what warm-up would send to an engine, request by request, without sending any of it.

What a plan holds is decided in `warmup/planner.py`; how the engine is known, in `engine_given.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands.engine_given import Given, chosen, engine_options, given
from sidecar.commands.numbers import Number
from sidecar.errors import EXIT_NOT_SO, EXIT_OK

if TYPE_CHECKING:
    from sidecar.commands.tables import Grid
    from sidecar.warmup.choice import Choice
    from sidecar.warmup.outline import Estimate
    from sidecar.warmup.planner import Plan
    from sidecar.warmup.recorded import RecordedMix


@click.command()
@click.option("--profile", default="auto", metavar="NAME", help="Profile: auto (by SM version), a name, or a path.")
@engine_options
@click.option("--tokens-per-s", type=Number(1, 1e9), metavar="N", help="Prompt tokens the engine reads a second.")
@click.option(
    "--live-cache", metavar="DIR", help="Live cache of such an engine: the traffic recorded there is what draws follow."
)
@click.option("--brief", is_flag=True, help="Show steps only, not each of their bursts.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(
    profile: str, tokens_per_s: float | None, live_cache: str | None, brief: bool, as_json: bool, **arguments: Any
) -> int:
    """Show the requests of a warm-up: how many, how large, how many at once, and about how long. Sends none.

    The engine's limits come from the flags, from the engine at --url, or from an attempt's --facts; what none of them
    tells is assumed, and said so. Exit code 3 when nothing may be sent to this engine.

    \b
    Examples:
      warmup-sidecar plan --sm sm90 --max-num-seqs 256
      warmup-sidecar plan --url http://127.0.0.1:8000
      warmup-sidecar plan --profile ./mine.yaml --json
      warmup-sidecar plan --sm sm90 --live-cache /var/cache/engine
    """
    from sidecar.warmup.outline import estimate
    from sidecar.warmup.planner import make_plan

    found = given(arguments)
    choice = chosen(profile, found)
    plan = make_plan(choice.profile, found.facts, _recorded(live_cache))
    cpu = found.sm == "cpu" or "cpu" in choice.profile.match.sm
    cost = estimate(plan, cpu=cpu, tokens_s=tokens_per_s)
    if as_json:
        click.echo(json.dumps(plan_json(choice, found, plan, cost), indent=2))
    else:
        show_plan(choice, found, plan, cost, brief=brief)
    return EXIT_NOT_SO if plan.unwarmed else EXIT_OK


def _recorded(live_cache: str | None) -> RecordedMix | None:
    """Read the traffic that was recorded beside the kernels. Raises UsageError where there is none to read."""
    from pathlib import Path

    from sidecar.errors import UsageError
    from sidecar.warmup import recorded

    if not live_cache:
        return None
    path = recorded.mix_path(Path(live_cache))
    found, trouble = recorded.load(path)
    if found is None:
        raise UsageError(trouble or f"No traffic is recorded in {path} yet; leave --live-cache out.")
    return found


def plan_json(choice: Choice, found: Given, plan: Plan, cost: Estimate) -> dict[str, Any]:
    """Give a plan with the decision behind it as plain values."""
    from sidecar.warmup.outline import outline

    return {
        "why": choice.sentence,
        "sm": found.sm or None,
        "asked": found.asked,
        "engine": found.facts.to_json(),
        "estimate": {"round_s": cost.round_s, "basis": cost.basis},
        **outline(plan),
    }


def show_plan(choice: Choice, found: Given, plan: Plan, cost: Estimate, *, brief: bool) -> None:
    """Print a plan for people."""
    from sidecar.commands.tables import make_console, show

    console = make_console()
    console.print(choice.sentence, markup=False)
    console.print(f"Limits from {found.asked}.", markup=False)
    console.print()
    show([step_grid(plan), *([] if brief else [_bursts(plan)]), notes_grid(plan)], console)
    console.print()
    if plan.unwarmed:
        console.print(plan.unwarmed, markup=False)
        return
    draws = plan.profile.converge.random_draws
    console.print(
        f"One round: {plan.requests} requests, {plan.tokens} tokens, about {cost.round_s:g} s with all kernels there "
        f"({cost.basis}). Rounds go on until nothing compiles, then {draws} random draws; on an empty store the "
        "kernels take minutes on top.",
        markup=False,
    )


def step_grid(plan: Plan) -> Grid:
    """Give the steps of a plan as a table."""
    from sidecar.commands.tables import Grid

    rows = [(step.name, step.kind, str(len(step.bursts)), str(step.requests), str(step.tokens)) for step in plan.steps]
    right = frozenset({"bursts", "requests", "tokens"})
    return Grid("Steps", ("step", "kind", "bursts", "requests", "tokens"), rows, right)


def notes_grid(plan: Plan) -> Grid:
    """Give what the engine's limits changed as a table."""
    from sidecar.commands.tables import Grid

    rows = [("note", each) for each in plan.notes]
    rows += [("not here", each) for each in plan.not_applicable]
    return Grid("Notes", ("", "sentence"), rows)


def _bursts(plan: Plan) -> Grid:
    from sidecar.commands.tables import Grid
    from sidecar.warmup.outline import sentence_of

    rows = []
    for step in plan.steps:
        for burst in step.bursts:
            for number, phase in enumerate(burst.phases):
                for ask in phase:
                    when = "" if not number else "while those run" if burst.then == "after_first_token" else "then"
                    what = ", ".join(filter(None, (when, sentence_of(ask))))
                    sizes = (str(ask.count), str(ask.prompt_tokens), str(ask.output_tokens))
                    rows.append((step.name, burst.key, *sizes, what))
    right = frozenset({"requests", "prompt", "output"})
    return Grid("Requests", ("step", "burst", "requests", "prompt", "output", "what"), rows, right)
