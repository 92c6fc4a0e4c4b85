"""What metrics cost: a scrape of the daemon's loop with 8 GPUs, a reading of 8 GPUs, a reading of an engine's page.

Run it by hand, `python -m tests.bench.bench_scrape`; nothing here is a test, and no number is asserted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from sidecar.caches.families import FAMILIES
from sidecar.engines.exposition import read, statistics
from sidecar.gpu.reading import GpuSnapshot
from sidecar.metrics import Metrics
from tests.bench.figures import Figure, machine, save, table
from tests.bench.probing import ask, median, quantile
from tests.bench.subject import Subject
from tests.fakes.nvml import NEEDS_GCC, NvmlStub, compile_stub
from tests.fakes.readings import FULL_USAGE, full_snapshot, full_stats

TARGET_MS = 5.0
GPUS = 8
#: Buckets of one page of vLLM 0.33: 20 histograms of 20 buckets, of which two are read.
PAGE_HISTOGRAMS = 20


def taken_ms(work: Callable[[], object], times: int) -> list[float]:
    """Do work again and again; give the milliseconds of CPU that each took."""
    found = []
    for _ in range(times):
        began = time.process_time_ns()
        work()
        found.append((time.process_time_ns() - began) / 1e6)
    return found


def rendering(_root: Path, times: int) -> Iterator[Figure]:
    """Measure the text of all metrics, with everything changed and with what changes between two scrapes."""
    metrics = Metrics("0", "launcher", [family.name for family in FAMILIES])
    metrics.live_cache({family.name: {"files": 3, "bytes": 30} for family in FAMILIES})
    metrics.processes(FULL_USAGE)
    step = {"ttft_first_s": 1.0, "ttft_best_s": 1.0, "ttft_last_s": 1.0}
    metrics.observe_warmup({"outcome": "converged", "steps": [{"name": f"step{n}", **step} for n in range(48)]})
    metrics.gpu(full_snapshot(GPUS).to_json())
    metrics.engine_stats(full_stats())
    series = sum(not line.startswith(b"#") for line in metrics.render().splitlines())
    note = f"{series} series, {len(metrics.render()) >> 10} KiB, CPU time of {times}"
    yield Figure(
        "scrape", "nothing has changed since the last one", median(taken_ms(metrics.render, times)), "ms", None, note
    )
    found = []
    for number in range(times):
        metrics.gpu(_moved(number))
        metrics.engine_stats(full_stats(scale=2.0 + number))
        metrics.processes({**FULL_USAGE, "cpu_seconds": 100.0 + number})
        found += taken_ms(metrics.render, 1)
    yield Figure(
        "scrape", f"{GPUS} GPUs, engine and processes have moved, median", median(found), "ms", TARGET_MS, note
    )
    yield Figure("scrape", "the same, 99th percentile", quantile(found, 0.99), "ms", TARGET_MS, note)


def _moved(number: int) -> dict[str, object]:
    """Give a reading in which each GPU draws another power and has used more energy than in the last one."""
    snapshot = full_snapshot(GPUS).to_json()
    for gpu in snapshot["gpus"]:
        for name, value in gpu.items():
            if isinstance(value, float):
                gpu[name] = value + number
            elif isinstance(value, dict):
                gpu[name] = {key: each + number for key, each in value.items()}
    return snapshot


def taking_in(_root: Path, times: int) -> Iterator[Figure]:
    """Measure what the loop does for one reading of the GPUs, and for one page of an engine."""
    metrics = Metrics("0", "launcher", [family.name for family in FAMILIES])
    shown = full_snapshot(GPUS).to_json()

    def take_gpus() -> None:
        metrics.gpu(GpuSnapshot.from_json(shown).to_json())

    yield Figure(
        "reading", f"{GPUS} GPUs into series, median", median(taken_ms(take_gpus, times)), "ms", None, f"{times}"
    )
    pages = Path(__file__).parents[1] / "fakes" / "expositions"
    page = (pages / "vllm-0.33.txt").read_text(encoding="utf-8")
    for name in range(PAGE_HISTOGRAMS):
        page += "".join(f'vllm:other_{name}_bucket{{engine="0",le="{le}",model_name="m"}} 1.0\n' for le in range(20))

    def take_page() -> None:
        metrics.engine_stats(statistics(read(page)).to_json())

    found = median(taken_ms(take_page, times))
    yield Figure(
        "reading", "an engine's page into series, median", found, "ms", None, f"{len(page) >> 10} KiB, {times}"
    )


def over_http(root: Path, times: int) -> Iterator[Figure]:
    """Measure scrapes of a real daemon that reads 8 GPUs from the stub, next to probes of the same daemon."""
    library = root / "library"
    library.mkdir()
    if not compile_stub(library):
        raise SystemExit(NEEDS_GCC)
    stub = NvmlStub(library, root)
    stub.set(GPUS=GPUS)
    uuids = ",".join(f"GPU-stub-{index}" for index in range(GPUS))
    settings = {"WARMUP_GPU_INTERVAL_S": "1", "WARMUP_GPUS": uuids, "WARMUP_PUBLISH_QUIET_S": "1"}
    with Subject(root / "pod", None, **stub.environment, **settings).start(engine=True) as subject:
        subject.settle()
        time.sleep(3)
        for path in ("/livez", "/metrics"):
            before, taken = subject.cpu_s(), []
            for _ in range(times):
                began = time.perf_counter()
                ask(subject.port, path)
                taken.append(1000 * (time.perf_counter() - began))
                time.sleep(0.02)
            spent = 1000 * (subject.cpu_s() - before) / times
            yield Figure("over HTTP", f"{path}, median", median(taken), "ms", None, f"{times}, one connection each")
            yield Figure("over HTTP", f"{path}, 99th percentile", quantile(taken, 0.99), "ms", None, f"{times}")
            yield Figure(
                "over HTTP", f"{path}, CPU of the daemon a request, its own work included", spent, "ms", None, ""
            )
        workers = [each for each in subject.process.children() if "sidecar.gpu.worker" in " ".join(each.cmdline())]
        yield from _worker(workers[0], 20.0)


def _worker(worker: psutil.Process, seconds: float) -> Iterator[Figure]:
    """Measure the NVML process at ten times the usual pace."""
    before = sum(worker.cpu_times()[:2])
    time.sleep(seconds)
    spent = 1000 * (sum(worker.cpu_times()[:2]) - before) / seconds
    yield Figure("NVML process", f"CPU of a reading of {GPUS} GPUs (stub)", spent, "ms", None, f"{seconds:g} readings")
    yield Figure("NVML process", "resident memory", worker.memory_info().rss / (1 << 20), "MiB")


PARTS: dict[str, Callable[[Path, int], Iterator[Figure]]] = {
    "rendering": rendering,
    "taking_in": taking_in,
    "over_http": over_http,
}


def main() -> None:
    """Run all parts, or those that are named, and print the figures as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to run, of {', '.join(PARTS)}; default: all")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--times", type=int, default=500, help="how often each thing is done (default 500)")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    figures: list[Figure] = []
    before = machine()
    for name in given.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="warmup-bench-") as folder:
            figures += PARTS[name](Path(folder), given.times)
    print(table(figures))
    print(f"\n`python -m tests.bench.bench_scrape`; {before}; load at the end {machine().rpartition('load ')[2]}.")
    if given.json:
        save(given.json, figures)


if __name__ == "__main__":
    main()
