"""Where `profiles learn` looks: a Prometheus, a running engine, a file with its metrics, a live cache with a record.

What is written of it is the business of `learned_text.py`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.commands.prometheus import Prometheus, Series, seconds_of, selected
from sidecar.engines.adapters import engines
from sidecar.engines.exposition import read, statistics
from sidecar.engines.protocol import Engine, EngineFacts, EngineStats
from sidecar.engines.series import SAME_WORK
from sidecar.errors import EngineError, NotSo, UsageError
from sidecar.files import open_plain
from sidecar.warmup import recorded
from sidecar.warmup.histograms import Lengths, lengths_of
from sidecar.warmup.recorded import LEAST_REQUESTS, Distribution, RecordedMix

#: Points in time at which the number of running requests is asked, at most, and no closer than this. Prometheus itself
#: gives up to 11,000 points.
POINTS, CLOSEST_S = 2000, 15
#: Between two looks at how many requests run. Seconds.
LOOK_S = 1.0
#: So few looks with requests running are no distribution.
LEAST_LOOKS = 5
LARGEST_PAGE = 16 << 20
WARM_UP_COUNTS = (
    "The histograms count what warmed the engine, too: some thousand requests for each start, if this sidecar did. Where that "
    "is much of it, take the record of the daemon instead (--live-cache), which begins when a pod is ready."
)


@dataclass(frozen=True)
class Found:
    """What was learned, from where in words, and what to know of it. `facts` are the engine's, where it was asked."""

    mix: RecordedMix
    source: str
    notes: tuple[str, ...] = ()
    facts: EngineFacts | None = None


@dataclass
class _Page:
    """Lengths and numbers at once of one engine's own page."""

    stats: EngineStats
    running: list[int] = field(default_factory=list)


async def from_prometheus(server: Prometheus, window: str, selector: str, longest: int | None) -> Found:
    """Learn from the histograms of all engines that a selector takes, as they grew in a window. Resets are Prometheus's."""
    seconds = seconds_of(window)
    found: dict[str, tuple[Series, Series]] = {}
    for name, engine in engines().items():
        names = (engine.metrics.prompt_lengths, engine.metrics.output_lengths)
        if all(names):
            prompts, outputs = [
                await server.instant(f"increase({selected(each + '_bucket', selector, _first_ranks())}[{window}])")
                for each in names
            ]
            if any(count > 0 for _, count in prompts) and any(count > 0 for _, count in outputs):
                found[name] = prompts, outputs
    if not found:
        raise NotSo(_nothing(server.url, window, selector))
    if len(found) > 1:
        raise NotSo(
            f"{server.url} has lengths of {' and '.join(engines()[name].title for name in found)} in the last {window}; choose "
            """the engines with --selector, such as --selector 'model_name="…"'."""
        )
    [(name, (prompts, outputs))] = found.items()
    running = await _running(server, name, selector, seconds)
    mix, notes = _mix(_by_series(prompts), _by_series(outputs), running, longest)
    scope = f" of {selector.strip()}" if selector.strip() else ""
    source = f"{engines()[name].title}'s histograms{scope} in Prometheus at {server.url}, the last {window}"
    return Found(mix, source, (*notes, WARM_UP_COUNTS))


async def _running(server: Prometheus, engine: str, selector: str, seconds: int) -> Distribution:
    """Ask how often so many requests ran at once, of each instance; nothing where the engine tells no such number."""
    name = next(iter(engines()[engine].metrics.numbers.get("running", ())), "")
    if not name:
        return Distribution()
    # Each process of an engine shows the same load, ranks of data parallelism add up, others do the same work.
    one = f"sum without (engine, dp_rank) (max without (pid) ({selected(name, selector, _first_ranks())}))"
    end, step = time.time(), max(CLOSEST_S, seconds / POINTS)
    counts: dict[int, float] = {}
    for labels, values in await server.over(f'count_values("running", {one})', end - seconds, end, step):
        value = float(labels.get("running", 0))
        if math.isfinite(value) and (running := round(value)) > 0:
            counts[running] = counts.get(running, 0.0) + math.fsum(values)
    return _coarse(counts)


def _coarse(counts: Mapping[int, float]) -> Distribution:
    """Put counts into the buckets that the daemon's record has, too."""
    found = Distribution()
    for value, count in counts.items():
        found = found.plus(recorded.of_samples([value]), count)
    return found


def _first_ranks() -> str:
    return ", ".join(f'{label}=~"0?"' for label in SAME_WORK)


def _by_series(samples: Series) -> list[dict[float, float]]:
    """Gather buckets by the other labels: each histogram by itself."""
    found: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
    for labels, value in samples:
        try:
            bound = float(labels.get("le", "nan"))
        except ValueError:
            continue
        others = frozenset((name, text) for name, text in labels.items() if name != "le")
        found.setdefault(others, {})[bound] = value
    return list(found.values())


def _nothing(url: str, window: str, selector: str) -> str:
    names = [engine.metrics.prompt_lengths for engine in engines().values() if engine.metrics.prompt_lengths]
    scope = f" with {selector.strip()}" if selector.strip() else ""
    return (
        f"{url} has no requests in {' or '.join(names)}{scope} in the last {window}. Check --selector and --query-window, and that "
        "Prometheus scrapes the engines themselves. TensorRT-LLM shows no histograms of lengths."
    )


async def from_engine(
    engine: Engine,
    url: str,
    watch_s: float,
    longest: int | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Found:
    """Learn from a running engine: lengths since its start, and how many requests run while it is watched."""
    page = _Page(await engine.stats())
    try:
        facts: EngineFacts | None = await engine.facts()
    except EngineError:
        facts = None
    looks = max(1, round(watch_s / LOOK_S))
    for look in range(looks):
        if look:
            await sleep(LOOK_S)
            page.stats = await engine.stats()
        if page.stats.running:
            page.running.append(max(1, round(page.stats.running)))
    if len(page.running) < LEAST_LOOKS:
        page.running = []
    mix, notes = _of_page(page, longest or (facts.max_model_len if facts else None), url)
    return Found(mix, f"the engine at {url}, since it started", (*notes, WARM_UP_COUNTS), facts)


def from_file(path: Path, longest: int | None) -> Found:
    """Learn from a page of metrics that was kept in a file. Raises UsageError for what is none."""
    try:
        with open_plain(path, LARGEST_PAGE) as stream:
            text = stream.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read ({getattr(error, 'strerror', None) or error}).") from error
    page = read(text)
    stats = statistics(page, page.flavour if page.flavour is not None and page.flavour in engines() else "vllm")
    # How many requests run at one moment is no distribution.
    mix, notes = _of_page(_Page(stats), longest, str(path))
    return Found(mix, f"the metrics in {path.name}", (*notes, WARM_UP_COUNTS))


def from_live_cache(folder: Path) -> Found:
    """Take the daemon's own record. Raises UsageError where there is none."""
    path = recorded.mix_path(folder)
    mix, trouble = recorded.load(path)
    if mix is None:
        raise UsageError(trouble or f"No traffic is recorded in {path} yet: a daemon writes it while its pod serves.")
    return Found(mix, f"the daemon's record of {mix.pods} pod{'' if mix.pods == 1 else 's'}")


def _of_page(page: _Page, longest: int | None, where: str) -> tuple[RecordedMix, tuple[str, ...]]:
    stats = page.stats
    if not stats.prompt_lengths or not stats.output_lengths:
        why = stats.missing or "This engine shows no histograms of lengths; vLLM and SGLang do."
        raise NotSo(f"{where} tells nothing of lengths. {why}")
    return _mix([stats.prompt_lengths], [stats.output_lengths], recorded.of_samples(page.running), longest)


def _mix(
    prompts: Iterable[Mapping[float, float]],
    outputs: Iterable[Mapping[float, float]],
    running: Distribution,
    longest: int | None,
) -> tuple[RecordedMix, tuple[str, ...]]:
    """Put it together. Raises NotSo for too few requests to be a distribution."""
    asked, made = lengths_of(prompts, longest, "prompts"), lengths_of(outputs, longest, "outputs")
    requests = min(asked.found.total, made.found.total)
    if requests < LEAST_REQUESTS:
        raise NotSo(
            f"Only {requests:.0f} requests are counted, and {LEAST_REQUESTS} at least make a distribution; look further back, or "
            "wait."
        )
    notes = [*_beyond(asked, "prompts", longest), *_beyond(made, "outputs", longest)]
    if not running.total:
        notes.append(
            "How many requests run at once was not seen, or not often enough; that span is the extended profile's. With "
            "--engine, watch longer (--watch) and while users send."
        )
    return RecordedMix(_kept(asked.found), _kept(made.found), _kept(running), asked.found.total), tuple(notes)


def _kept(found: Distribution) -> Distribution:
    """Put neighbours together until there are no more buckets than a profile holds."""
    size = -(-len(found.bounds) // recorded.BUCKETS_KEPT) or 1
    starts = range(0, len(found.bounds), size)
    return Distribution(
        tuple(found.bounds[min(at + size, len(found.bounds)) - 1] for at in starts),
        tuple(math.fsum(found.counts[at : at + size]) for at in starts),
    )


def _beyond(lengths: Lengths, what: str, longest: int | None) -> list[str]:
    if not lengths.beyond:
        return []
    taken = f"the longest request ({longest:,} tokens)" if longest else "twice that"
    return [
        f"{lengths.beyond:.1%} of the {what} are beyond the last bucket ({lengths.last:,} tokens) and taken for up to {taken}."
    ]
