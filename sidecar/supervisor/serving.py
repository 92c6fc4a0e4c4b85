"""What goes on while the pod serves: publish once the live cache is quiet, watch for late kernels, publish those too.

How a generation is written is the business of `caches`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from sidecar.caches import families
from sidecar.caches.client import PublishRequest, PublishResult
from sidecar.kube.events import COMPILED_LATE
from sidecar.logs import get_logger
from sidecar.supervisor import room, upkeep
from sidecar.supervisor.adapters import AdapterWatch
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.traffic_record import TrafficRecorder
from sidecar.warmup.evidence import Evidence, EvidenceWatcher

#: Pause between two looks at the live cache while serving: a late kernel has already hurt, nobody waits for the count.
LOOK_S = 30.0
#: A look at a huge cache takes longer (60 ms for 10,000 files); looking may cost this share of the time at most.
LOOK_SHARE = 0.004
#: Files younger than this may still be written to; the quiet time before a publish covers it.
SETTLE_S = 2.0
_log = get_logger("serving")

#: How often a cache that never comes to rest is looked at before it is published as it is, without entries in flux.
QUIET_LOOKS = 24


async def publish_while_serving(pod: Pod) -> None:
    """Publish what this start compiled, then whatever live traffic still makes the engine compile; until cancelled."""
    if not pod.live_cache:
        pod.board.publish = {
            "outcome": "disabled",
            "sentence": "The live cache can't be used, so nothing is published.",
        }
        await _warm_new_adapters(pod)
        return
    await pod.measure_effect()
    recording = asyncio.create_task(TrafficRecorder(pod).run(), name="record traffic")
    recording.add_done_callback(_told_of_failure)
    try:
        await _keep_publishing(pod)
    finally:
        recording.cancel()


async def _warm_new_adapters(pod: Pod) -> None:
    """Warm adapters that are loaded while serving, where nothing can be seen of what they compile; until cancelled."""
    adapters = AdapterWatch(pod)
    while True:
        await adapters.look()
        await asyncio.sleep(LOOK_S)


def _told_of_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("what users send is not recorded, by a bug; please report it", error=repr(error))


async def _keep_publishing(pod: Pod) -> None:
    evidence = EvidenceWatcher(Path(pod.live_cache), families.stored_families(), lambda: pod.jit_lines)
    await evidence.baseline()
    count_late(pod, await until_quiet(pod, evidence))
    pending = await _publish(pod)
    pod.keeper.first_is_made()
    await room.record(pod, str(pod.board.publish.get("generation") or ""))
    await pod.show_cache(evidence.sizes)
    published_at = pod.clock()
    adapters = AdapterWatch(pod)
    while True:
        began = pod.clock()
        warmed = await adapters.look()
        found = await evidence.collect()
        count_late(pod, found, warmed)
        if found.kernels or found.files:
            pending = True
            await pod.show_cache(evidence.sizes)
        if pending and pod.clock() - published_at >= pod.settings.publish_interval_s:
            count_late(pod, await until_quiet(pod, evidence))
            pending = await _publish(pod)
            published_at = pod.clock()
        await asyncio.sleep(max(LOOK_S, (pod.clock() - began) / LOOK_SHARE))


async def until_quiet(pod: Pod, evidence: EvidenceWatcher) -> Evidence:
    """Wait until nothing has changed for `publish_quiet_s` seconds; give what appeared meanwhile."""
    kernels: dict[str, int] = {}
    names: list[str] = []
    for _ in range(QUIET_LOOKS):
        await asyncio.sleep(pod.settings.publish_quiet_s)
        found = await evidence.collect()
        for family, count in found.kernels.items():
            kernels[family] = kernels.get(family, 0) + count
        names += found.names
        if not (found.kernels or found.files):
            break
    return Evidence(kernels=kernels, names=tuple(names))


def count_late(pod: Pod, found: Evidence, adapters: Sequence[str] = ()) -> None:
    """Count and tell what was compiled while serving; `adapters` were warmed meanwhile, which is no user's loss."""
    if not found.kernels:
        return
    pod.count_kernels("after_ready", found.kernels)
    shown = ", ".join(found.names[:3])
    total = sum(found.kernels.values())
    if adapters:
        named = f"{', '.join(adapters)} {'was' if len(adapters) == 1 else 'were'} warmed"
        pod.board.tell(f"{total} kernels were compiled while adapter {named} ({shown}); they are published as well.")
        return
    sentence = (
        f"{total} kernels were compiled while serving ({shown}): requests waited for them. They are published for "
        "the next pod; the profile lacks a shape that traffic has."
    )
    pod.board.tell(sentence, "warning")
    pod.announce(COMPILED_LATE, sentence)


async def _publish(pod: Pod) -> bool:
    """Publish once; say whether something was left out that a later publish can take."""
    result = await publish_once(pod)
    await upkeep.clean(pod)
    return result.outcome in ("failed", "timed_out") or bool(result.skipped.get("unstable"))


async def publish_once(pod: Pod) -> PublishResult:
    """Publish what lies in the live cache now and is not in the store."""
    count = pod.board.publish.get("count", 0)
    pod.board.publish = {**pod.board.publish, "outcome": "running", "sentence": "Publishing what is new."}
    if refused := await pod.veto():
        pod.degrade(refused)
        result = PublishResult(outcome="disabled", sentence=refused)
        _note(pod, result, count)
        return result
    restored: Mapping[str, str] = pod.restored.generations if pod.restored else {}
    request = PublishRequest(
        store=pod.store,
        live_cache=pod.live_cache,
        facts=pod.facts,
        attempt=pod.restored_attempt or pod.boot,
        store_mode=pod.settings.store_mode,
        restored=restored,
        packed=pod.packed,
        suspects=pod.restored.damaged if pod.restored else (),
        exclude=pod.left_alone(),
        settle_s=min(SETTLE_S, pod.settings.publish_quiet_s),
        keys_file=str(pod.settings.trusted_keys_file or ""),
        signing_file=str(pod.settings.signing_key_file or ""),
    )
    result = await pod.caches.publish(request, pod.settings.publish_timeout_s)
    pod.packed += result.packed
    _note(pod, result, count)
    return result


def _note(pod: Pod, result: PublishResult, count: int) -> None:
    published = result.outcome == "published"
    shown = {name: value for name, value in result.to_json().items() if name != "packed"}
    pod.board.publish = {**shown, "count": count + int(published)}
    pod.metrics.observe_publish(result.to_json())
    fine = result.outcome in ("published", "nothing_new", "disabled", "read_only")
    pod.board.tell(f"Publish: {result.outcome}. {result.sentence}", "info" if fine else "warning")
