"""Warm-up and output check as activities: learn the engine, choose and fit a profile, run it, tell how it went.

What is sent and when it has converged is the business of `warmup`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sidecar import lifecycle
from sidecar.aside import FILE_S, beside
from sidecar.caches import families
from sidecar.config import Settings
from sidecar.engines.outside import hints_of, launcher_place
from sidecar.engines.protocol import EngineFacts, Hint
from sidecar.errors import EngineGone, ProfileError
from sidecar.kube.events import OUTPUT_BAD
from sidecar.supervisor import baseline, deaths, golden_check, history, renewal, room
from sidecar.supervisor.pod import Pod
from sidecar.warmup import coverage, coverage_map, pinned, recorded
from sidecar.warmup import verify as output
from sidecar.warmup.attempts import WarmPolicy
from sidecar.warmup.choice import choose_profile
from sidecar.warmup.coverage import Coverage
from sidecar.warmup.evidence import EvidenceWatcher
from sidecar.warmup.planner import Plan, make_plan
from sidecar.warmup.profiles import Profile, load_profile
from sidecar.warmup.recorded import RecordedMix
from sidecar.warmup.results import WarmProgress, WarmResult
from sidecar.warmup.runner import WarmupRunner

T = TypeVar("T")

#: A hanging request at the very end of the budget may be cancelled a moment late.
GRACE_S = 60.0
#: One request of an output check decodes a few dozen tokens; minutes mean that the engine hangs.
CHECK_DEADLINE_S = 120.0
#: A request lasts so much longer than the engine bears with one step, so that the engine's own end is what is seen.
BEYOND_S = 60.0

#: What becomes of a step's requests in the metrics; a step is as good as its worst request.
_REQUEST_OUTCOME = {"done": "ok", "unsupported": "unsupported"}


async def warm(pod: Pod, command: lifecycle.Warm) -> lifecycle.Event:
    """Warm the engine up. Raises ProfileError or EngineError when it can't even begin."""
    pod.board.warmup = {"outcome": "running", "sentence": "Asking the engine for its limits.", "steps": [], "round": 0}
    # Read while the engine is asked and the profile chosen: the first request waits for what others died of.
    earlier = asyncio.create_task(history.read(pod), name="read earlier boots")
    try:
        return await _warm(pod, command, earlier)
    finally:
        earlier.cancel()


async def _warm(pod: Pod, command: lifecycle.Warm, earlier: deaths.Records) -> lifecycle.Event:
    await _count_kernels_of_the_start(pod)
    pod.show_kernels()
    try:
        facts = await learn(pod)
    except EngineGone as error:
        pod.board.warmup = {**pod.board.warmup, "outcome": "engine_gone", "sentence": str(error)}
        return lifecycle.WarmEnded(command.work, "engine_gone", str(error))
    profile, why = await _profile(pod, facts)
    plan = make_plan(profile, facts, await _recorded(pod))
    for note in plan.notes:
        pod.board.tell(f"Profile {profile.name}: {note}")
    known = await _coverage(pod)
    pod.board.tell(f"Warm-up begins. {why}: {plan.requests} requests and {plan.tokens} tokens a round.")
    result = await _send(pod, facts, plan, known, earlier)
    _note(pod, result)
    pod.board.coverage = coverage_map.picture(plan, known, result.coverage, result.replayed)
    await _keep(pod, known, result.coverage)
    return lifecycle.WarmEnded(command.work, result.outcome, result.sentence, profile.policy.on_unwarmed or "")


def check_deadline_s(settings: Settings) -> float:
    """Give how many seconds a check of the output may take: an engine that answers slowly is not one that hangs."""
    one = min(CHECK_DEADLINE_S, settings.request_timeout_s)
    return max(settings.request_timeout_s, output.IN_TURN * one) + GRACE_S + golden_check.deadline(settings)


async def _send(
    pod: Pod, facts: EngineFacts, plan: Plan, known: Coverage | None, earlier: deaths.Records
) -> WarmResult:
    """Send the plan, while it is compared with what `earlier` boots of the key had, and died of."""
    settings, policy = pod.settings, plan.profile.policy
    caps = WarmPolicy(budget_s=settings.warm_budget_s, request_timeout_s=_request_timeout_s(pod, facts))
    before = await pinned.usage(pod.engine) if pinned.may_pin(facts) else None
    convicted, digest, ends = pod.convict(), coverage.plan_digest(plan), _ends(pod)
    sharing = asyncio.create_task(deaths.share(pod, convicted, digest), name="share deaths")
    comparing = asyncio.create_task(room.compare(pod, facts, earlier), name="compare KV cache")
    try:
        killers = frozenset[str]()
        if policy.killers == "leave_out":
            killers = convicted | await deaths.of_others(pod, earlier, digest)
        runner = WarmupRunner(pod.engine, plan, _evidence(pod), caps, pod.clock, pod.rng, pod.asleep, killers, known)
        try:
            result = await runner.run(lambda progress: _show(pod, progress))
        except asyncio.CancelledError:
            if _ends(pod) != ends:
                # The launcher told of the death before the connection did, which cancels this.
                pod.suspect(runner.in_flight())
            raise
        result = await _released(pod, facts, before, result)
        if result.outcome != "engine_gone":
            # Nothing is waited for after a death: the launcher's word of it cancels this, and who is to blame would be lost.
            # A store that hangs does not keep traffic away: what it says came in meanwhile, or is done without.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deaths.PATIENCE_S):
                    await asyncio.gather(comparing, sharing)
    finally:
        for aside in (comparing, sharing):
            aside.cancel()
    return result


def _ends(pod: Pod) -> object:
    """Count the ends of engines that the launcher told of."""
    return pod.board.engine.get("restarts")


def _request_timeout_s(pod: Pod, facts: EngineFacts) -> float:
    """Give the cap of one request: the setting's, and beyond the engine's own patience with a step that compiles."""
    asked = pod.settings.request_timeout_s
    if facts.step_timeout_s is None or facts.step_timeout_s + BEYOND_S <= asked:
        return asked
    pod.board.tell(
        f"A warm-up request may take {facts.step_timeout_s + BEYOND_S:.0f} s instead of WARMUP_REQUEST_TIMEOUT_S="
        f"{asked:g}, because the engine gives one step {facts.step_timeout_s} s."
    )
    return facts.step_timeout_s + BEYOND_S


async def _released(pod: Pod, facts: EngineFacts, before: float | None, result: WarmResult) -> WarmResult:
    """Wait until the KV cache that warm-up filled is free again; what stays pinned keeps a warm-up from being proven."""
    if not pinned.may_pin(facts) or result.outcome not in ("converged", "exhausted"):
        return result
    wait_s = pinned.patience(facts, pod.settings.kv_release_s)
    pod.board.warmup = {
        **pod.board.warmup,
        "sentence": "Waiting until the KV cache of warm-up's requests is free again.",
    }
    pod.resting = True
    try:
        left = await pinned.wait_until_released(pod.engine, before, wait_s, facts.kv_blocks, pod.clock)
    finally:
        pod.resting = False
    if left is None:
        return result
    return replace(result, outcome="exhausted", reason="kv_pinned", sentence=f"{left.sentence} {result.sentence}")


async def _recorded(pod: Pod) -> RecordedMix | None:
    """Read what users sent to earlier pods, which was restored with the kernels."""
    if not pod.live_cache:
        return None
    path = recorded.mix_path(Path(pod.live_cache))
    found, trouble = await _loaded(recorded.load, path)
    if trouble:
        pod.board.tell(trouble, "warning")
    return found


async def _loaded(load: Callable[[Path], tuple[T | None, str]], path: Path) -> tuple[T | None, str]:
    """Load what lies in the live cache; from one that does not answer nothing, with a sentence."""
    try:
        return await beside("what earlier pods left", FILE_S, load, path)
    except TimeoutError as error:
        return None, f"What earlier pods left in {path} is not used: {error.strerror}."


async def _coverage(pod: Pod) -> Coverage | None:
    """Read what earlier pods covered, which was restored with the kernels."""
    if not pod.live_cache:
        return None
    path = coverage.coverage_path(Path(pod.live_cache))
    known, trouble = await _loaded(coverage.load, path)
    if trouble:
        pod.board.tell(trouble, "warning")
    return known


async def _keep(pod: Pod, known: Coverage | None, found: Coverage | None) -> None:
    """Put the coverage beside the kernels, to be published with them; one that says nothing new is not written."""
    if not pod.live_cache or found is None or (known is not None and replace(found, draws=known.draws) == known):
        return
    try:
        await beside("coverage", FILE_S, found.save, coverage.coverage_path(Path(pod.live_cache)))
    except OSError as error:
        pod.board.tell(
            f"What was covered can't be kept for the next pod ({error}); it starts from its profile.", "warning"
        )


async def verify(pod: Pod, command: lifecycle.Verify) -> lifecycle.Event:
    """Check the output; with `canary` by one request. Raises EngineError when the engine can't be asked."""
    pod.board.golden = {"outcome": "running", "sentence": "Checking the output.", "checks": []}
    try:
        facts = await learn(pod)
    except EngineGone as error:
        pod.board.golden = {"outcome": "engine_gone", "sentence": str(error), "checks": []}
        return lifecycle.VerifyEnded(command.work, "engine_gone", str(error))
    evidence = _evidence(pod)
    await evidence.baseline()
    if command.canary:
        await baseline.adopt(pod)
        checked = golden_check.Checked(await output.canary(pod.engine, facts))
    else:
        salt = f"verify-{pod.boot}-{command.work}"
        sampled = await output.verify(pod.engine, facts, min(CHECK_DEADLINE_S, pod.settings.request_timeout_s), salt)
        checked = await golden_check.compare(pod, facts, sampled, f"golden-{salt}")
    result = checked.result
    # The check asks for log-probabilities, which the profile may have left out.
    pod.count_kernels("before_ready", (await evidence.collect()).kernels)
    await baseline.take(pod)
    pod.board.golden = checked.to_json()
    pod.metrics.observe_verify(result.outcome)
    pod.board.tell(
        f"Output check: {result.outcome}. {result.sentence}",
        {"passed": "info", "skipped": "warning"}.get(result.outcome, "error"),
    )
    if result.outcome in ("degenerate", "wrong"):
        pod.announce(OUTPUT_BAD, result.sentence)
    restart = "" if command.canary or result.outcome != "passed" else await renewal.reason(pod)
    return lifecycle.VerifyEnded(command.work, result.outcome, result.sentence, restart)


def _evidence(pod: Pod) -> EvidenceWatcher:
    return EvidenceWatcher(
        Path(pod.live_cache or "/nonexistent"), families.stored_families(), lambda: pod.jit_lines, time.time
    )


async def learn(pod: Pod) -> EngineFacts:
    """Ask the engine for its limits, helped by what the launcher saw of its command, and show them."""
    hints = hints_of((launcher_place(pod.facts), *pod.places))
    if pod.gpu_memory_gib:
        hints["gpu_memory_gib"] = Hint(pod.gpu_memory_gib, "NVML")
    pod.engine.use_hints({**hints, **pod.line_hints})
    pod.learnt = facts = await pod.engine.facts()
    shown = facts.to_json()
    limits = {
        name: value
        for name, value in shown.items()
        if name not in ("engine", "version", "model", "sources") and value not in (None, [], {}, ())
    }
    pod.board.engine = {
        **pod.board.engine,
        "kind": facts.engine,
        "version": facts.version,
        "model": facts.model,
        "limits": limits,
        "sources": shown["sources"],
    }
    return facts


async def _profile(pod: Pod, facts: EngineFacts) -> tuple[Profile, str]:
    """Take the profile that was asked for; one that can't be used costs a notice, and the choice by SM counts."""
    wanted = pod.settings.profile
    if wanted != "auto":
        try:
            profile = await beside("profile", FILE_S, load_profile, wanted)
            return profile, f"Profile {profile.name}, named by WARMUP_PROFILE"
        except (ProfileError, OSError) as error:
            pod.degrade(f"WARMUP_PROFILE={wanted} can't be used, the SM version chooses instead: {error}")
    choice = await asyncio.to_thread(choose_profile, pod.sm_version, facts)
    return choice.profile, choice.sentence.rstrip(".")


async def _count_kernels_of_the_start(pod: Pod) -> None:
    """Count what the engine compiled before it answered: what is there now less what was laid down."""
    await pod.show_cache()
    sizes = pod.board.cache.get("families")
    if not sizes or pod.restored is None or pod.restored.outcome == "kept" or pod.start_counted:
        return
    pod.start_counted = True
    restored = pod.restored.families
    pod.count_kernels(
        "before_ready",
        {name: size["kernels"] - (restored[name].kernels if name in restored else 0) for name, size in sizes.items()},
    )


def _show(pod: Pod, progress: WarmProgress) -> None:
    pod.board.warmup = progress.to_json()
    pod.show_kernels()


def _note(pod: Pod, result: WarmResult) -> None:
    pod.suspect(result.killers)
    pod.board.warmup = result.to_json()
    pod.count_kernels("before_ready", result.kernels)
    pod.metrics.observe_warmup(result.to_json())
    for step in result.steps:
        pod.metrics.count_requests(_REQUEST_OUTCOME.get(step.state, "failed"), step.requests)
    pod.board.tell(
        f"Warm-up: {result.outcome}. {result.sentence}", "info" if result.outcome == "converged" else "warning"
    )
