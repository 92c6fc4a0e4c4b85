"""One run of `bench` as it is kept in a file: what was sent to which engine, figures, and the samples behind them.

Measures nothing and compares nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from sidecar.bench.lag import TOLERABLE_S
from sidecar.bench.load import Load
from sidecar.bench.percentiles import SHARES, Tally, percentile
from sidecar.bench.samples import Samples
from sidecar.errors import UsageError

#: A million requests make a file of about 60 MB. Bytes.
LARGEST_FILE = 256 * 1024 * 1024

Ended = Literal["complete", "stopped", "interrupted"]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")


class Spread(_Part):
    """Of how many values, their mean, percentiles and the worst. Seconds."""

    count: int = Field(ge=1)
    mean: float
    p50: float
    p95: float
    p99: float
    worst: float


class Figures(_Part):
    """The four times of requests; None where no request showed one."""

    ttft_s: Spread | None
    tpot_s: Spread | None
    itl_s: Spread | None
    total_s: Spread | None


class Rates(_Part):
    """What the engine got done in a second, over the whole run."""

    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float


class Errors(_Part):
    """How often a kind of failure was seen, and what was said the first time."""

    count: int
    first: str


class Client(_Part):
    """How the measuring process itself did: how late it read its sockets (seconds), most memory it held (bytes)."""

    loop_lag_p99_s: float
    loop_lag_worst_s: float
    peak_memory_bytes: int


class Columns(_Part):
    """The answered requests in the order of sending; see `Samples`."""

    started_s: list[float]
    ttft_s: list[float | None]
    tpot_s: list[float | None]
    total_s: list[float]
    prompt_tokens: list[int]
    tokens: list[int]


class Report(_Part):
    """One run. `settings` is what makes two runs comparable, `about` where and when it was."""

    format: Literal[1] = 1
    about: dict[str, str]
    settings: dict[str, Any]
    ended: Ended
    sentence: str
    seconds: float
    sent: int
    answered: int
    errors: dict[str, Errors]
    figures: Figures
    rates: Rates
    mean_concurrency: float
    busiest: int
    client: Client
    notes: list[str]
    samples: Columns

    @property
    def failed(self) -> int:
        """Count the requests that were not answered."""
        return sum(each.count for each in self.errors.values())


def make_report(
    load: Load,
    *,
    about: Mapping[str, str],
    settings: Mapping[str, Any],
    notes: Sequence[str],
    interrupted: bool,
    peak_memory_bytes: int,
) -> Report:
    """Sum a run up."""
    samples, seconds, lags = load.samples, load.seconds, load.lag.lags
    client = Client(
        loop_lag_p99_s=_rounded(lags.percentile(0.99)) if lags.count else 0.0,
        loop_lag_worst_s=_rounded(lags.worst),
        peak_memory_bytes=peak_memory_bytes,
    )
    return Report(
        about=dict(about),
        settings=dict(settings),
        ended="interrupted" if interrupted else "stopped" if load.stopped else "complete",
        sentence=load.stopped,
        seconds=_rounded(seconds),
        sent=load.sent,
        answered=samples.answered,
        errors={kind: Errors(count=each.count, first=each.first) for kind, each in sorted(samples.failures.items())},
        figures=_figures(samples),
        rates=Rates(
            requests_per_s=_rate(samples.answered, seconds),
            prompt_tokens_per_s=_rate(sum(samples.prompt_tokens), seconds),
            output_tokens_per_s=_rate(sum(samples.tokens), seconds),
        ),
        mean_concurrency=round(_rate(sum(samples.total), seconds), 2),
        busiest=load.busiest,
        client=client,
        notes=[*notes, *_doubts(client, samples)],
        samples=_columns(samples),
    )


def _figures(samples: Samples) -> Figures:
    return Figures(
        ttft_s=_spread(samples.ttft),
        tpot_s=_spread(samples.tpot),
        itl_s=_spread_of(samples.gaps),
        total_s=_spread(samples.total),
    )


def _columns(samples: Samples) -> Columns:
    order = sorted(range(samples.answered), key=samples.started.__getitem__)
    return Columns(
        started_s=[_rounded(samples.started[at]) for at in order],
        ttft_s=[None if math.isnan(samples.ttft[at]) else _rounded(samples.ttft[at]) for at in order],
        tpot_s=[None if math.isnan(samples.tpot[at]) else _rounded(samples.tpot[at]) for at in order],
        total_s=[_rounded(samples.total[at]) for at in order],
        prompt_tokens=[samples.prompt_tokens[at] for at in order],
        tokens=[samples.tokens[at] for at in order],
    )


def read_report(path: Path) -> Report:
    """Read a file that `bench --json` wrote. Raises UsageError with what is wrong with it."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{path} is larger than any run of bench; name a file that `bench --json` wrote.")
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read ({error.strerror or error}).") from error
    try:
        return Report.model_validate_json(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{place}: {first['msg']}" if place else first["msg"]
        raise UsageError(f"{path} is no run of bench ({what}); name a file that `bench --json` wrote.") from error


def _doubts(client: Client, samples: Samples) -> list[str]:
    found, answered = [], samples.answered
    if client.loop_lag_p99_s > TOLERABLE_S:
        found.append(
            f"This client came {client.loop_lag_p99_s * 1000:.0f} ms late to its sockets in one of a hundred looks: "
            "times include that. Run it on a machine with more room, or with less concurrency."
        )
    if mute := sum(map(math.isnan, samples.ttft)):
        found.append(f"{mute} answers had tokens and no text, as models of random weights give; they have no TTFT.")
    if 0 < answered < 100:
        found.append(f"With {answered} answers, p99 is hardly more than the worst of them; send more for tails.")
    return found


def _spread(values: array[float]) -> Spread | None:
    ordered = sorted(each for each in values if not math.isnan(each))
    if not ordered:
        return None
    shares = {name: _rounded(percentile(ordered, share)) for name, share in SHARES.items()}
    mean = _rounded(math.fsum(ordered) / len(ordered))
    return Spread(count=len(ordered), mean=mean, worst=_rounded(ordered[-1]), **shares)


def _spread_of(tally: Tally) -> Spread | None:
    if not tally.count:
        return None
    shares = {name: _rounded(tally.percentile(share)) for name, share in SHARES.items()}
    return Spread(count=tally.count, mean=_rounded(tally.sum / tally.count), worst=_rounded(tally.worst), **shares)


def _rounded(seconds: float) -> float:
    """Round to a microsecond: more digits are noise."""
    return round(seconds, 6)


def _rate(amount: float, seconds: float) -> float:
    return round(amount / seconds, 3) if seconds > 0 else 0.0
