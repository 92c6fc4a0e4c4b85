"""`warm`: one warm-up of any running engine, without sidecar, store or Kubernetes, and what it was good for.

What is sent, and when it has converged, is decided in `warmup/`.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands.engine_port import (
    Connected,
    connected,
    engine_options,
    flags_for_variables,
    in_flags,
    settings_for,
    sm_of,
)
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError

if TYPE_CHECKING:
    from sidecar import config
    from sidecar.commands.warm_view import WarmView
    from sidecar.warmup.evidence import Witness
    from sidecar.warmup.planner import Plan
    from sidecar.warmup.results import WarmProgress, WarmResult


@dataclass
class Story:
    """What is known of a warm-up so far, for whoever interrupts it."""

    url: str = ""
    engine: str = ""
    model: str = ""
    why: str = ""
    plan: Plan | None = None
    seen: bool = False
    last: WarmProgress | None = None
    result: WarmResult | None = None


@click.command()
@engine_options
@click.option(
    "--live-cache",
    metavar="DIR",
    default=None,
    help="The engine's live cache, when it can be read from here: kernels that appear there prove what compiled. "
    "[WARMUP_LIVE_CACHE]",
)
@click.option(
    "--budget",
    "warm_budget_s",
    metavar="SECONDS",
    default=None,
    help="Cap of the whole warm-up. [WARMUP_WARM_BUDGET_S; default: 1800]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; progress goes to standard error.")
def command(url: str | None, as_json: bool, **arguments: Any) -> int:
    """Warm a running engine up once: any server with OpenAI's endpoints, no Kubernetes, store or daemon.

    The engine is asked for its limits, a profile is chosen and fitted to them, and its traffic is sent until
    nothing compiles any more. At the end stands what each step waited at first and waits now.

    Exit code 0 when warm-up converged, 3 when it did not, 130 after Ctrl-C; the table is printed in any case.

    \b
    Examples:
      warmup-sidecar warm --url http://127.0.0.1:8000
      warmup-sidecar warm --url http://127.0.0.1:8000 --live-cache /var/cache/engine --sm sm90
      warmup-sidecar warm --url http://10.0.0.7:8000 --profile ./mine.yaml --budget 300 --json | jq .stalls
    """
    from sidecar.commands.warm_view import make_view

    found = settings_for(url, arguments)
    live_cache = _live_cache(found)
    story = Story()
    view = make_view()
    try:
        asyncio.run(_warm(found.settings, live_cache, story, view))
    except KeyboardInterrupt:
        view.close()
        _tell(story, as_json)
        raise
    finally:
        view.close()
    _tell(story, as_json)
    assert story.result is not None, "a warm-up that was not interrupted has a result"
    return EXIT_OK if story.result.outcome == "converged" else EXIT_NOT_SO


def _live_cache(found: config.Loaded) -> Path | None:
    """Give the live cache that was named; the default is that of containers and says nothing about this engine."""
    if "live_cache" not in found.sources:
        return None
    path = found.settings.live_cache
    if not path.is_dir():
        raise UsageError(f"--live-cache {path} is no directory here; name the engine's live cache, or leave it out.")
    return path


async def _warm(settings: config.Settings, live_cache: Path | None, story: Story, view: WarmView) -> None:
    from sidecar.warmup.attempts import WarmPolicy
    from sidecar.warmup.collecting import keep_imports
    from sidecar.warmup.runner import WarmupRunner

    async with connected(settings) as target:
        await _prepare(settings, live_cache, target, story)
        assert story.plan is not None, "the line above has made it"
        view.begin(story)
        policy = WarmPolicy(budget_s=settings.warm_budget_s, request_timeout_s=settings.request_timeout_s)
        rng = random.Random(secrets.randbits(64))
        evidence = _evidence(live_cache)
        runner = WarmupRunner(target.engine, story.plan, evidence, policy, time.monotonic, rng, target.asleep)
        keep_imports()
        story.result = await runner.run(_both(story, view.update))


async def _prepare(settings: config.Settings, live_cache: Path | None, target: Connected, story: Story) -> None:
    from sidecar.warmup.choice import choose_profile
    from sidecar.warmup.planner import make_plan
    from sidecar.warmup.profiles import load_profile

    with flags_for_variables():
        if settings.profile == "auto":
            sm, source = await sm_of(settings)
            choice = choose_profile(sm, target.facts)
            profile, story.why = choice.profile, in_flags(choice.sentence) + (f" SM version: {source}." if sm else "")
        else:
            profile = load_profile(settings.profile)
            story.why = f"Profile {profile.name}, as given."
        story.plan = make_plan(profile, target.facts)
    story.url, story.engine, story.model = target.url, target.name, target.facts.model
    story.seen = live_cache is not None


def _both(story: Story, update: Callable[[WarmProgress], None]) -> Callable[[WarmProgress], None]:
    def listen(progress: WarmProgress) -> None:
        story.last = progress
        update(progress)

    return listen


def _evidence(live_cache: Path | None) -> Witness:
    from sidecar.caches import families
    from sidecar.warmup.evidence import Evidence, EvidenceWatcher

    class Unseen:
        """A live cache that can't be looked into: for the runner it is empty, so that flat latency counts alone."""

        def mark(self) -> None:
            pass

        async def baseline(self) -> Evidence:
            return Evidence(empty=True)

        async def collect(self, *, thorough: bool = False) -> Evidence:  # noqa: ARG002 - the protocol has it
            return Evidence(empty=True)

    if live_cache is None:
        return Unseen()
    return EvidenceWatcher(live_cache, families.stored_families(), wall_clock=time.time)


def _tell(story: Story, as_json: bool) -> None:
    from sidecar.commands.warm_view import outcome_sentence, show_table, to_json

    if as_json:
        click.echo(json.dumps(to_json(story), indent=2))
    elif story.last is not None or story.result is not None:
        show_table(story)
        click.echo()
        click.echo(outcome_sentence(story))
