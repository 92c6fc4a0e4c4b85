"""Claims about the scripted engine itself, on which other tests rely."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import aiohttp

from sidecar.engines.protocol import Completion, CompletionRequest
from sidecar.engines.vllm import VllmEngine
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script


async def ask(url: str, tokens: int = 100, **extra: object) -> Completion:
    client = VllmEngine(url, api_key=lambda: None, clock=time.monotonic)
    try:
        return await client.complete(CompletionRequest(prompt=(7,) * tokens, max_tokens=2, extra=extra))
    finally:
        await client.close()


def groups_in(triton: Path) -> int:
    return len(list(triton.glob("*/__grp__kernel.json")))


async def test_a_feature_compiles_once_and_is_reused_from_disk_by_the_next_process(tmp_path: Path):
    script = Script(compile_seconds=0.5, log_jit=False)
    async with FakeEngine(script, triton=tmp_path / "triton", inductor=tmp_path / "inductor") as fake:
        await ask(fake.url)
        await ask(fake.url, 101)
        await ask(fake.url, 600)
        await ask(fake.url, 100, logprobs=5)
        assert fake.kernels.compiled == ["prefill|1", "prefill|2", "logprobs|8"]
        assert len(list((tmp_path / "triton").glob("*/kernel.cubin"))) == 2
        assert len(list((tmp_path / "inductor").glob("*/*.so"))) == 1
        await fake.kill()
        await fake.start()
        again = await ask(fake.url, 600, logprobs=5)
        assert fake.kernels.compiled == []
        assert again.ttft_s is not None
        assert again.ttft_s < 0.5


async def test_a_group_file_with_paths_that_are_gone_is_a_miss(tmp_path: Path):
    async with FakeEngine(Script(log_jit=False), triton=tmp_path / "old") as fake:
        await ask(fake.url)
    (tmp_path / "old").rename(tmp_path / "new")
    async with FakeEngine(Script(log_jit=False), triton=tmp_path / "new") as fake:
        await ask(fake.url)
        assert fake.kernels.compiled == ["prefill|1"]


async def test_a_compilation_stalls_every_request_and_happens_once():
    async with FakeEngine(Script(compile_seconds=0.1, log_jit=False)) as fake:
        results = await asyncio.gather(*(ask(fake.url) for _ in range(8)))
        assert fake.kernels.compiled == ["prefill|1"]
    assert all(each.ttft_s is not None and each.ttft_s >= 0.1 for each in results)


async def test_requests_beyond_the_limit_wait_and_are_shown_as_waiting():
    async with FakeEngine(Script(max_num_seqs=2, generation="hang", log_jit=False)) as fake:
        tasks = [asyncio.create_task(ask(fake.url)) for _ in range(5)]
        while fake.counters.waiting + fake.counters.running < 5:
            await asyncio.sleep(0.01)
        assert (fake.counters.running, fake.counters.waiting) == (2, 3)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_as_a_process_it_takes_a_script_and_can_be_killed(tmp_path: Path):
    async with FakeEngine() as placeholder:
        port = int(placeholder.url.rpartition(":")[2])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.fakes.engine",
        "--port",
        str(port),
        "--max-model-len",
        "64",
        "--script",
        json.dumps({"model": "m2", "die_on_tokens": 500}),
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    assert b"Starting vLLM server" in await process.stderr.readline()
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/__script__", json={"version": "0.9.2"}) as answer:
            assert (await answer.json())["script"]["model"] == "m2"
        async with session.get(f"{url}/version") as answer:
            assert await answer.json() == {"version": "0.9.2"}
    assert (await ask(url)).ok
    assert b"JIT compilation during inference: prefill|1" in await process.stderr.readline()
    assert groups_in(tmp_path) == 1
    assert (await ask(url, 600)).error_kind == "reset"
    assert await process.wait() == -signal.SIGKILL
    assert (await ask(url)).error_kind == "refused"
