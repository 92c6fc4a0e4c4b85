"""What the daemon costs: time to its first answer, memory and CPU at rest, probe latency under load, pauses of its own.

Run it by hand, `python -m tests.bench.bench_daemon`; nothing here is a test, and no number is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from sidecar.caches.client import CacheClient, PublishRequest

MIB = 1 << 20
#: Shape of the restored cache: many small files and some large ones, 1 GB in all, hardly compressible.
FILES, FILE_BYTES, LARGE, LARGE_BYTES = 8_000, 32 << 10, 12, 64 * MIB


def free_port() -> int:
    """Find a port of the loopback interface that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Bench:
    """One daemon with directories of its own under `root`."""

    def __init__(self, root: Path, script: dict[str, Any] | None = None, **settings: str) -> None:
        self.root = root
        self.port, self.engine_port = free_port(), free_port()
        self.engine = [sys.executable, "-m", "tests.fakes.engine", "--port", str(self.engine_port),
                       "--script", json.dumps(script or {})]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WARMUP_")},
            "WARMUP_CONTROL_DIR": str(root / "control"), "WARMUP_LIVE_CACHE": str(root / "live"),
            "WARMUP_LISTEN": f"127.0.0.1:{self.port}", "WARMUP_ENGINE_URL": f"http://127.0.0.1:{self.engine_port}",
            "WARMUP_LOG_LEVEL": "error", "WARMUP_GPU_INTERVAL_S": "0", "WARMUP_SETTLE_S": "0", **settings,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *command: str) -> float:
        """Start the daemon; give the monotonic second at which its process was started."""
        began = time.monotonic()
        self.process = subprocess.Popen([sys.executable, "-m", "sidecar", "run", *command], env=self.environment)
        return began

    def stop(self) -> None:
        """End the daemon, and with it its child."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def url(self, path: str) -> str:
        """Give the address of a path of the daemon."""
        return f"http://127.0.0.1:{self.port}{path}"

    def wait(self, path: str, limit_s: float = 120.0, pause_s: float = 0.005) -> float:
        """Poll a path until it answers 200; give the monotonic second at which it did."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(self.url(path), timeout=1) as answer:
                    if answer.status == 200:
                        return time.monotonic()
            except OSError:
                time.sleep(pause_s)
        raise SystemExit(f"{path} did not turn 200 within {limit_s:g} s")

    def status(self) -> dict[str, Any]:
        """Read the daemon's status."""
        with urllib.request.urlopen(self.url("/status"), timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def first_answer(root: Path, times: int = 5) -> dict[str, float]:
    """Measure process start to the first 200 of /livez, in seconds."""
    taken = []
    for number in range(times):
        bench = Bench(root / f"start{number}")
        began = bench.start()
        taken.append(bench.wait("/livez") - began)
        bench.stop()
    return {"median_s": statistics.median(taken), "worst_s": max(taken)}


def at_rest(root: Path, seconds: float = 30.0) -> dict[str, float]:
    """Measure memory and CPU of a daemon that answers a kubelet's probes once a second and does nothing else."""
    bench = Bench(root / "rest")
    bench.start()
    bench.wait("/livez")
    assert bench.process is not None
    process = psutil.Process(bench.process.pid)
    time.sleep(3)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    while time.monotonic() - began < seconds:
        for path in ("/livez", "/readyz"):
            try:
                urllib.request.urlopen(bench.url(path), timeout=1).close()
            except OSError:
                pass  # 503 is what an unready pod answers
        time.sleep(1)
    cpu = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    rss = process.memory_info().rss
    bench.stop()
    return {"rss_mib": rss / MIB, "cpu_of_a_core": cpu}


async def probe(url: str, until: asyncio.Event, latencies: list[float]) -> None:
    """Probe every 20 ms over connections of their own, like a kubelet, until told to end."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        while not until.is_set():
            began = time.monotonic()
            async with session.get(url) as answer:
                await answer.read()
            latencies.append(time.monotonic() - began)
            await asyncio.sleep(0.02)


async def while_phase_is(bench: Bench, phase: str, latencies: list[float]) -> int:
    """Probe /readyz for as long as the daemon is in a phase; give how many probes that were."""
    until, taken = asyncio.Event(), list[float]()
    probing = asyncio.create_task(probe(bench.url("/readyz"), until, taken))
    begun = ended = None
    while ended is None:
        status = await asyncio.to_thread(bench.status)
        names = [stay["phase"] for stay in status["timeline"]]
        if begun is None and phase in names:
            begun = len(taken)
        if begun is not None and status["phase"] not in (phase, "starting", "awaiting_launcher"):
            ended = len(taken)
        await asyncio.sleep(0.01)
    until.set()
    await probing
    latencies += taken[begun:ended]
    return len(latencies)


def fill_store(root: Path, facts: dict[str, Any], live: Path) -> int:
    """Publish a cache of about 1 GB under the keys of these facts; give its bytes."""
    triton = live / "triton"
    for number in range(FILES):
        folder = triton / f"K{number // 4:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"k{number % 4}.cubin").write_bytes(os.urandom(FILE_BYTES))
    for number in range(LARGE):
        folder = triton / f"L{number:06d}"
        folder.mkdir(parents=True)
        (folder / "large.cubin").write_bytes(os.urandom(LARGE_BYTES))
    request = PublishRequest(store=str(root / "store"), live_cache=str(live), facts=facts, attempt="bench", settle_s=0)
    result = asyncio.run(CacheClient(time.monotonic).publish(request, 900))
    if result.outcome != "published":
        raise SystemExit(f"the store could not be filled: {result.sentence}")
    shutil.rmtree(live)
    return FILES * FILE_BYTES + LARGE * LARGE_BYTES


def while_restoring(root: Path) -> dict[str, float]:
    """Measure probe latency while 1 GB is restored: the facts of a first start make the keys of the store."""
    store = root / "store"
    store.mkdir(parents=True)
    settings = {"WARMUP_STORE": str(store), "WARMUP_RESTORE_TIMEOUT_S": "300", "WARMUP_WARM_BUDGET_S": "0"}
    first = Bench(root, {}, **settings)
    first.start("--", *first.engine)
    first.wait("/readyz")
    attempt = first.status()["engine"]["attempt"]
    facts = json.loads((root / "control" / "attempts" / attempt / "facts.json").read_text())
    first.stop()
    size = fill_store(root, facts, root / "live")
    latencies: list[float] = []
    first.start("--", *first.engine)
    first.wait("/livez")
    asyncio.run(while_phase_is(first, "restoring", latencies))
    first.wait("/readyz")
    restored = first.status()["restore"]
    first.stop()
    return {**spread(latencies), "restored_bytes": restored["bytes"], "expected_bytes": size,
            "restore_s": restored["seconds"]}


def while_warming(root: Path) -> dict[str, float]:
    """Measure probe latency while warm-up traffic flows, and the daemon's own pauses on the way to ready."""
    bench = Bench(root / "warming", {"compile_seconds": 0.2, "token_seconds": 0.002})
    bench.start("--", *bench.engine)
    bench.wait("/livez")
    latencies: list[float] = []
    asyncio.run(while_phase_is(bench, "warming", latencies))
    bench.wait("/readyz")
    bench.stop()
    return spread(latencies)


def own_pauses(root: Path) -> dict[str, float]:
    """Measure what the daemon adds: the engine's first 200 to the first request, the last answer to /readyz 200."""
    bench = Bench(root / "pauses", {"load_seconds": 2.0})
    bench.start("--", *bench.engine)
    bench.wait("/livez")
    health = f"http://127.0.0.1:{bench.engine_port}/health"
    first_200 = 0.0
    while not first_200:
        try:
            urllib.request.urlopen(health, timeout=1).close()
            first_200 = time.time()
        except OSError:
            time.sleep(0.005)
    ready = bench.wait("/readyz") - time.monotonic() + time.time()
    with urllib.request.urlopen(f"http://127.0.0.1:{bench.engine_port}/__script__", timeout=5) as answer:
        seen = json.load(answer)
    bench.stop()
    return {"first_200_to_first_request_s": seen["first_request_at"] - first_200,
            "last_answer_to_ready_s": ready - seen["last_answer_at"]}


def spread(latencies: list[float]) -> dict[str, float]:
    """Give count, median, p99 and worst of latencies in seconds, the last three in milliseconds."""
    ordered = sorted(latencies)
    if not ordered:
        return {"probes": 0}
    return {"probes": len(ordered), "median_ms": 1e3 * statistics.median(ordered),
            "p99_ms": 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], "worst_ms": 1e3 * ordered[-1]}


PARTS = {
    "first answer": first_answer, "at rest": at_rest, "probes while restoring": while_restoring,
    "probes while warming": while_warming, "own pauses": own_pauses,
}


def main() -> None:
    """Run all parts, or the one that is named, and print a line of figures for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    for name, part in PARTS.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="warmup-bench-") as folder:
                figures[name] = part(Path(folder))
            shown = ", ".join(f"{key} {value:.3f}" for key, value in figures[name].items())
            print(f"{name}: {shown}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
