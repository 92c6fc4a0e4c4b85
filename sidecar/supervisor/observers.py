"""The engine's port and the control directory, watched and turned into events: levels in, changes out.

What a change means is decided by the state machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from sidecar import lifecycle
from sidecar.caches import preflight
from sidecar.engines.log_lines import hints_from_line, without_scales
from sidecar.engines.watcher import Observation
from sidecar.gpu.sm import from_product
from sidecar.handshake import AttemptState, ControlDirectory, Exited, classify_exit
from sidecar.kube.events import ENGINE_ENDED
from sidecar.lifecycle import Event, Mode
from sidecar.logs import get_logger
from sidecar.supervisor import addressing, fallbacks, restoring
from sidecar.supervisor.pod import OUTSIDE, Pod

#: An engine that answers without a launcher is believed after so many equal reports: one that is just ending is not.
STEADY_REPORTS = 5
#: Pause between two looks at the control directory. A look costs far less than the waking up for it.
LOOK_S = 0.25
#: The same while a launcher waits for an answer before it starts the engine.
AWAITED_LOOK_S = 0.1
#: Causes that metrics name otherwise; those that the launcher's exit names else keep their word.
_RESTART_CAUSE = {"restart": "asked", "terminated": "asked", "clean": "exited", "crash": "exited"}

#: vLLM goes on with it, and its texts look well: only likelihoods show the drift.
_NO_SCALES = (
    "The engine quantises its KV cache to FP8 with scale 1.0 (its log says so). If the checkpoint has k_scale and v_scale, they "
    "were not loaded: compare with a golden file of a BF16 KV cache (WARMUP_GOLDEN), or start with --kv-cache-dtype auto."
)

Post = Callable[[Event], None]


def with_sm(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the SM version to each GPU that the launcher named, so that products of one SM version share kernels.

    By name and not by NVML: a key must not depend on whether NVML answers in the sidecar's container.
    """
    gpus = facts.get("gpus")
    if not isinstance(gpus, list):
        return facts
    named = [{**gpu, "sm": from_product(str(gpu.get("name")))} if isinstance(gpu, dict) else gpu for gpu in gpus]
    return {**facts, "gpus": named}


class EngineObserver:
    """Takes the watcher's reports: board and metrics get the numbers, the state machine gets the state."""

    def __init__(self, pod: Pod, post: Post) -> None:
        self._pod = pod
        self._post = post
        self._same = 0
        self._identity = ""
        self._log = get_logger("engine")

    def report(self, observation: Observation) -> None:
        """Take one report."""
        pod, before = self._pod, self._pod.observation
        changed = before is None or (before.state, before.identity) != (observation.state, observation.identity)
        self._same = 1 if changed else self._same + 1
        pod.observation = observation
        # First of all: whatever goes wrong with telling, the gate must follow.
        steady = self._same >= STEADY_REPORTS
        # Such an engine goes on to answer its health check; what it is asked to compute fails or hangs.
        lost = pod.lost_gpus if observation.state in ("up", "busy") else ""
        state, detail = ("gpu_lost", lost) if lost else (observation.state, observation.detail)
        self._post(lifecycle.EngineObserved(state, observation.identity, detail, steady))
        if self._identity and observation.identity not in ("", self._identity):
            self._count_replaced()
        self._identity = observation.identity or self._identity
        self._show(observation, state)
        if before is None or before.state != observation.state:
            self._log.info(observation.detail, state=observation.state, identity=observation.identity)

    def _count_replaced(self) -> None:
        """Count another process on the port; where a launcher reports its end, that counts instead."""
        if self._pod.mode is not Mode.BESIDE and self._pod.board.engine.get("attempt"):
            return
        self._pod.metrics.count_restart("replaced")
        self._pod.board.engine = {**self._pod.board.engine, "restarts": self._pod.board.engine.get("restarts", 0) + 1}

    def _show(self, observation: Observation, state: str) -> None:
        pod, stats = self._pod, observation.stats
        shown = {
            **pod.board.engine,
            "url": pod.follows or pod.settings.engine_url,
            "state": state,
            "detail": pod.lost_gpus if state == "gpu_lost" else observation.detail,
            "identity": observation.identity,
            "running": stats.running if stats else None,
            "waiting": stats.waiting if stats else None,
            "kv_cache_usage": stats.kv_cache_usage if stats else None,
        }
        if observation.state == "up" and shown.get("healthy_after_s") is None:
            shown["healthy_after_s"] = round(pod.clock() - pod.opened_at, 2)
        pod.board.engine = shown
        pod.metrics.engine_state(state, observation.answers)
        pod.metrics.engine_stats(stats.to_json() if stats else None)


class AttemptObserver:
    """Looks at the control directory and posts what happened to the engine's starts, each thing once."""

    def __init__(self, pod: Pod, control: ControlDirectory, post: Post) -> None:
        self._pod = pod
        self._control = control
        self._post = post
        self._attempt = ""
        self._told: set[str] = set()
        self._restarts = 0
        self._looking: asyncio.Task[None] | None = None
        self._marking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            awaited = self._attempt and "started" not in self._told
            await asyncio.sleep(AWAITED_LOOK_S if awaited else LOOK_S)

    def look(self) -> None:
        """Look once."""
        current = self._control.current()
        if self._attempt and (current is None or current.attempt != self._attempt):
            self._close(self._control.state(self._attempt))
        if current is None:
            return
        if current.attempt != self._attempt:
            self._begin(current)
        if current.facts is not None:
            own = {**with_sm(current.facts), **self._pod.base_facts}
            fallbacks.recognise(self._pod, own, current.attempt, current.change)
            self._pod.facts = fallbacks.facts_for(self._pod, own, current.attempt)
        self._read_lines()
        if current.waiting and self._once("opened"):
            for sentence in preflight.sentences(self._pod.facts):
                self._pod.board.tell(sentence, "warning")
            self._post(lifecycle.AttemptOpened(current.attempt, fallbacks.impossible(self._pod)))
        if current.problem and self._once("problem"):
            self._pod.board.tell(current.problem, "error")
        if current.started is not None and self._once("started"):
            self._pod.engine_pid = current.started.pid
            addressing.compare(self._pod)
            if self._pod.restored is not None and self._pod.restored_attempt == current.attempt:
                marking = restoring.mark(self._pod, current.attempt)
                self._marking = asyncio.create_task(marking, name="mark the live cache")
                self._looking = asyncio.create_task(self._pod.look_at_what_was_laid(), name="look at what was laid")
            if current.started.by == "launcher":
                restoring.overtaken(self._pod)
            for family, why in current.started.failed.items():
                self._pod.board.tell(f"{family} could not be laid down ({why}); it starts empty.", "warning")
            number = self._pod.fallback if self._pod.fallback_attempt == current.attempt else 0
            self._post(lifecycle.AttemptStarted(current.attempt, current.started.by, number))
        if current.terminating and self._once("terminating"):
            self._post(lifecycle.AttemptTerminating(current.attempt))

    def _begin(self, current: AttemptState) -> None:
        self._attempt, self._told = current.attempt, set()
        pod = self._pod
        pod.facts, pod.jit_lines, pod.fatal_lines = pod.base_facts, 0, ()
        pod.line_hints, pod.room, pod.engine_pid = {}, None, 0
        pod.start_counted, pod.kernels_before, pod.kernels_after = False, {}, {}
        pod.opened_at, pod.opened_wall = pod.clock(), pod.board.wall()
        pod.board.engine = {
            **pod.board.engine,
            "attempt": current.attempt,
            "healthy_after_s": None,
            "ready_after_s": None,
            "kv_cache": None,
            "restarts": self._restarts,
        }

    def _close(self, ended: AttemptState) -> None:
        self._read_lines()
        if ended.exited is None:
            # SIGKILL leaves no word: the container's memory limit, a failed probe's last resort, a lost node.
            exited, restarting = Exited(None, 9, self._pod.clock() - self._pod.opened_at, False, ()), False
        else:
            exited, restarting = ended.exited, ended.exited.restarting
        cause = classify_exit(exited, ended.terminating, self._pod.fatal_lines, self._pod.has_compiled)
        # Without a last word nobody can say whose fault it was.
        counts = cause.counts and ended.exited is not None
        self._restarts += 1
        self._pod.last_end = cause.cause
        self._pod.metrics.count_restart(_RESTART_CAUSE.get(cause.cause, cause.cause))
        self._pod.board.engine = {
            **self._pod.board.engine,
            "last_exit": {"cause": cause.cause, "sentence": cause.sentence},
            "restarts": self._restarts,
        }
        self._pod.board.tell(f"The engine ended: {cause.sentence}", "info" if restarting else "warning")
        if cause.cause not in ("restart", "terminated") and not restarting:
            self._pod.announce(ENGINE_ENDED, f"The engine ended: {cause.sentence}")
        self._attempt = ""
        by_itself = ended.exited is not None and not restarting and cause.cause not in OUTSIDE
        self._post(lifecycle.AttemptClosed(ended.attempt, cause.sentence, counts, restarting, cause.passing, by_itself))

    def _read_lines(self) -> None:
        for line in self._control.new_lines(self._attempt):
            if line.kind == "jit":
                self._pod.jit_lines += 1
            elif line.kind == "fatal":
                self._pod.fatal_lines = (*self._pod.fatal_lines[-19:], line.text)
            else:
                self._pod.line_hints = {**self._pod.line_hints, **hints_from_line(line.text)}
                if without_scales(line.text) and self._once("scales"):
                    self._pod.board.tell(_NO_SCALES, "warning")

    def _once(self, what: str) -> bool:
        if what in self._told:
            return False
        self._told.add(what)
        return True
