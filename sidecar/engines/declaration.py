"""What the adapter of one engine declares: how it is recognised, asked and measured, and what was seen to work.

Types only. Each engine fills them in a file of its own in `adapters/`; nothing here knows an engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sidecar.engines.protocol import EMPTY, Engine, EngineFacts, Hint, Hints

#: Where a claim was seen to hold: on the real engine, or on a scripted server built from the engine's documentation.
Proof = Literal["real", "scripted", "no"]
#: What a user may want to know of an engine, in the order of the README's support table.
ABILITIES: Mapping[str, str] = {
    "recognised": "recognised by its command line, model list and metrics",
    "loading, dead": "loading, alive and dead are told apart without work for the GPU",
    "key": "API key",
    "facts": "limits and roles asked from the engine",
    "token ids": "prompts as token ids",
    "steps": "warm-up steps: prefill, decode, mixed, shared prefix",
    "sampling": "sampling features",
    "structured": "structured output: JSON schema, regular expression",
    "logprobs": "log-probabilities of output and prompt",
    "metrics": "load, tokens and latencies from its metrics",
    "stalls": "stalls noticed by counters that stand still",
    "asleep": "sleep noticed",
    "prefill role": "prefill worker warmed",
    "decode role": "decode worker warmed",
    "caches": "kernel caches moved, restored and published",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether an ability is there and on what it was seen; `note` says what is special, or why it is missing."""

    proof: Proof
    note: str = ""

    def __str__(self) -> str:
        words = {"real": "yes, real engine", "scripted": "yes, scripted server", "no": "no"}[self.proof]
        return f"{words}: {self.note}" if self.note else words


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path that is asked, what for, and whether the API key goes with it."""

    path: str
    use: str
    key: bool = False


@dataclass(frozen=True, slots=True)
class Listens:
    """Where an engine answers unless its command says otherwise.

    `port` 0: unknown; `host` empty: at all addresses. `tls` is the flag that switches TLS on; empty: none is known.
    """

    port: int = 8000
    host: str = ""
    tls: str = ""


@dataclass(frozen=True, slots=True)
class Connect:
    """What a client is made from; see `detect.make_engine`. With `strict`, what looks like another server is refused.

    `consume_metrics` allows to read metrics that are gone for every other reader afterwards.
    """

    url: str
    api_key: Callable[[], str | None]
    clock: Callable[[], float]
    model: str = ""
    strict: bool = True
    hints: Hints = field(default_factory=lambda: EMPTY)
    consume_metrics: bool = False


@dataclass(frozen=True, slots=True)
class MetricNames:
    """What an engine calls the numbers of EngineStats: by field, newest name first.

    `progress` are series that grow whenever it works, requests under way included; empty: there are none that can be
    relied on, so no stall is seen. `histograms` are named without `_bucket`. `prompt_lengths` and `output_lengths` count
    ended requests by their tokens. `absent` says what to do where a page has none of them, as a part of a sentence.
    """

    prefixes: tuple[str, ...]
    numbers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    histograms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    progress: tuple[str, ...] = ()
    prompt_lengths: str = ""
    output_lengths: str = ""
    absent: str = ""

    @property
    def wanted(self) -> frozenset[str]:
        """Give all names of samples that are read from a page."""
        numbers = [name for names in self.numbers.values() for name in names]
        lengths = [name + "_bucket" for name in (self.prompt_lengths, self.output_lengths) if name]
        parts = [name + part for names in self.histograms.values() for name in names for part in ("_bucket", "_sum")]
        return frozenset((*numbers, *self.progress, *lengths, *parts))


@dataclass(frozen=True, slots=True)
class Declaration:
    """One engine. `name` is what WARMUP_ENGINE and the facts call it, and the name of its file.

    `owners` are what /v1/models says of who owns a model; `command` matches the command line, words joined by blanks.
    `mark` is a path that answers 200 or 503 there and 404 elsewhere, asked where a key hides everything else.
    `listens` is where it answers by default. `front`: it only hands requests on, so that a command which starts another engine,
    too, is that engine's. `hints` reads facts from command line and environment.
    `config` reads facts from the entries of the file that its command names, and with `config_counts` they count over the command.
    `families` are names of cache families that it alone writes.
    `unwarmed` says in a sentence why nothing may be sent to an engine with such facts, empty where something may;
    `unchecked` why its output tells nothing there. `claims` has one entry for each of ABILITIES.
    """

    name: str
    title: str
    versions: str
    make: Callable[[Connect], Engine]
    owners: tuple[str, ...]
    command: re.Pattern[str]
    endpoints: tuple[Endpoint, ...]
    metrics: MetricNames
    hints: Callable[[Sequence[str], Mapping[str, str]], dict[str, Hint]]
    claims: Mapping[str, Claim]
    families: tuple[str, ...] = ()
    mark: str = ""
    listens: Listens = Listens()
    front: bool = False
    config: Callable[[Mapping[str, Any]], dict[str, Hint]] = lambda _: {}
    config_counts: bool = False
    unwarmed: Callable[[EngineFacts], str] = lambda _: ""
    unchecked: Callable[[EngineFacts], str] = lambda _: ""
