"""A warm-up against the scripted engine over HTTP: what a replay costs beside its bare requests, and what it does to the loop.

The engine is a process of its own, so that only the warm-up's side is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from sidecar.bench.load import Load as BenchLoad
from sidecar.bench.load import LoadPlan
from sidecar.bench.requests import Dialect, RequestSource
from sidecar.bench.shapes import Shape
from sidecar.caches.families import stored_families
from sidecar.engines.protocol import Hint
from sidecar.engines.vllm import VllmEngine
from sidecar.warmup.attempts import WarmPolicy
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.coverage import Coverage
from sidecar.warmup.evidence import EvidenceWatcher
from sidecar.warmup.planner import make_plan
from sidecar.warmup.prompts import PromptSource
from sidecar.warmup.results import WarmResult
from sidecar.warmup.runner import WarmupRunner
from sidecar.warmup.traffic import Sent, Traffic
from tests.bench.warmup_reach import profile

LIMITS = {"max_model_len": 200_000, "max_num_batched_tokens": 4096, "max_num_seqs": 1024}
READY_S = 30.0
LOOK_S = 0.001
#: The machine's load changes; a replay and its bare requests are measured in pairs.
PAIRS = 5
SMALL_DRAWS = {"random_draws": 20, "max_rounds": 20}
SMALL_MIX = {
    "prompt_tokens": {"from": 8, "to": 1024},
    "output_tokens": {"from": 2, "to": 8},
    "concurrency": {"from": 1, "to": 8},
}


@dataclass(frozen=True)
class Load:
    """What a burst did to this process, in seconds and MiB.

    `held_s` is the longest computing time between two turns of the loop, `lag_s` the longest delay of a timer, which on a
    busy machine counts the time of others, too.
    """

    name: str
    held_s: float
    lag_s: float
    grown_mib: float
    note: str


@asynccontextmanager
async def engine(live: Path, seed: int = 1, scale: float = 1.0) -> AsyncIterator[VllmEngine]:
    """Start a scripted engine with hidden kernels below `live` as a process, and give a client of it.

    `scale` multiplies the time that its steps take.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.kernel_process", str(port), str(live), str(seed), str(scale)
    )
    client = VllmEngine(f"http://127.0.0.1:{port}", api_key=lambda: None, clock=time.monotonic)
    client.use_hints({name: Hint(value, "the bench") for name, value in LIMITS.items()})
    try:
        deadline = time.monotonic() + READY_S
        while (await client.health()).state != "up":
            if time.monotonic() > deadline:
                raise TimeoutError("the scripted engine does not listen")
            await asyncio.sleep(0.05)
        yield client
    finally:
        await client.close()
        process.kill()
        await process.wait()


async def warm(client: VllmEngine, live: Path, coverage: Coverage | None = None) -> WarmResult:
    """Warm that engine up, with evidence from its files."""
    plan = make_plan(profile(converge=SMALL_DRAWS, mix=SMALL_MIX), await client.facts())
    witness = EvidenceWatcher(live, stored_families(), wall_clock=time.time)
    rng = random.Random(time.time_ns())
    runner = WarmupRunner(client, plan, witness, WarmPolicy(), time.monotonic, rng, coverage=coverage)
    return await runner.run()


async def bare(client: VllmEngine, bursts: list[Burst]) -> float:
    """Send bursts one after another with nothing around them. Give seconds."""
    traffic = Traffic(client, PromptSource(random.Random(2), 32000), time.monotonic, lambda: False)
    began = time.monotonic()
    for burst in bursts:
        await traffic.send(burst, 60)
    return time.monotonic() - began


async def replay_cost() -> tuple[float, str]:
    """Compare a second pod's warm-up with the same requests sent bare, on an engine that has all kernels loaded."""
    with tempfile.TemporaryDirectory() as folder:
        live = Path(folder)
        async with engine(live) as client:
            first = await warm(client, live)
            ratios = []
            for _ in range(PAIRS):
                with noted() as sent:
                    second = await warm(client, live, first.coverage)
                ratios.append(second.seconds / await bare(client, sent))
    note = (
        f"{second.replayed} bursts replayed, {second.requests} requests in {second.seconds:.1f} s, "
        f"first pod {first.requests} in {first.seconds:.1f} s; {second.outcome}, {second.rounds} rounds"
    )
    return statistics.median(ratios), f"median of {PAIRS} pairs; {note}"


@contextmanager
def noted() -> Iterator[list[Burst]]:
    """Note every burst that is sent meanwhile."""
    sent: list[Burst] = []
    send = Traffic.send

    async def noting(self: Traffic, burst: Burst, timeout_s: float, until: float = math.inf) -> Sent:
        sent.append(burst)
        return await send(self, burst, timeout_s, until)

    Traffic.send = noting  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        Traffic.send = send  # type: ignore[method-assign]


async def load_of() -> list[Load]:
    """Send what is hardest on the loop, and watch it."""
    bursts = [
        ("prompts of 100k tokens", single("x", Ask(4, 100_000, 2)), "4 at once"),
        ("many streams", single("x", Ask(512, 128, 16)), "512 at once, 128 tokens each, 16 out"),
        ("both", single("x", Ask(504, 128, 16), Ask(8, 100_000, 2)), "504 streams and 8 prompts of 100k tokens"),
        ("long prompts at once", single("x", Ask(512, 100_000, 2)), "512 prompts of 100k tokens at once"),
    ]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        # Reading 51 million tokens would take this engine minutes; what it sends and takes is the same without.
        async with engine(Path(folder), scale=0.0) as client:
            traffic = Traffic(client, PromptSource(random.Random(2), 32000), time.monotonic, lambda: False)
            await traffic.send(single("x", Ask(2, 8, 2)), 60)
            for name, burst, note in bursts:
                async with watched() as seen:
                    sent = await traffic.send(burst, 300)
                bad = next((each.error for each in sent.completions if not each.ok), None)
                told = note if bad is None else f"{note}; FAILED: {bad}"
                found.append(Load(name, seen.held_s, seen.lag_s, seen.grown_mib, told))
            for tokens, requests in ((128, 1536), (100_000, 512)):
                found.append(await _bench_of(client, tokens, requests))
    return found


async def _bench_of(client: VllmEngine, tokens: int, requests: int) -> Load:
    """Put the load of `bench` on the engine, with 512 requests in flight, and watch the loop."""
    model = (await client.facts()).model
    prompts = PromptSource(random.Random(3), 32000)
    source = RequestSource(itertools.repeat(Shape(tokens, 8)), prompts, model, Dialect(), 300.0)
    load = BenchLoad(client, LoadPlan(512, requests), source.next, time.monotonic, lambda: False)
    async with watched() as seen:
        await load.run()
    note = f"{requests} requests of {tokens} tokens, 512 in flight, 8 out; {load.samples.answered} answered"
    return Load("bench", seen.held_s, seen.lag_s, seen.grown_mib, note)


@dataclass
class _Seen:
    lag_s: float = 0.0
    held_s: float = 0.0
    grown_mib: float = 0.0


@asynccontextmanager
async def watched() -> AsyncIterator[_Seen]:
    """Look how late a timer of 1 ms is, and how much memory this process has beyond what it had."""
    seen, process = _Seen(), psutil.Process()
    before = process.memory_info().rss

    async def look() -> None:
        while True:
            began, used = time.monotonic(), time.thread_time()
            await asyncio.sleep(LOOK_S)
            seen.lag_s = max(seen.lag_s, time.monotonic() - began - LOOK_S)
            seen.held_s = max(seen.held_s, time.thread_time() - used)
            seen.grown_mib = max(seen.grown_mib, (process.memory_info().rss - before) / (1 << 20))

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
