"""What is known about the pod right now: one board, written by the supervisor, read by web, metrics and commands.

No decision is made here, and nothing is measured: values come in as they were found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.lifecycle import Gate, Phase

#: Enough for one screen of history; older events are in the log.
EVENTS_KEPT = 100


@dataclass(frozen=True)
class Event:
    """Something worth telling: seconds since the epoch, level (info, warning, error), one sentence."""

    at: float
    level: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """Give the event as it stands in `/status`."""
        return {"at": self.at, "level": self.level, "text": self.text}


@dataclass(frozen=True)
class Span:
    """One stay in a phase: `since` in seconds since the epoch, `seconds` so far or in all."""

    phase: Phase
    since: float
    seconds: float
    ended: bool

    def to_json(self) -> dict[str, Any]:
        """Give the stay as it stands in `/status`."""
        return {"phase": self.phase.value, "since": self.since, "seconds": round(self.seconds, 3), "ended": self.ended}


@dataclass
class Board:
    """The current picture. Sections are plain JSON mappings whose keys `SECTIONS` documents.

    `wall` gives seconds since the epoch, for people; `monotonic` gives seconds for durations. `waits_for` is a sentence that
    says more than the gate's while the phase's own work waits for somebody else.
    """

    wall: Callable[[], float]
    monotonic: Callable[[], float]
    version: str
    mode: str
    gate: Gate = field(default_factory=Gate.closed_at_birth)
    waits_for: str = ""
    phase: Phase = Phase.STARTING
    degraded: tuple[str, ...] = ()
    startup_open: bool = False
    startup_sentence: str = "The sidecar is starting."
    alive: Callable[[], bool] = lambda: True
    engine: Mapping[str, Any] = field(default_factory=dict)
    restore: Mapping[str, Any] = field(default_factory=lambda: {"outcome": "pending"})
    warmup: Mapping[str, Any] = field(default_factory=lambda: {"outcome": "pending", "steps": []})
    publish: Mapping[str, Any] = field(default_factory=lambda: {"outcome": "pending"})
    golden: Mapping[str, Any] = field(default_factory=lambda: {"outcome": "pending"})
    cache: Mapping[str, Any] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    coverage: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Any] = field(default_factory=dict)
    _events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    _spans: list[tuple[Phase, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._spans.append((self.phase, self.wall(), self.monotonic()))

    @property
    def reason(self) -> str:
        """Say why traffic may or may not come."""
        return self.waits_for or self.gate.sentence

    def tell(self, text: str, level: str = "info") -> Event:
        """Add an event and give it back."""
        event = Event(self.wall(), level, text)
        self._events.append(event)
        return event

    def enter(self, phase: Phase) -> float:
        """Note the change of phase and give the seconds spent in the one that ended."""
        spent = self.monotonic() - self._spans[-1][2]
        self.phase, self.waits_for = phase, ""
        self._spans = [*self._spans[-199:], (phase, self.wall(), self.monotonic())]
        return spent

    def events(self) -> list[Event]:
        """List the last events, oldest first."""
        return list(self._events)

    def timeline(self) -> list[Span]:
        """List the stays in phases, oldest first; the last one is still going on."""
        now = self.monotonic()
        ends = [start for _, _, start in self._spans[1:]] + [now]
        last = len(self._spans) - 1
        return [
            Span(phase, wall, end - start, index != last)
            for index, ((phase, wall, start), end) in enumerate(zip(self._spans, ends, strict=True))
        ]

    def to_json(self) -> dict[str, Any]:
        """Give the whole picture as `/status` shows it."""
        timeline = self.timeline()
        return {
            "version": self.version,
            "mode": self.mode,
            "phase": self.phase.value,
            "ready": self.gate.open,
            "flagged": self.gate.flagged,
            "reason": self.reason,
            "since": timeline[-1].since,
            "startup": {"open": self.startup_open, "sentence": self.startup_sentence},
            "degraded": list(self.degraded),
            "engine": dict(self.engine),
            "restore": dict(self.restore),
            "warmup": dict(self.warmup),
            "publish": dict(self.publish),
            "golden": dict(self.golden),
            "cache": dict(self.cache),
            "gpu": dict(self.gpu),
            "coverage": dict(self.coverage),
            "history": dict(self.history),
            "timeline": [span.to_json() for span in timeline],
            "events": [event.to_json() for event in self._events],
        }


#: What each key of `/status` means. Kept compatible; the README table is generated from it.
SECTIONS: Mapping[str, str] = {
    "version": "Version of the sidecar.",
    "mode": "`launcher`, `child` (the daemon started the engine) or `beside` (no launcher).",
    "phase": "Where the pod is; one of the phases.",
    "ready": "Whether traffic may come; the same as `/readyz`.",
    "flagged": "Ready, but by policy without proof that warm-up converged or that output is good.",
    "reason": "One sentence: why the pod is not ready and what to do, or on what evidence it is.",
    "since": "When the current phase began, seconds since the epoch.",
    "startup": "`open`: what `/startupz` answers; `sentence`: why.",
    "degraded": "What is switched off and why: broken settings, store, port.",
    "engine": "`url`, `kind`, `version`, `model`, `identity`, `state`, `detail`, `limits` and `sources` of each fact, "
    "`running`, `waiting`, `kv_cache_usage`, `attempt`, `restarts`, `healthy_after_s` and `ready_after_s` (attempt "
    "start to first answer, and to ready), `last_exit`, `kv_cache` (blocks, tokens, shortfall against `earlier_boots` of the "
    "key, sentence, restart), "
    "`fallback` (`number`, `of`, `change`, null when the engine runs as it was asked to), "
    "`no_progress` (a sentence while an engine that is not ready shows none).",
    "restore": "`outcome` (pending, waiting, hit, partial, miss, kept, failed, timed_out, disabled, late, skipped), `sentence`, "
    "`plan` (restore, keep, cold), `exact_key`, `toolchain_key`, `generation`, `generations` per scope, `files`, `bytes`, "
    "`bytes_done`, `rejected` per reason, `damaged` archives, `differs` (facts of the nearest key), `seconds`, `waited_s`, "
    "`sources` of archives (node, volume, bucket: packs, bytes, seconds), "
    "`families`, `effectiveness` per family (restored, read, rebuilt, compiled, ratio, untouched, why).",
    "warmup": "`outcome` (pending, running, converged, exhausted, failed, engine_gone, disabled, unwarmed, adopted), "
    "`sentence`, `reason` (one word), "
    "`profile`, `round`, `steps` (name, kind, state, requests, tokens, ttft_first_s, ttft_best_s, ttft_last_s, kernels, "
    "seconds, detail, `stalls` bursts that stalled and their sum `stall_s`), "
    "`phase` (replay, rounds, search, draws), `searched`, `open` (ranges not covered), `idle_ranks` (no progress there), "
    "`replayed`, `lost` (compiled again) and `lost_kernels` per family, `matters` (bursts that the next pod replays), "
    "`draws` (random ones that compiled nothing), `residual_risk` (0 to 1), `unsupported`, `killers` (left out), `notes`, "
    "`kernels_before_ready` and `kernels_after_ready` per family, `requests`, `seconds`.",
    "publish": "`outcome` (pending, running, published, nothing_new, read_only, failed, disabled), `sentence`, "
    "`generation`, `generations` per scope, `parent`, `files`, `new_files`, `bytes`, `skipped` files per reason, `seconds`, "
    "`count`.",
    "golden": "`outcome` (pending, running, passed, skipped, degenerate, wrong, unchecked, failed, engine_gone), `sentence`, "
    "`checks`; with WARMUP_GOLDEN also `golden`: what `golden check --json` prints.",
    "cache": "Live cache: `path`, `files`, `bytes`, `kernels` per family, the same of each of `families`; "
    "`unmanaged`: directories in no family that grew (path, bytes, files, where); or `trouble`.",
    "gpu": "What NVML says: `driver`, `cuda`, `sm`, `gpus` (those of the engine, each field null that it does not show), "
    "`seen` (all that are visible here), `expected` (how many the engine uses, null when nobody says), `unclear` (why), "
    "`troubles`, `seconds`; or `unavailable` with the reason and its `kind`, and of `gpus` those alone that were last seen lost.",
    "coverage": "Steps of the engine that warm-up has met, as pairs of tokens read and requests: `visited` (compiled nothing), "
    "`replayed` (compiled by an earlier pod, sent again here), `compiled` (here); `omitted` (visited ones left out), "
    "`max_tokens`, `max_requests`, `converged`. Empty until a warm-up has ended.",
    "history": "Earlier starts with the same exact `key`, read from the store once per start: `starts` (generation, `outcome` "
    "made, ready or died, `seconds` until ready, `cold`, `at` in seconds since the epoch; null where a record does not say). The "
    "store keeps the first few of each generation. Empty without a store.",
    "timeline": "Every stay in a phase with its seconds.",
    "events": "The last events, oldest first.",
}
