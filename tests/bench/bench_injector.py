"""How long the webhook takes for an answer over TLS at 100 reviews a second, while it injects every pod.

Run by hand: `python -m pytest tests/bench/bench_injector.py --slow -s`. What is printed is quoted in the README.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import platform
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import psutil
import pytest

from sidecar.kube.injection.certificates import make_authority, make_serving
from tests.kubernetes import pod_shapes
from tests.kubernetes.pod_shapes import labelled, review
from tests.kubernetes.test_injector_certificate import lay
from tests.unit.commands import start

RATE, SECONDS = 100, 30


@pytest.mark.slow
async def test_answers_at_a_hundred_reviews_a_second(tmp_path: Path, free_port: Callable[[], int]) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(now)
    lay(tmp_path, make_serving(authority, ["localhost"], now))
    port, probes = free_port(), free_port()
    process = await start(
        *("injector", "--image", "registry.example.com/warmup-sidecar:0.1.0", "--linger", "0"),
        *("--listen", f"127.0.0.1:{port}", "--probes", f"127.0.0.1:{probes}"),
        *("--certificate", str(tmp_path / "tls.crt"), "--key", str(tmp_path / "tls.key")),
    )
    # It logs each pod; a full pipe would hold it up, as no container runtime does.
    reading = asyncio.create_task(process.communicate())
    trust = ssl.create_default_context(cadata=authority.certificate.decode())
    bodies = [json.dumps(review(labelled(pod))).encode() for pod in pod_shapes.INJECTED.values()]
    # An API server keeps its connections to a webhook open.
    connector = aiohttp.TCPConnector(limit=16, ssl=trust)
    async with aiohttp.ClientSession(connector=connector) as session:
        await _until_ready(session, probes)
        times: list[float] = []

        async def ask(number: int) -> None:
            began = time.perf_counter()
            async with session.post(f"https://localhost:{port}/mutate", data=bodies[number % len(bodies)]) as answer:
                body = await answer.read()
            times.append(time.perf_counter() - began)
            assert b'"patch"' in body

        await asyncio.gather(*(ask(number) for number in range(100)))
        times.clear()
        seen = psutil.Process(process.pid)
        cpu = seen.cpu_times()
        started = time.perf_counter()
        tasks = []
        for number in range(RATE * SECONDS):
            await asyncio.sleep(max(0.0, started + number / RATE - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(number)))
        await asyncio.gather(*tasks)
        took = time.perf_counter() - started
        used = seen.cpu_times()
        memory = seen.memory_info().rss
        async with session.get(f"http://127.0.0.1:{probes}/metrics") as scraped:
            own = dict(re.findall(r'review_seconds_bucket\{le="([^"]+)"\} ([0-9.]+)', await scraped.text()))
    process.terminate()
    await reading
    times.sort()
    shown = {
        f"p{share}": round(times[min(len(times) - 1, len(times) * share // 100)] * 1e3, 2) for share in (50, 90, 99)
    }
    busy = (used.user + used.system - cpu.user - cpu.system) / took
    quick = float(own["0.005"]) / float(own["+Inf"])
    print(
        f"\ninjector: {len(times) / took:.0f} reviews a second for {took:.0f} s, ms {shown}, max {times[-1] * 1e3:.1f}, "
        f"{quick:.1%} made in under 5 ms, {busy:.2f} cores, {memory >> 20} MiB; "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {platform.machine()}, {now:%Y-%m-%d}"
    )


async def _until_ready(session: aiohttp.ClientSession, port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.1)
