"""The one restart of an engine that started cold: its KV cache is smaller than it could be until then.

vLLM counts what compiling takes as the model's need, and gives the KV cache what is left: 5 % to tens of GiB less until
the next start (vllm-project/vllm issues 54122 and 54383). The order is fixed: warmed, output checked, published, then
restarted, and only then ready. So nothing good is lost when the restart goes wrong, the next pod starts warm in any case,
and no user's request ever runs on an engine that is about to end. It happens once in a pod: that is remembered in the
control directory before it is asked for, and a restarted engine finds its caches, so that it is not cold. How an engine is
restarted is the launcher's business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sidecar.caches import families
from sidecar.caches.normalise import arguments
from sidecar.errors import EngineError, HandshakeError
from sidecar.lifecycle import Mode
from sidecar.supervisor import room, serving
from sidecar.supervisor.pod import Pod
from sidecar.warmup.evidence import EvidenceWatcher

#: Arguments that fix the KV cache's size, so that no restart changes it (vllm/engine/arg_utils.py, 0.10 to 0.33).
FIXED_SIZE = ("--num-gpu-blocks-override", "--kv-cache-memory-bytes")
_PUBLISHED = ("published", "nothing_new")


async def reason(pod: Pod) -> str:
    """Say why the engine is restarted now, after its caches were published; empty: it is not. Never raises."""
    if pod.settings.restart_after_cold != "once" or not _is_worth_it(pod):
        return ""
    refusal = await _refusal(pod)
    if not refusal:
        pod.resting = True
        try:
            refusal = await _published(pod)
        finally:
            pod.resting = False
    if not refusal:
        refusal = _remember(pod)
    if refusal:
        _tell(pod, refusal, "warning")
        return ""
    why = "it started cold, and its KV cache is given the memory that compiling had taken"
    _tell(pod, f"The engine is restarted once, before it takes traffic: {why}. Its caches are published.", "info")
    return why


def deadline(settings: Any) -> float:
    """Give how many seconds more an output check may take because of a publish that belongs to it."""
    if settings.restart_after_cold != "once":
        return 0.0
    return float(settings.publish_timeout_s + serving.QUIET_LOOKS * settings.publish_quiet_s + room.STORE_S)


def _is_worth_it(pod: Pod) -> bool:
    """Say whether the engine compiled in a cold start, and may have more room than it got."""
    argv = pod.facts.get("argv")
    if pod.board.engine.get("ready_after_s") is not None:
        # This engine has taken traffic: requests of users may still run.
        return False
    given = arguments([str(word) for word in argv]) if isinstance(argv, list) else {}
    if any(option in given for option in FIXED_SIZE) or pod.room is None or not pod.room.cold:
        return False
    if not sum(pod.kernels_before.values()):
        return False
    # An engine that has as much as earlier boots has nothing to gain.
    return pod.room.shortfall is None or pod.room.smaller


async def _refusal(pod: Pod) -> str:
    """Say why the engine can't be restarted; empty when it can."""
    if pod.mode is Mode.BESIDE or pod.control is None or not pod.restored_attempt:
        return (
            "WARMUP_RESTART_AFTER_COLD=once needs the launcher, so the engine goes on as it is. To give its KV cache the "
            "memory that compiling had taken, end the engine's container once, with the pod's volumes kept."
        )
    if pod.control.was_renewed(_key(pod)):
        return "The engine was restarted after a cold start before, and started cold again; it goes on as it is."
    try:
        stats = await pod.engine.stats()
    except EngineError as error:
        return f"The engine is not restarted after its cold start, because its load can't be seen: {error}"
    if (stats.running or 0) + (stats.waiting or 0) > 0:
        return (
            "The engine is not restarted after its cold start, because requests run that are not the sidecar's; "
            "let traffic come through the readiness of the pod."
        )
    return ""


async def _published(pod: Pod) -> str:
    """Publish what the cold start compiled. Say why the restart has to be left; empty when all is in the store."""
    evidence = EvidenceWatcher(
        Path(pod.live_cache or "/nonexistent"), families.stored_families(), lambda: pod.jit_lines
    )
    await evidence.baseline()
    pod.count_kernels("before_ready", (await serving.until_quiet(pod, evidence)).kernels)
    result = await serving.publish_once(pod)
    if result.outcome not in _PUBLISHED:
        return (
            f"The engine is not restarted after its cold start, because its caches are not published: {result.sentence}"
        )
    pod.keeper.first_is_made()
    await room.record(pod, result.generations.get("exact", ""))
    return ""


def _remember(pod: Pod) -> str:
    """Write down that this pod has had its restart, so that no daemon after this one asks for another."""
    if pod.control is None:
        return "There is no control directory."
    try:
        pod.control.note_renewed(_key(pod), pod.restored_attempt)
    except HandshakeError as error:
        return f"The engine is not restarted after its cold start, because that can't be remembered: {error}"
    return ""


def _key(pod: Pod) -> str:
    return pod.restored.exact_key if pod.restored else ""


def _tell(pod: Pod, sentence: str, level: str) -> None:
    pod.board.tell(sentence, level)
    shown = pod.board.engine.get("kv_cache")
    pod.board.engine = {**pod.board.engine, "kv_cache": {**(shown or {}), "restart": sentence}}
