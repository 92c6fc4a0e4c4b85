"""The restore as an activity: stage in the worker, tell the launcher, remember what lies in the live cache.

How files are staged and verified is the business of `caches`; who renames them, of the launcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sidecar import lifecycle
from sidecar.aside import FILE_S, beside
from sidecar.caches import commit, left_facts, live_cache
from sidecar.caches.client import Progress, RestoreRequest, RestoreResult
from sidecar.errors import HandshakeError
from sidecar.handshake import CommitEntry, Decision
from sidecar.lifecycle import Mode
from sidecar.supervisor import fallbacks, signed_seen
from sidecar.supervisor.pod import Pod

#: The worker is killed at its deadline; this much more is for killing it and for the handshake.
GRACE_S = 5.0
#: The start waits so long for the facts that are left for `explain`; a slower disk takes them beside it.
WRITE_S = 2.0
_LATE = "The launcher did not wait any longer and started the engine cold."


def deadline(settings_timeout_s: float) -> float:
    """Give the cap of the whole activity in seconds."""
    return settings_timeout_s + GRACE_S + fallbacks.LOOK_S + WRITE_S


async def restore(pod: Pod, command: lifecycle.Restore) -> lifecycle.Event:
    """Restore for one attempt and let its launcher go on. A launcher that went on by itself makes it `late`."""
    pod.board.restore = {"outcome": "running", "sentence": "Looking for caches that fit.", "plan": command.plan}
    pod.keeper.give_back()
    chosen = await fallbacks.choose(pod, command)
    if pod.live_cache:
        with suppress(TimeoutError):
            await beside("facts of this start", WRITE_S, left_facts.leave, pod.live_cache, pod.facts)
    request = _request(pod, command)
    result = await pod.caches.restore(request, pod.settings.restore_timeout_s, lambda progress: _show(pod, progress))
    pod.keeper.keep(request.store, result.claims)
    if result.outcome != "kept":
        pod.packed = ()
    if trouble := await asyncio.to_thread(signed_seen.note, pod.settings.control_dir, result.signed):
        pod.board.tell(trouble, "warning")
    if pod.mode is Mode.BESIDE:
        result = await _commit_here(pod, result)
    elif not _decide(pod, command, result):
        result = RestoreResult(
            outcome="failed",
            sentence=_LATE,
            exact_key=result.exact_key,
            toolchain_key=result.toolchain_key,
            seconds=result.seconds,
        )
        pod.keeper.give_back()
        fallbacks.use(pod, "", 0)
        _note(pod, command.plan, result, "late")
        return lifecycle.RestoreEnded(command.work, "late", detail=result.sentence)
    pod.restored, pod.restored_attempt = result, command.attempt
    fallbacks.began(pod, command, chosen.why)
    _note(pod, command.plan, result, result.outcome)
    generation = result.generation or ""
    return lifecycle.RestoreEnded(
        command.work, result.outcome, generation, result.sentence, chosen.number, why=chosen.why
    )


def release(pod: Pod, command: lifecycle.Restore, why: str) -> None:
    """Let the launcher go on with empty caches after a restore that went wrong in an unforeseen way."""
    result = RestoreResult(outcome="failed", sentence=f"The restore failed: {why}")
    pod.restored, pod.restored_attempt = result, command.attempt
    if pod.mode is not Mode.BESIDE:
        fallbacks.use(pod, "", 0)
        _decide(pod, command, result)
    _note(pod, command.plan, result, "failed")


def overtaken(pod: Pod) -> None:
    """Tell that a launcher went on by itself while its restore was under way, which is cancelled then."""
    if pod.board.restore.get("outcome") in ("running", "waiting"):
        fallbacks.use(pod, "", 0)
        _note(pod, str(pod.board.restore.get("plan")), RestoreResult(outcome="failed", sentence=_LATE), "late")


def take_over(pod: Pod, result: RestoreResult) -> None:
    """Go on from what an earlier process of this pod restored: an init container's, or a sidecar's that has ended."""
    pod.restored = result
    _note(pod, "before", result, result.outcome)


async def mark(pod: Pod, attempt: str) -> None:
    """Write down whose files lie in the live cache, now that the launcher has swapped them in.

    Without the marker the next attempt of this pod can't keep its cache, which costs warmth only. A disk that is still
    busy with what was restored may take seconds for it, so it is written beside the event loop.
    """
    result = pod.restored
    if not pod.live_cache or result is None or not result.exact_key:
        return
    marker = live_cache.LiveMarker(
        exact_key=result.exact_key,
        toolchain_key=result.toolchain_key,
        attempt=attempt,
        host_boot=pod.host_boot,
        generations=result.generations,
    )
    try:
        await beside("live cache's marker", FILE_S, _write, pod, result, marker)
    except OSError as error:
        pod.board.tell(
            f"The live cache's marker can't be written ({error}); a restart in this pod restores anew.", "warning"
        )


def _write(pod: Pod, result: RestoreResult, marker: live_cache.LiveMarker) -> None:
    """Write the marker; one that a slow disk wrote when the next start had laid down other files would lie of those."""
    live_cache.write_marker(pod.live_cache, marker)
    if pod.restored is not result:
        live_cache.remove_marker(pod.live_cache)


def _request(pod: Pod, command: lifecycle.Restore) -> RestoreRequest:
    plan: Any = command.plan
    store = pod.store if pod.live_cache else ""
    return RestoreRequest(
        store=store,
        live_cache=pod.live_cache,
        facts=pod.facts,
        attempt=command.attempt or "beside",
        plan=plan,
        host_boot=pod.host_boot,
        exclude=pod.left_alone(),
        distrusted=pod.distrusted,
        store_mode=pod.settings.store_mode,
        limit_bytes=pod.settings.live_cache_limit_bytes,
        pack_cache=str(pod.settings.pack_cache or ""),
        pack_cache_bytes=pod.settings.pack_cache_limit_bytes,
        keys_file=str(pod.settings.trusted_keys_file or ""),
        signing_file=str(pod.settings.signing_key_file or ""),
        seen=signed_seen.read(pod.settings.control_dir),
        holder=pod.name,
        # Without a launcher nothing of the exact scope is ever published, so nobody makes the first generation.
        single_flight_s=pod.settings.single_flight_s if pod.mode is not Mode.BESIDE else 0.0,
    )


def _decide(pod: Pod, command: lifecycle.Restore, result: RestoreResult) -> bool:
    if pod.control is None:
        return False
    entries = tuple(CommitEntry(entry.family, entry.staged, entry.live) for entry in result.commit)
    decision = Decision(restore=result.outcome, commit=entries, clear=result.clear, change=fallbacks.change_of(pod))
    try:
        return pod.control.decide(command.attempt, decision)
    except HandshakeError as error:
        pod.board.tell(str(error), "error")
        return False


async def _commit_here(pod: Pod, result: RestoreResult) -> RestoreResult:
    """Swap staged families in without a launcher, unless an engine answers by now."""
    if not (result.commit or result.clear or result.outcome == "kept"):
        return result
    health = await pod.engine.health()
    if health.state != "refused":
        return RestoreResult(
            outcome="failed",
            seconds=result.seconds,
            sentence="An engine was already there when the restore had ended, so nothing was touched.",
        )
    report = await asyncio.to_thread(commit.commit, pod.live_cache, result.commit, result.clear)
    for family, reason in report.failed.items():
        pod.board.tell(f"{family} could not be laid down ({reason}); it starts empty.", "warning")
    return result


def _show(pod: Pod, progress: Progress) -> None:
    if progress.waiting:
        if pod.board.restore.get("outcome") != "waiting":
            pod.board.tell(progress.waiting)
        pod.board.restore = {**pod.board.restore, "outcome": "waiting", "sentence": progress.waiting}
        pod.board.waits_for = progress.waiting
        return
    pod.board.waits_for = ""
    pod.board.restore = {
        **pod.board.restore,
        "outcome": "running",
        "bytes_done": progress.bytes_done,
        "bytes": progress.bytes_total,
        "files": progress.files_done,
        "sentence": "Laying caches down and checking every byte.",
    }


def _note(pod: Pod, plan: str, result: RestoreResult, outcome: str) -> None:
    shown: Mapping[str, Any] = result.to_json()
    pod.board.restore = {
        **{name: value for name, value in shown.items() if name not in ("commit", "clear", "claims", "signed")},
        "outcome": outcome,
        "plan": plan,
        "bytes_done": result.bytes,
    }
    pod.metrics.observe_restore({**shown, "outcome": outcome})
    quiet = outcome in ("hit", "kept", "miss", "disabled")
    pod.board.tell(f"Restore: {outcome}. {result.sentence}", "info" if quiet else "warning")
