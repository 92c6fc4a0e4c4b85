"""The single decision whether traffic may come, derived from the snapshot, with the sentence that explains it.

Nothing sets the gate by hand: whoever wants it closed sends an event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.lifecycle.output import FROM_STORE
from sidecar.lifecycle.states import Mode, Phase, Snapshot, Suspension

IF_THE_GPU_IS_BACK = "The engine is warmed and checked again should the GPU come back."


@dataclass(frozen=True)
class Gate:
    """`open`: traffic may come. `flagged`: by policy, without full proof. `sentence`: why, and what to do."""

    open: bool
    flagged: bool
    sentence: str

    @classmethod
    def closed_at_birth(cls) -> Gate:
        """Give the gate of a daemon that has decided nothing yet."""
        return cls(False, False, "The sidecar is starting.")


def gate(snapshot: Snapshot) -> Gate:
    """Derive the gate. Open in phase `ready` and in no other."""
    ready = snapshot.phase is Phase.READY
    return Gate(ready, ready and snapshot.flagged, _SENTENCES[snapshot.phase](snapshot))


def fallback_sentence(s: Snapshot) -> str:
    """Say with which fallback the engine runs and why; empty when it runs as it was asked to."""
    if not s.fallback:
        return ""
    why = f" Without it: {s.fallback_why}" if s.fallback_why else ""
    return (
        f"The engine runs with fallback {s.fallback} of {len(s.fallbacks)}, `{s.fallbacks[s.fallback - 1]}`, and not as it "
        f"was asked to.{why}"
    )


def _would_come_again(s: Snapshot) -> str:
    """Say what the store makes the next pod do as well, which deleting this one doesn't end; empty where it is nothing."""
    parts = []
    if s.generation and s.restore in FROM_STORE:
        parts.append(
            f"The next pod restores generation {s.generation} as well, unless it is put away with `warmup-sidecar store "
            "quarantine`."
        )
    if s.fallback and s.trusted:
        parts.append(
            "This fallback was good before, and later pods start with it as long as it is remembered: `warmup-sidecar golden "
            "lift` lets them start as they are asked to."
        )
    return " ".join(parts)


def _by_hand(s: Snapshot) -> str:
    """Say what is left to try and by whom, where the engine is held for its output."""
    following = f"`{s.fallbacks[s.next_fallback - 1]}`" if s.next_fallback else ""
    if following and (s.mode is Mode.BESIDE or not s.attempt):
        return (
            f"There is no launcher that could restart the engine with another command: change it by hand (next to try: "
            f"{following}) and start the pod anew."
        )
    if s.fallbacks and not following:
        impossible = len(s.impossible)
        none = (
            f"None of the {len(s.fallbacks)} fallbacks was good either"
            if not impossible
            else f"None of the {len(s.fallbacks)} fallbacks is left; {impossible} can't be applied to this command"
        )
        return (
            f"{none}. Look at the golden file, the model and the KV cache's "
            "dtype; then delete the pod, or run `warmup-sidecar golden run` once the cause is mended."
        )
    return "Check the KV cache's dtype and scales, then delete the pod or run `warmup-sidecar rewarm`."


def _awaiting_launcher(s: Snapshot) -> str:
    if s.stopping:
        return f"The engine ended, as it was asked to: {s.died}"
    if s.mode is Mode.CHILD and (s.relaunch or s.deaths or s.cold_next):
        without = "with empty caches, which are suspect" if s.cold_next else "once more"
        return f"The engine ended before it was ready: {s.died} Its command is started {without}."
    if s.mode is Mode.CHILD:
        return "Waiting for the engine's command to report its facts; this takes a second or two."
    if s.died:
        return f"The engine ended: {s.died} Waiting for its container to start again."
    return (
        "Waiting for the engine's container: its launcher has not reported yet. If the container runs, check that its "
        "command is prefixed with `python3 <control dir>/launcher.py --` and that both mount the control directory."
    )


def _restoring(s: Snapshot) -> str:
    if s.cold_next:
        return "Clearing the live cache: this start is cold on purpose, because the cached generation is suspect."
    return "Restoring kernel caches from the store; the engine starts as soon as this ends, whatever comes of it."


def _awaiting_engine(s: Snapshot) -> str:
    if s.engine_detail:
        return f"Waiting for the engine to answer ({s.engine_detail}); restore was: {s.restore or 'not done'}."
    return f"Waiting for the engine to answer; restore was: {s.restore or 'not done'}."


def _warming(_: Snapshot) -> str:
    return "Warming up: traffic waits until a whole round of real requests compiles nothing new."


def _verifying(s: Snapshot) -> str:
    if s.suspension is Suspension.DEGENERATE:
        return f"While the engine served, its output turned bad; all of it is checked. {s.verify_sentence}"
    if s.adopting:
        return "This engine was proven before the sidecar restarted; one request checks that it still answers."
    return "Warm-up has ended; checking that the output is good."


def _ready(s: Snapshot) -> str:
    parts = [fallback_sentence(s), s.warm_sentence or "Warm-up was not needed.", s.verify_sentence]
    if s.unproven:
        parts.append("Serving by policy, without full proof.")
    if s.fallback:
        parts.append(
            "Later pods start with the fallback at once, if it is remembered, until `warmup-sidecar golden lift`."
        )
    return " ".join(filter(None, parts))


def _suspended(s: Snapshot) -> str:
    if s.suspension is Suspension.ASLEEP:
        return "The engine sleeps; nothing is sent to it. It is warmed and checked again when it wakes."
    if s.suspension is Suspension.STALLED:
        return (
            f"The engine makes no progress with requests running ({s.engine_detail}); "
            "restart its container if it stays so."
        )
    if s.suspension is Suspension.GPU_LOST:
        return f"{s.engine_detail} {IF_THE_GPU_IS_BACK}"
    if s.suspension in (Suspension.DEGENERATE, Suspension.WRONG):
        held = "Held by policy on_golden_failed."
        parts = (fallback_sentence(s), s.verify_sentence, held, _by_hand(s), _would_come_again(s))
        return " ".join(filter(None, parts))
    if s.suspension is Suspension.UNCHECKED:
        return (
            f"{s.verify_sentence} Held by policy on_golden_failed until the output can be compared, which is tried every 30 s; "
            "policy `serve` takes such pods."
        )
    if s.suspension is Suspension.BROKEN:
        return f"The engine can't generate: {s.verify_sentence} It is tried again every 30 s."
    return (
        f"Warm-up did not prove the engine warm: {s.warm_sentence} Held by policy on_unwarmed=hold; raise "
        "WARMUP_WARM_BUDGET_S, mend the cause, or run `warmup-sidecar rewarm`."
    )


_SENTENCES: dict[Phase, Callable[[Snapshot], str]] = {
    Phase.STARTING: lambda _: "The sidecar is starting.",
    Phase.AWAITING_LAUNCHER: _awaiting_launcher,
    Phase.RESTORING: _restoring,
    Phase.AWAITING_ENGINE: _awaiting_engine,
    Phase.WARMING: _warming,
    Phase.VERIFYING: _verifying,
    Phase.READY: _ready,
    Phase.SUSPENDED: _suspended,
    Phase.DRAINING: lambda s: (
        f"Draining, asked by {s.drained_by or 'the operator'}: no new traffic; requests in flight may end."
    ),
    Phase.STOPPED: lambda _: "The sidecar has stopped.",
}
