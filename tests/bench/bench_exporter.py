"""What live requests notice of the daemon beside a serving engine: in pairs of windows, scraped once a second or stopped.

Run it by hand, `python -m tests.bench.bench_exporter`, or with `--url`, `--daemon` and `--metrics` beside a pod that runs already;
nothing here is a test, and no number is asserted. In every second window the daemon's processes get SIGSTOP: no poll, no reading
of the GPU, no scrape.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import aiohttp
import psutil

from sidecar.demo.tiny_model import make_tiny_model
from tests.bench.bench_publish import Felt, load
from tests.bench.figures import Figure, machine, save, table
from tests.bench.probing import quantile
from tests.integration.pod import PUBLISH_S, READY_S, Pod
from tests.integration.stories import publish_ended
from tests.prepare import engine

SCRAPE_S = 1.0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--pairs", type=int, default=8, help="how many pairs of windows (default 8)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a window (default 6)")
    parser.add_argument("--url", help="an engine that serves already, instead of one on CPU started here")
    parser.add_argument("--model", default="tiny", help="the name under which that engine serves its model")
    parser.add_argument("--daemon", type=int, help="process id of the daemon beside that engine")
    parser.add_argument("--metrics", default="http://127.0.0.1:9797/metrics", help="where that daemon is scraped")
    return parser.parse_args()


@contextlib.contextmanager
def stopped(daemon: int) -> Iterator[None]:
    """Stop a daemon and its workers while the block runs."""
    root = psutil.Process(daemon)
    processes = [root, *root.children(recursive=True)]
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def scraped(url: str) -> AsyncIterator[None]:
    """Read the metrics once a second while the block runs, as a Prometheus in a hurry would."""

    async def scrape() -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(url) as answer:
                    await answer.read()
                await asyncio.sleep(SCRAPE_S)

    task = asyncio.create_task(scrape())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def compare(pairs: int, seconds: float, url: str, model: str, daemon: int, metrics: str) -> tuple[Felt, Felt]:
    """Measure the windows in pairs, each of some seconds, in turns first with and first without the daemon (process id)."""
    alone, beside = Felt(), Felt()
    for pair in range(pairs):
        for running in (True, False) if pair % 2 else (False, True):
            end = asyncio.Event()
            felt = beside if running else alone
            async with contextlib.AsyncExitStack() as stack:
                if running:
                    await stack.enter_async_context(scraped(metrics))
                else:
                    stack.enter_context(stopped(daemon))
                clients = asyncio.create_task(load(url, felt, end, pair * 100_000, model))
                await asyncio.sleep(seconds)
                end.set()
                await clients
    return alone, beside


def figures(alone: Felt, beside: Felt, pairs: int) -> Sequence[Figure]:
    """Put what was felt side by side."""
    part, rows = "live requests beside the daemon", list[Figure]()
    for name, calm, hard in (
        ("time to first token", alone.first, beside.first),
        ("time between tokens", alone.gaps, beside.gaps),
    ):
        for word, share in (("median", 0.5), ("p99", 0.99)):
            before, with_it = quantile(calm, share) * 1000, quantile(hard, share) * 1000
            rows.append(Figure(part, f"{name}, {word}, daemon stopped", before, "ms", None, f"{len(calm)} samples"))
            rows.append(
                Figure(part, f"{name}, {word}, scraped every second", with_it, "ms", None, f"{len(hard)} samples")
            )
            rows.append(Figure(part, f"{name}, {word}, ratio", with_it / before, "×", None, f"{pairs} pairs"))
    rows.append(Figure(part, "tokens per second, ratio", beside.rate / alone.rate, "×"))
    return rows


def on_cpu(given: argparse.Namespace, parser_error: str) -> Sequence[Figure]:
    """Start an engine on CPU with a daemon that has become ready beside it, and measure these."""
    paths = engine.found()
    if paths is None:
        raise SystemExit(parser_error)
    with tempfile.TemporaryDirectory(prefix="warmup-bench-") as folder:
        pod = Pod(Path(folder) / "pod", paths, make_tiny_model(paths, engine.model_folder()))
        try:
            daemon = pod.start_daemon(gpu_interval_s=10)
            pod.start_engine()
            daemon.wait_until_ready(READY_S)
            daemon.wait_for(publish_ended, PUBLISH_S, "the first publish ended")
            metrics = f"http://127.0.0.1:{pod.workplace.sidecar_port}/metrics"
            found = compare(given.pairs, given.seconds, pod.workplace.engine_url, "tiny", daemon.process.pid, metrics)
            return figures(*asyncio.run(found), given.pairs)
        finally:
            pod.end()


def main() -> None:
    """Print the figures as a Markdown table."""
    given = arguments()
    before = machine()
    if given.url:
        felt = asyncio.run(compare(given.pairs, given.seconds, given.url, given.model, given.daemon, given.metrics))
        found = figures(*felt, given.pairs)
    else:
        found = on_cpu(given, "there is no CPU engine; `python -m tests --only engine` prepares it")
    print(table(found))
    print(f"\n`python -m tests.bench.bench_exporter`; {before}.")
    if given.json:
        save(given.json, found)


if __name__ == "__main__":
    main()
