"""What live requests notice of a publish while the pod serves: a real vLLM on CPU, in pairs of windows with and without.

Run it by hand, `python -m tests.bench.bench_publish`; nothing here is a test, and no number is asserted. Every window has
the same load; in every second one the worker publishes new files of the live cache, as the daemon has it do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from sidecar.caches.client import CacheClient
from sidecar.caches.messages import PublishRequest
from sidecar.demo.tiny_model import make_tiny_model
from tests.bench.figures import Figure, machine, save, table
from tests.bench.probing import median, quantile
from tests.integration.pod import API_KEY, PUBLISH_S, READY_S, Pod
from tests.integration.stories import publish_ended
from tests.prepare import engine

MIB = 1 << 20
STREAMS = 2
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 48
#: One publish: a burst of late kernels far beyond what live traffic ever compiled at once on an H200 (17).
KERNELS, KERNEL_BYTES = 400, 160 << 10
DEADLINE_S = 300.0


@dataclass
class Felt:
    """What clients felt in one kind of window, in seconds: each first token, each later gap; and tokens received."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Give tokens per second of all streams."""
        return (len(self.first) + len(self.gaps)) / self.seconds


async def stream(session: aiohttp.ClientSession, url: str, felt: Felt, number: int, model: str) -> None:
    """Send one request and note when its tokens come."""
    prompt = [1 + (number * 31 + index * 7) % 200 for index in range(PROMPT_TOKENS)]
    body = {"model": model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": True}
    began = last = time.monotonic()
    tokens = 0
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            (felt.gaps if tokens else felt.first).append(now - last if tokens else now - began)
            tokens, last = tokens + 1, now


async def load(url: str, felt: Felt, until: asyncio.Event, offset: int, model: str = "tiny") -> None:
    """Keep STREAMS requests in flight until told to end; what is in flight then is finished and counts."""
    headers = {"Authorization": f"Bearer {API_KEY}"}

    async def client(lane: int) -> None:
        number = 0
        while not until.is_set():
            await stream(session, url, felt, offset + lane * 1000 + number, model)
            number += 1

    began = time.monotonic()
    async with aiohttp.ClientSession(headers=headers) as session:
        await asyncio.gather(*(client(lane) for lane in range(STREAMS)))
    felt.seconds += time.monotonic() - began


def grow(live: Path, number: int) -> None:
    """Add kernels to the live cache, as late traffic makes the engine do."""
    for index in range(KERNELS):
        folder = live / "deep_gemm" / "cache" / f"kernel.bench{number}.{index:x}"
        folder.mkdir(parents=True)
        (folder / "kernel.cu").write_text(f"// {number} {index}")
        (folder / "kernel.cubin").write_bytes(os.urandom(KERNEL_BYTES // 2) + bytes(KERNEL_BYTES // 2))


async def compare(pod: Pod, facts: dict[str, Any], pairs: int) -> tuple[Felt, Felt, list[float]]:
    """Measure the windows in pairs, in turns first with and first without a publish; gives also each publish's seconds."""
    quiet, busy, took = Felt(), Felt(), list[float]()
    caches = CacheClient(time.monotonic)
    request = PublishRequest(
        store=str(pod.workplace.store), live_cache=str(pod.live), facts=facts, attempt="bench", settle_s=0
    )
    url = pod.workplace.engine_url
    for pair in range(pairs):
        grow(pod.live, pair)
        for with_publish in (True, False) if pair % 2 else (False, True):
            end = asyncio.Event()
            felt = busy if with_publish else quiet
            running = asyncio.create_task(load(url, felt, end, pair * 100_000))
            if with_publish:
                began = time.monotonic()
                result = await caches.publish(request, DEADLINE_S)
                took.append(time.monotonic() - began)
                if result.outcome != "published":
                    raise SystemExit(f"nothing was published: {result.sentence}")
            else:
                await asyncio.sleep(median(took) if took else 4.0)
            end.set()
            await running
    return quiet, busy, took


def figures(quiet: Felt, busy: Felt, took: Sequence[float]) -> list[Figure]:
    """Put what was felt side by side."""
    part, note = "live requests beside a publish", f"{len(took)} pairs of windows"
    size = KERNELS * KERNEL_BYTES / MIB
    rows = [Figure(part, f"one publish of {size:.0f} MiB in {KERNELS} new kernels", median(took), "s", None, note)]
    for name, calm, hard in (
        ("time to first token", quiet.first, busy.first),
        ("time between tokens", quiet.gaps, busy.gaps),
    ):
        for word, share in (("median", 0.5), ("p99", 0.99)):
            before, beside = quantile(calm, share) * 1000, quantile(hard, share) * 1000
            rows.append(Figure(part, f"{name}, {word}, without", before, "ms", None, f"{len(calm)} samples"))
            rows.append(Figure(part, f"{name}, {word}, beside it", beside, "ms", None, f"{len(hard)} samples"))
            rows.append(Figure(part, f"{name}, {word}, ratio", beside / before, "×"))
    rows.append(Figure(part, "tokens per second, ratio", busy.rate / quiet.rate, "×"))
    return rows


def main() -> None:
    """Print the figures as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--pairs", type=int, default=8, help="how many pairs of windows (default 8)")
    given = parser.parse_args()
    paths = engine.found()
    if paths is None:
        parser.error("there is no CPU engine; `python -m tests --only engine` prepares it")
    before = machine()
    with tempfile.TemporaryDirectory(prefix="warmup-bench-") as folder:
        pod = Pod(Path(folder) / "pod", paths, make_tiny_model(paths, engine.model_folder()))
        try:
            daemon = pod.start_daemon(publish_interval_s=86400)
            pod.start_engine()
            daemon.wait_until_ready(READY_S)
            daemon.wait_for(publish_ended, PUBLISH_S, "the first publish ended")
            [newest] = sorted(pod.workplace.control.glob("attempts/*/facts.json"))[-1:]
            found = figures(*asyncio.run(compare(pod, json.loads(newest.read_text()), given.pairs)))
        finally:
            pod.end()
    print(table(found))
    print(f"\n`python -m tests.bench.bench_publish`; {before}.")
    if given.json:
        save(given.json, found)


if __name__ == "__main__":
    main()
