"""`bench`: one load on a running engine and what its requests waited for, or two such runs beside each other.

How load is made and figures come about is in `sidecar/bench/`.
"""

from __future__ import annotations

import asyncio
import random
import resource
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar import __version__
from sidecar.commands.engine_port import Connected, connected, engine_options, flags_for_variables, settings_for, sm_of
from sidecar.commands.numbers import Number
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError

if TYPE_CHECKING:
    from sidecar import config
    from sidecar.bench.load import Load, LoadPlan
    from sidecar.bench.report import Report
    from sidecar.bench.shapes import Lengths, Shape
    from sidecar.bench.targets import Targets
    from sidecar.commands.bench_view import BenchView

#: Ranges of lengths where none are given, in tokens: short enough for any model, long enough to differ.
PROMPT_TOKENS, OUTPUT_TOKENS = "64:1024", "16:128"
CONCURRENCY = 32
#: Requests where neither a number nor a time is given: so many per stream, and so many in all at least.
REQUESTS_A_STREAM, REQUESTS_AT_LEAST = 20, 100


@dataclass(frozen=True)
class Asked:
    """What the command was asked to send. `profile`: its mix counts instead of lengths."""

    plan: LoadPlan
    prompt: Lengths
    output: Lengths
    profile: str
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Give what two runs must have in common to be compared, and seed and amount."""
        lengths = {"prompt_tokens": str(self.prompt), "output_tokens": str(self.output)}
        return {
            "concurrency": self.plan.concurrency,
            "requests": self.plan.requests,
            "duration_s": self.plan.duration_s,
            "seed": self.seed,
            **({"profile": self.profile} if self.profile else lengths),
        }


@dataclass
class Story:
    """What is known of a run so far, for whoever interrupts it."""

    load: Load | None = None
    about: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@click.command()
@engine_options
@click.option(
    "--concurrency", type=click.IntRange(1, 4096), default=None, help=f"Requests in flight. [default: {CONCURRENCY}]"
)
@click.option(
    "--requests",
    type=click.IntRange(1, 1_000_000),
    default=None,
    help=f"How many in all. [default: {REQUESTS_A_STREAM} x concurrency, at least {REQUESTS_AT_LEAST}]",
)
@click.option(
    "--duration",
    metavar="SECONDS",
    type=Number(0, 86400, min_open=True),
    default=None,
    help="Send for so long instead; what is in flight then is waited for.",
)
@click.option("--prompt-tokens", metavar="A:B", default=None, help=f"Prompt lengths. [default: {PROMPT_TOKENS}]")
@click.option("--output-tokens", metavar="A:B", default=None, help=f"Output lengths. [default: {OUTPUT_TOKENS}]")
@click.option(
    "--targets",
    "targets_file",
    metavar="FILE",
    default=None,
    help="Send what FILE says and compare with its times; profiles from-aiconfigurator makes one.",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed: the same lengths.")
@click.option(
    "--json", "json_file", metavar="FILE", default=None, help="Write figures and samples to FILE; `-`: standard output."
)
@click.option(
    "--compare",
    "earlier",
    metavar="FILE",
    default=None,
    help="Compare with the run in FILE; with a second FILE, compare these two and send nothing.",
)
@click.option("--anyway", is_flag=True, help="Compare runs even if different things were sent.")
@click.argument("later", metavar="[FILE]", required=False)
def command(**arguments: Any) -> int:
    """Measure what requests to a running engine wait for: TTFT, TPOT, throughput, errors, at exact concurrency.

    Prompts are token ids that no cache has seen; their lengths are drawn evenly in the logarithm, or from a
    profile's traffic mix with --profile. One tiny request goes ahead and is not counted. TTFT: from before a
    request is written to its first non-empty text in any channel; TPOT: from first to last text per token after
    the first; ITL: between pieces of text. Percentiles interpolate linearly; failed requests are in none of them.

    Exit code 0 when every request was answered and every target kept, 3 when not, 130 after Ctrl-C; figures are
    printed in any case.

    \b
    Examples:
      warmup-sidecar bench --url http://127.0.0.1:8000 --concurrency 32 --json before.json
      warmup-sidecar bench --url http://127.0.0.1:8000 --concurrency 32 --compare before.json
      warmup-sidecar bench --prompt-tokens 8000:100000 --output-tokens 64 --duration 120
      warmup-sidecar bench --compare before.json after.json
      warmup-sidecar bench --url http://127.0.0.1:8000 --targets targets.yaml
    """
    from sidecar.bench.report import read_report

    targets = _with_targets(arguments)
    earlier, later = arguments.pop("earlier"), arguments.pop("later")
    json_file, anyway = arguments.pop("json_file"), arguments.pop("anyway")
    if later is not None and earlier is None:
        raise UsageError(f"What is {later} for? To compare two runs: bench --compare FILE FILE.")
    if later is not None and targets is not None:
        raise UsageError("Two runs are compared without sending anything; leave --targets out.")
    first = None if earlier is None else read_report(Path(earlier))
    if first is not None and later is not None:
        _compare(first, read_report(Path(later)), (str(earlier), str(later)), anyway)
        return EXIT_OK
    _writable(json_file)
    report = _measure(arguments, first, anyway, json_file)
    if first is not None:
        _compare(first, report, (str(earlier), "this run"), True, to_stderr=json_file == "-")
    kept = targets is None or _held_against(targets, report, to_stderr=json_file == "-")
    if report.ended == "interrupted":
        raise KeyboardInterrupt
    return EXIT_OK if report.ended == "complete" and not report.failed and kept else EXIT_NOT_SO


def _with_targets(arguments: dict[str, Any]) -> Targets | None:
    """Take lengths and concurrency from --targets, where it is given, and the default concurrency where nothing is."""
    from sidecar.bench.targets import read_targets

    name = arguments.pop("targets_file")
    if name is None:
        arguments["concurrency"] = arguments["concurrency"] or CONCURRENCY
        return None
    brought = ("concurrency", "prompt_tokens", "output_tokens")
    if given := [f"--{each.replace('_', '-')}" for each in (*brought, "profile") if arguments[each] is not None]:
        raise UsageError(f"--targets brings the load: leave {' and '.join(given)} out, or change the file.")
    targets = read_targets(Path(name))
    arguments["concurrency"] = targets.concurrency
    arguments["prompt_tokens"], arguments["output_tokens"] = str(targets.prompt_tokens), str(targets.output_tokens)
    return targets


def _held_against(targets: Targets, report: Report, *, to_stderr: bool) -> bool:
    """Print a run beside its targets, and say whether it keeps all of them."""
    from sidecar.bench.targets import compared, verdict
    from sidecar.commands.bench_view import show_targets

    rows = compared(report, targets)
    show_targets(rows, verdict(rows), to_stderr=to_stderr)
    return not any(row.kept is False for row in rows)


def _measure(arguments: dict[str, Any], first: Report | None, anyway: bool, json_file: str | None) -> Report:
    from sidecar.bench.report import make_report
    from sidecar.commands.bench_view import make_view, show_report

    given = {name: arguments.pop(name) for name in ("concurrency", "requests", "duration", "seed")}
    lengths = arguments.pop("prompt_tokens"), arguments.pop("output_tokens")
    found = settings_for(arguments.pop("url"), arguments)
    asked = _asked(given, lengths, found, arguments.get("profile"))
    if first is not None:
        _must_be_alike(first.settings, asked.to_json(), anyway)
    story, view, interrupted = Story(), make_view(), False
    try:
        asyncio.run(_bench(found.settings, asked, story, view))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        view.close()
    if story.load is None:
        raise KeyboardInterrupt
    report = make_report(
        story.load,
        about=story.about,
        settings=story.settings,
        notes=story.notes,
        interrupted=interrupted,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    if json_file is not None:
        _write(report, json_file)
    show_report(report, to_stderr=json_file == "-")
    return report


def _asked(
    given: dict[str, Any], lengths: tuple[str | None, str | None], found: config.Loaded, profile: str | None
) -> Asked:
    from sidecar.bench.load import LoadPlan
    from sidecar.bench.shapes import Lengths

    requests, duration, concurrency = given["requests"], given["duration"], given["concurrency"]
    if requests is not None and duration is not None:
        raise UsageError("Give --requests or --duration, not both.")
    if requests is None and duration is None:
        requests = max(REQUESTS_AT_LEAST, REQUESTS_A_STREAM * concurrency)
    if profile is not None and any(lengths):
        raise UsageError("A --profile brings lengths of its own: leave --prompt-tokens and --output-tokens out.")
    try:
        prompt, output = (
            Lengths.parse(text or default)
            for text, default in zip(lengths, (PROMPT_TOKENS, OUTPUT_TOKENS), strict=True)
        )
    except ValueError as error:
        raise UsageError(f"{error}.") from error
    named = found.settings.profile if profile is not None else ""
    return Asked(LoadPlan(concurrency, requests, duration), prompt, output, named, given["seed"])


async def _bench(settings: config.Settings, asked: Asked, story: Story, view: BenchView) -> None:
    from sidecar.bench.load import Load
    from sidecar.bench.requests import SAFE_VOCABULARY, RequestSource, try_one
    from sidecar.warmup.collecting import keep_imports
    from sidecar.warmup.prompts import PromptSource

    async with connected(settings) as target:
        story.settings = asked.to_json()
        shapes = await _shapes(settings, asked, target, story)
        # Prompts must be new to the engine in every run, so chance is not seeded here: only lengths are.
        prompts = PromptSource(random.Random(secrets.randbits(64)), target.facts.vocab_size or SAFE_VOCABULARY)
        with flags_for_variables():
            dialect = await try_one(target.engine, prompts, target.facts.model, settings.request_timeout_s)
        if dialect.note:
            story.notes.append(dialect.note)
        story.settings["ends_early"] = not dialect.fields
        story.about = {
            "url": target.url,
            "engine": target.name,
            "model": target.facts.model,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "product": __version__,
        }
        source = RequestSource(shapes, prompts, target.facts.model, dialect, settings.request_timeout_s)
        story.load = Load(target.engine, asked.plan, source.next, time.monotonic, target.asleep)
        keep_imports()
        showing = asyncio.create_task(view.follow(story.load, asked.plan, target.name))
        try:
            await story.load.run()
        finally:
            showing.cancel()


async def _shapes(settings: config.Settings, asked: Asked, target: Connected, story: Story) -> Iterator[Shape]:
    from sidecar.bench.shapes import from_profile, from_ranges
    from sidecar.warmup.choice import choose_profile
    from sidecar.warmup.planner import make_plan
    from sidecar.warmup.profiles import load_profile

    longest = target.facts.max_model_len
    if not asked.profile:
        if longest is not None and asked.prompt.high + asked.output.high > longest:
            story.notes.append(f"Requests are cut to what the model's {longest} tokens hold.")
        return from_ranges(asked.prompt, asked.output, longest, asked.seed)
    with flags_for_variables():
        if asked.profile == "auto":
            profile = choose_profile((await sm_of(settings))[0], target.facts).profile
        else:
            profile = load_profile(asked.profile)
        plan = make_plan(profile, target.facts)
    story.settings["profile"] = profile.name
    return from_profile(plan, asked.seed)


def _must_be_alike(first: dict[str, Any], second: dict[str, Any], anyway: bool) -> None:
    """Refuse before anything is sent what could not be compared afterwards."""
    from sidecar.bench.comparison import differing

    # What the engine takes, and which profile `auto` means, shows only when it has been asked.
    known = {name: value for name, value in first.items() if name != "ends_early"}
    if second.get("profile") == "auto" and "profile" in known:
        second = {**second, "profile": known["profile"]}
    if (different := differing(known, second)) and not anyway:
        raise UsageError(_refusal(different))


def _refusal(different: list[str]) -> str:
    return (
        f"These runs can't be compared, because different things were sent: {'; '.join(different)}. "
        "Send the same, or add --anyway."
    )


def _compare(first: Report, second: Report, names: tuple[str, str], anyway: bool, *, to_stderr: bool = False) -> None:
    from sidecar.bench.comparison import differing
    from sidecar.commands.bench_view import show_comparison

    different = differing(first.settings, second.settings)
    if different and not anyway:
        raise UsageError(_refusal(different))
    show_comparison(first, second, names, different, to_stderr=to_stderr)


def _writable(json_file: str | None) -> None:
    """Find out before minutes of measuring whether the file can be written."""
    if json_file in (None, "-"):
        return
    try:
        Path(str(json_file)).open("ab").close()
    except OSError as error:
        raise UsageError(f"--json {json_file} can't be written ({error.strerror or error}).") from error


def _write(report: Report, json_file: str) -> None:
    text = report.model_dump_json() + "\n"
    if json_file == "-":
        click.echo(text, nl=False)
    else:
        Path(json_file).write_text(text, encoding="utf-8")
