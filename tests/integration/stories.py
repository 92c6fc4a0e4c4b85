"""What happens to the pods, once per session: each story starts engines, and keeps what several tests then look at.

An engine's start takes a minute, so a story goes on where another has ended. Nothing is claimed here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.looks import (
    LATE_FEATURE,
    LOG_PROBABILITIES,
    STRUCTURED,
    ReadinessWatch,
    ask_engine,
    kernel_files,
)
from tests.integration.pod import END_S, PUBLISH_S, READY_S, Pod
from tests.sidecar_process import LOOK_EVERY, SidecarProcess

Status = dict[str, Any]
Kernels = dict[str, tuple[int, int]]

PUBLISH_ENDED = ("published", "nothing_new", "read_only", "failed", "disabled", "timed_out")

#: Without log-probabilities, which the output check then is the first to ask for.
SMALL_PROFILE = """\
description: Everything but log-probabilities.
steps:
  - {kind: prefill, tokens: [1, 16, 128, 500]}
  - {kind: decode, batch: [1, 4], output_tokens: 32}
search: {enabled: false}
converge: {tolerance: 3, floor_s: 0.3, random_draws: 20}
"""


@dataclass(frozen=True)
class FirstStart:
    """A pod whose store was empty; its daemon and its engine still run."""

    ready: Status
    kernels_at_ready: Kernels
    answers: tuple[dict[str, Any], ...]
    kernels_after_requests: Kernels
    published: Status
    generations: tuple[str, ...]
    kernels_published: int


@dataclass(frozen=True)
class RestoredStart:
    """The same pod on another node: nothing but the store is left of the first start."""

    kernels_at_start: Kernels
    ready: Status
    kernels_at_ready: Kernels
    published: Status


@dataclass(frozen=True)
class OtherArguments:
    """Another engine configuration on the same image and machine, beside the store of the first."""

    ready: Status
    kernels_at_ready: Kernels


@dataclass(frozen=True)
class KilledReady:
    """The restored engine, killed while ready and started again. Times in monotonic seconds."""

    killed_at: float
    watch: ReadinessWatch
    sentence: str
    kernels_before: Kernels
    ready: Status
    kernels_at_ready: Kernels


@dataclass(frozen=True)
class KilledWarming:
    """A cold engine, killed while it was being warmed, and its next start, beside a store nobody may write to."""

    watch: ReadinessWatch
    died: Status
    kernels_at_death: Kernels
    started_again_at: float
    ready_at: float
    ready: Status
    kernels_at_ready: Kernels
    published: Status


@dataclass(frozen=True)
class LateKernel:
    """A kernel that live traffic made the engine compile, and what became of it."""

    kernels_before: Kernels
    kernels_after: Kernels
    counted: Status
    published: Status
    kernels_stored: int


def publish_ended(status: Status) -> bool:
    """Say whether nothing more comes of a publish."""
    return status["publish"].get("outcome") in PUBLISH_ENDED


def first_start(pod: Pod) -> FirstStart:
    """Start on an empty store; send live requests the moment the pod is ready."""
    daemon = pod.start_daemon()
    pod.start_engine()
    ready = daemon.wait_until_ready(READY_S)
    at_ready = kernel_files(pod.live)
    url = pod.workplace.engine_url
    answers = (ask_engine(url, "first words", LOG_PROBABILITIES), ask_engine(url, "then a city", STRUCTURED))
    after = kernel_files(pod.live)
    # The first publish waits until the cache is quiet, and counts what was compiled until then.
    published = daemon.wait_for(publish_ended, PUBLISH_S, "the first publish ended")
    store = pod.workplace.store
    generations = tuple(path.parent.name for path in store.rglob("generations/*/manifest.json"))
    return FirstStart(ready, at_ready, answers, after, published, generations, kernels_in_newest(store))


def restored_start(pod: Pod) -> RestoredStart:
    """Wipe all but the store and start again."""
    pod.move_to_another_node()
    at_start = kernel_files(pod.live)
    daemon = pod.start_daemon()
    pod.start_engine()
    ready = daemon.wait_until_ready(READY_S)
    at_ready = kernel_files(pod.live)
    published = daemon.wait_for(publish_ended, PUBLISH_S, "the publish after a restored start ended")
    return RestoredStart(at_start, ready, at_ready, published)


def killed_ready(pod: Pod) -> KilledReady:
    """Kill the engine of a ready pod, start it again as a kubelet does, wait until the pod is ready again, and end it."""
    daemon, engine = pod.daemon, pod.engine
    assert daemon is not None
    assert engine is not None
    before = kernel_files(pod.live)
    with ReadinessWatch(daemon.url) as watch:
        _until(lambda: watch.times_of(200), "the probe answers 200 before the kill")
        killed_at = time.monotonic()
        engine.kill()
        daemon.wait_for(lambda status: not status["ready"], END_S, "not ready after the engine was killed")
        _, sentence = daemon.get("/readyz")
        pod.start_engine()
        ready = daemon.wait_until_ready(READY_S)
        _until(lambda: watch.times_of(200, killed_at), "the probe answers 200 again")
    told = KilledReady(killed_at, watch, sentence, before, ready, kernel_files(pod.live))
    pod.end()
    return told


def other_arguments(pod: Pod) -> OtherArguments:
    """Wipe all but the store, and start an engine that compiles other shapes; end it."""
    pod.move_to_another_node()
    daemon = pod.start_daemon()
    pod.start_engine("--max-model-len", "1536")
    daemon.wait_until_ready(READY_S)
    at_ready = kernel_files(pod.live)
    # What the engine used of it is measured once the pod is ready, and takes a moment.
    ready = daemon.wait_for(lambda status: "effectiveness" in status["restore"], END_S, "the effect was measured")
    told = OtherArguments(ready, at_ready)
    pod.end()
    return told


def killed_warming(pod: Pod, profile: Path) -> KilledWarming:
    """Start cold, kill the engine at the first sight of warm-up, start it again; the store takes no writes."""
    profile.write_text(SMALL_PROFILE, encoding="utf-8")
    pod.workplace.store.chmod(0o555)
    daemon = pod.start_daemon(prefix=bound_by_modes(), profile=profile, publish_quiet_s=1, publish_interval_s=3)
    with ReadinessWatch(daemon.url) as watch:
        engine = pod.start_engine()
        daemon.wait_for_phase("warming", READY_S)
        engine.kill()
        died = daemon.wait_for(
            lambda status: status["phase"] == "awaiting_launcher", END_S, "the end of the engine was seen"
        )
        at_death = kernel_files(pod.live)
        pod.start_engine()
        again = time.monotonic()
        ready = daemon.wait_until_ready(READY_S)
        at_ready = kernel_files(pod.live)
        _until(lambda: watch.times_of(200), "the probe answers 200")
    published = daemon.wait_for(publish_ended, PUBLISH_S, "the publish into a store without write permission ended")
    return KilledWarming(watch, died, at_death, again, watch.times_of(200)[0], ready, at_ready, published)


def late_kernel(pod: Pod) -> LateKernel:
    """Let the store be written again, and send the first request for the engine's plug-in to the ready pod; end it."""
    assert pod.daemon is not None
    pod.workplace.store.chmod(0o755)
    before = kernel_files(pod.live)
    ask_engine(pod.workplace.engine_url, "softly please", LATE_FEATURE)
    after = kernel_files(pod.live)
    daemon = pod.daemon
    counted = status_when(daemon, lambda status: any(status["warmup"]["kernels_after_ready"].values()))
    published = status_when(daemon, lambda status: status["publish"]["outcome"] == "published")
    told = LateKernel(before, after, counted, published, kernels_in_newest(pod.workplace.store))
    pod.end()
    return told


def kernels_in_newest(store: Path) -> int:
    """Count the kernels that the newest generations list, one generation of each key."""
    newest: dict[Path, Path] = {}
    for manifest in sorted(store.rglob("generations/*/manifest.json")):
        newest[manifest.parents[1]] = manifest
    names = [file["path"] for path in newest.values() for file in json.loads(path.read_text())["files"]]
    return sum(name.endswith(".so") for name in names)


def status_when(daemon: SidecarProcess, holds: Callable[[Status], bool]) -> Status:
    """Give the first status that is as wanted, or the last one in the time that a publish takes: a test judges it."""
    ends = time.monotonic() + PUBLISH_S
    while not holds(status := daemon.status()) and time.monotonic() < ends:
        time.sleep(LOOK_EVERY)
    return status


def bound_by_modes() -> list[str]:
    """Give the words before a command that make file modes hold for root as well."""
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def _until(holds: Callable[[], object], what: str) -> None:
    ends = time.monotonic() + END_S
    while not holds():
        assert time.monotonic() < ends, f"not within {END_S:.0f} s: {what}"
        time.sleep(0.05)
