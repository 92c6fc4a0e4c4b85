"""Telling people and machines about every step: status board, metrics, log, each change of phase one sentence.

Nothing is decided here.
"""

from __future__ import annotations

from sidecar.lifecycle import BAD, Event, Gate, Phase, Snapshot
from sidecar.lifecycle.gate import IF_THE_GPU_IS_BACK
from sidecar.lifecycle.states import Suspension
from sidecar.logs import get_logger
from sidecar.supervisor.pod import Pod

_NOT_RESTORED = {
    "skipped": "The engine was running already, so nothing was put into its caches.",
}


class Teller:
    """Keeps board, metrics and log in step with the state machine."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._log = get_logger("lifecycle")
        pod.metrics.observe_phase(Phase.STARTING.value, None, pod.board.wall())
        pod.metrics.gate(False, False)

    def stepped(self, before: Snapshot, event: Event, after: Snapshot, gate: Gate) -> None:
        """Note one step; silent when nothing changed that anybody can see."""
        board, metrics = self._pod.board, self._pod.metrics
        withdrawn = board.gate.open and not gate.open
        board.gate = gate
        self._pod.on_step(before, after, gate)
        self._show_what_was_not_done(after)
        if after.suspension is not None and after.suspension is not before.suspension:
            metrics.count_suspension(after.suspension.value)
        if after.phase is before.phase and after.work == before.work:
            return
        spent = board.enter(after.phase)
        metrics.observe_phase(after.phase.value, spent, board.wall())
        metrics.gate(gate.open, gate.flagged)
        level = "warning" if withdrawn or after.phase is Phase.SUSPENDED else "info"
        board.tell(_news(after, gate), level)
        log = self._log.warning if level == "warning" else self._log.info
        log(
            gate.sentence,
            phase=after.phase.value,
            before=before.phase.value,
            spent_s=round(spent, 3),
            attempt=after.attempt or None,
            because=type(event).__name__,
        )
        if after.phase is Phase.READY and not before.served:
            self._ready(after)

    def _show_what_was_not_done(self, after: Snapshot) -> None:
        """Say in the sections of restore and warm-up why nothing came of them; those that ended say so themselves."""
        board = self._pod.board
        if after.restore in _NOT_RESTORED and board.restore.get("outcome") in ("pending", "running"):
            board.restore = {"outcome": after.restore, "sentence": _NOT_RESTORED[after.restore]}
        if after.warm == "adopted" and board.warmup.get("outcome") == "pending":
            board.warmup = {**board.warmup, "outcome": "adopted", "sentence": after.warm_sentence}
        if after.phase is Phase.READY and after.verify in BAD and board.publish.get("outcome") in ("pending", None):
            board.publish = {"outcome": "disabled", "sentence": "Nothing is published: the output is known to be bad."}

    def _ready(self, after: Snapshot) -> None:
        start = "adopted" if after.warm == "adopted" else after.restore or "skipped"
        seconds = self._pod.clock() - self._pod.opened_at
        self._pod.metrics.observe_time_to_ready(seconds, start)
        self._pod.board.engine = {**self._pod.board.engine, "ready_after_s": round(seconds, 2)}

    def failed(self, activity: str, error: BaseException) -> None:
        """Note that an activity raised."""
        sentence = str(error) or type(error).__name__
        board = self._pod.board
        board.tell(f"{activity} failed: {sentence}", "error")
        if activity == "warm" and board.warmup.get("outcome") == "running":
            board.warmup = {**board.warmup, "outcome": "failed", "sentence": sentence}
        if activity == "verify" and board.golden.get("outcome") == "running":
            board.golden = {**board.golden, "outcome": "failed", "sentence": sentence}
        self._log.error("activity failed", activity=activity, error=sentence)


def _news(after: Snapshot, gate: Gate) -> str:
    """Give what a step has to say to who reads event after event: that a GPU is lost, the watch over them has told."""
    if after.phase is Phase.SUSPENDED and after.suspension is Suspension.GPU_LOST:
        return f"Traffic is withdrawn: a GPU is lost. {IF_THE_GPU_IS_BACK}"
    return gate.sentence
