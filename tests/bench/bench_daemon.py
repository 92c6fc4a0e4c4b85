"""What the daemon costs: time to its first answer, memory and CPU at rest, probe latency under load, pauses of its own.

Run it by hand, `python -m tests.bench.bench_daemon`; nothing here is a test, and no number is asserted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sidecar.caches.client import CacheClient
from sidecar.caches.messages import PublishRequest
from tests.bench import cache_tree
from tests.bench.figures import Figure, machine, save, table
from tests.bench.peaks import Peaks
from tests.bench.probing import Prober, Sample, median, quantile
from tests.bench.store_calls import publish
from tests.bench.subject import Subject

MIB = 1 << 20
#: What the kubelet asks once the pod runs, once a second each, and what is probed under load in all.
KUBELET_PATHS, KUBELET_RATE, LOAD_RATE = ("/livez", "/readyz"), 2.0, 50.0
#: A 99th percentile of fewer probes is hardly more than the worst one.
ENOUGH_PROBES = 300
#: A scripted engine that works for some seconds: compile stalls, and a pause at each token.
BUSY_ENGINE = {"compile_seconds": 0.2, "token_seconds": 0.004, "kv_blocks": 16384}
#: Long prompts one by one and sixteen at once: the most that a warm-up keeps in memory.
LONG_PROMPTS: dict[str, Any] = {
    "description": "Prompts of 4096 tokens, for the bench.",
    "steps": [
        {"kind": "prefill", "tokens": [4096], "output_tokens": 4},
        {"kind": "decode", "batch": [1, 4, 16], "prompt_tokens": [4096], "output_tokens": 32},
    ],
    "mix": {"prompt_tokens": {"from": 4096, "to": 4096}, "concurrency": {"from": 8, "to": 16}},
    "converge": {"clean_rounds": 3, "tolerance": 100, "random_draws": 60},
}
#: The largest live cache that a daemon is asked to cope with, and what it and its worker may take with it.
MANY_FILES, PEAK_MIB = 300_000, 160.0
TARGET_RSS_MIB, TARGET_CPU, TARGET_P99_MS = 64.0, 1.0, 20.0


def first_answer(root: Path, repeat: int, _seconds: float) -> Iterator[Figure]:
    """Measure process start to the first 200 of /livez."""
    taken = []
    for number in range(2 * repeat + 1):
        began = time.time()
        with Subject(root / str(number)).start(engine=False) as subject:
            taken.append(subject.wait("/livez", 0.005) - began)
    yield Figure("start", "process start to first 200 of /livez", median(taken), "s", 1.0, _starts(taken))
    yield Figure("start", "the same, worst", max(taken), "s")


def at_rest(root: Path, _repeat: int, seconds: float) -> Iterator[Figure]:
    """Measure memory and CPU of a daemon that has nothing to do: no engine there, and ready beside an idle one."""
    for part, engine in (("rest, no engine yet", False), ("rest, ready", True)):
        with Subject(root / part.split()[-1], WARMUP_PUBLISH_QUIET_S="1").start(engine=engine) as subject:
            if engine:
                subject.settle()
            else:
                subject.wait("/livez")
            time.sleep(3)
            yield from _rest(part, subject, seconds)


def _rest(part: str, subject: Subject, seconds: float) -> Iterator[Figure]:
    note = f"{seconds:g} s"
    before = subject.cpu_s()
    time.sleep(seconds)
    yield Figure(part, "CPU of a core, not probed", _share(subject, before, seconds), "%", TARGET_CPU, note)
    before = subject.cpu_s()
    with Prober(subject.port, KUBELET_PATHS, KUBELET_RATE):
        time.sleep(seconds)
    share = _share(subject, before, seconds)
    yield Figure(part, "CPU of a core, /livez and /readyz probed once a second each", share, "%", TARGET_CPU, note)
    yield Figure(part, "resident memory", subject.rss() / MIB, "MiB", TARGET_RSS_MIB)


def _share(subject: Subject, before: float, seconds: float) -> float:
    return 100 * (subject.cpu_s() - before) / seconds


def big_cache(root: Path, repeat: int, seconds: float) -> Iterator[Figure]:
    """Measure probes and memory while 1 GB is restored and the engine is warmed with it, and rest beside it."""
    store = root / "store"
    store.mkdir()
    settings = {"WARMUP_STORE": str(store), "WARMUP_RESTORE_TIMEOUT_S": "300", "WARMUP_PUBLISH_QUIET_S": "1"}
    subject = Subject(root / "pod", BUSY_ENGINE, **settings)
    size = _fill_store(subject, store)
    restoring, warming, restores, daemon, worker = list[Sample](), list[Sample](), list[float](), 0, 0
    while len(restores) < repeat or min(len(restoring), len(warming)) < ENOUGH_PROBES:
        shutil.rmtree(subject.live, ignore_errors=True)
        shutil.rmtree(subject.control, ignore_errors=True)
        with subject.start(engine=True):
            with Peaks(subject) as peaks, Prober(subject.port, KUBELET_PATHS, LOAD_RATE) as prober:
                subject.wait("/readyz", 0.2)
            restoring += prober.within(*subject.stay("restoring"))
            warming += prober.within(*subject.stay("warming"))
            restores.append(_restored(subject, size))
            daemon, worker = max(daemon, peaks.daemon), max(worker, peaks.worker)
            if len(restores) == 1:
                subject.settle()
                rest = list(_rest("rest, ready, 1 GB of live cache", subject, seconds))
    part = "restoring 1 GB"
    yield from _latency(part, restoring)
    yield Figure(part, "restore", median(restores), "s", None, _starts(restores))
    yield Figure(part, "peak memory of the daemon", daemon / MIB, "MiB")
    yield Figure(part, "peak memory of the worker", worker / MIB, "MiB")
    yield from _latency("warming, 1 GB of live cache", warming)
    yield from rest


def many_files(root: Path, _repeat: int, seconds: float) -> Iterator[Figure]:
    """Measure the memory of a pod whose live cache has 300,000 files: restored, warmed with, and looked through to publish."""
    store = root / "store"
    store.mkdir()
    settings = {"WARMUP_STORE": str(store), "WARMUP_RESTORE_TIMEOUT_S": "600", "WARMUP_PUBLISH_QUIET_S": "1"}
    subject = Subject(root / "pod", BUSY_ENGINE, **settings)
    size = _fill_store(subject, store, kernels=MANY_FILES // cache_tree.FILES_OF_KERNEL, large=0, scale=1 / 32)
    for folder in (subject.live, subject.control):
        shutil.rmtree(folder)
    with subject.start(engine=True):
        with Peaks(subject) as peaks:
            subject.settle()
        _restored(subject, size)
        outcome, files = subject.status()["publish"]["outcome"], subject.status()["cache"]["files"]
        rest = list(_rest(f"rest, ready, {files:,} files", subject, seconds))
    part, note = f"{MANY_FILES:,} files", f"once; restored, warmed, and a publish: {outcome}"
    yield Figure(part, "peak memory of the daemon", peaks.daemon / MIB, "MiB", PEAK_MIB, note)
    yield Figure(part, "peak memory of the worker, without what it forks", peaks.worker / MIB, "MiB", PEAK_MIB, note)
    yield from rest


def _fill_store(subject: Subject, store: Path, **tree: Any) -> int:
    """Publish 1 GB, or another tree, under the keys of the facts that a first start reports; give its bytes."""
    with subject.start(engine=True):
        subject.wait("/readyz", 0.1)
        facts = json.loads(next(subject.control.glob("attempts/*/facts.json")).read_text())
    shutil.rmtree(subject.live)
    size = cache_tree.fill(subject.live, **tree)
    request = PublishRequest(store=str(store), live_cache=str(subject.live), facts=facts, attempt="bench", settle_s=0)
    publish(CacheClient(time.monotonic), request)
    return size


def _restored(subject: Subject, size: int) -> float:
    restore = subject.status()["restore"]
    if restore["outcome"] not in ("hit", "partial") or restore["bytes"] < size:
        raise SystemExit(f"not everything was restored: {restore}")
    return float(restore["seconds"])


def long_prompts(root: Path, repeat: int, _seconds: float) -> Iterator[Figure]:
    """Measure probes and memory while prompts of 4096 tokens are sent, up to sixteen at once."""
    profile = root / "long.yaml"
    profile.write_text(json.dumps(LONG_PROMPTS), encoding="utf-8")
    latencies, peak, runs = list[Sample](), 0, 0
    while runs < repeat or len(latencies) < ENOUGH_PROBES:
        subject = Subject(root / str(runs), BUSY_ENGINE, WARMUP_PROFILE=str(profile))
        with subject.start(engine=True):
            with Peaks(subject) as peaks, Prober(subject.port, KUBELET_PATHS, LOAD_RATE) as prober:
                subject.wait("/readyz", 0.2)
            latencies += prober.within(*subject.stay("warming"))
            peak, runs = max(peak, peaks.daemon), runs + 1
    part = "warming, prompts of 4096 tokens"
    yield from _latency(part, latencies)
    yield Figure(part, "peak memory of the daemon", peak / MIB, "MiB")


def own_pauses(root: Path, repeat: int, _seconds: float) -> Iterator[Figure]:
    """Measure what the daemon adds: engine's port open to first request, last answer to /readyz 200."""
    to_request, to_ready = [], []
    for number in range(2 * repeat + 1):
        with Subject(root / str(number), {"load_seconds": 2.0 + 0.1 * number}).start(engine=True) as subject:
            ready = subject.wait("/readyz", 0.01)
            record = subject.engine_record()
            requests = record["requests"]
            if len(requests) != record["counters"]["texts"]:
                raise SystemExit("the scripted engine has forgotten its first requests; use a shorter profile")
            to_request.append(requests[0]["at"] - record["listening_since"])
            to_ready.append(ready - max(each.get("answered_at", 0.0) for each in requests))
    part = "pauses"
    name = "engine's first possible 200 to the first warm-up request"
    yield Figure(part, name, median(to_request), "s", 1.0, _starts(to_request))
    yield Figure(part, "the same, worst", max(to_request), "s", 1.0)
    name = "last answer of the output check to /readyz 200"
    yield Figure(part, name, median(to_ready), "s", 0.2, _starts(to_ready))
    yield Figure(part, "the same, worst", max(to_ready), "s", 0.2)


def _latency(part: str, probes: list[Sample]) -> Iterator[Figure]:
    seconds = [probe.seconds for probe in probes]
    late = quantile([probe.late for probe in probes], 0.99)
    note = f"{len(probes)} probes, {LOAD_RATE:g} a second; the bench itself woke up late by {1e3 * late:.1f} ms (p99)"
    yield Figure(part, "probe, median", 1e3 * median(seconds), "ms", None, note)
    yield Figure(part, "probe, p99", 1e3 * quantile(seconds, 0.99), "ms", TARGET_P99_MS, note)
    yield Figure(part, "probe, worst", 1e3 * max(seconds, default=float("nan")), "ms", None, note)


def _starts(values: list[float]) -> str:
    return f"median of {len(values)}"


Part = Callable[[Path, int, float], Iterator[Figure]]
PARTS: dict[str, Part] = {
    "start": first_answer,
    "rest": at_rest,
    "big-cache": big_cache,
    "many-files": many_files,
    "long-prompts": long_prompts,
    "pauses": own_pauses,
}


def main() -> None:
    """Run all parts, or those that are named, and print the figures as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to run, of {', '.join(PARTS)}; default: all")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repeat", type=int, default=3, help="least number of starts of a part (default 3)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each look at rest (default 30)")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    figures: list[Figure] = []
    before = machine()
    for name in given.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="warmup-bench-") as folder:
            figures += PARTS[name](Path(folder), given.repeat, given.seconds)
    print(table(figures))
    print(f"\n`python -m tests.bench.bench_daemon`; {before}; load at the end {machine().rpartition('load ')[2]}.")
    if given.json:
        save(given.json, figures)


if __name__ == "__main__":
    main()
