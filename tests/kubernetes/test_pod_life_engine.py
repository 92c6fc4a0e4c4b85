"""The shipped pod with a real vLLM on CPU: ready, its engine killed, its sidecar killed, deleted while it answers."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.demo.engine_setup import EnginePaths
from sidecar.demo.workplace import ENGINE_VARIABLES, MODEL_NAME, serve_command
from tests.kubernetes.kubelet.node import why_no_node
from tests.kubernetes.kubelet.warm_pod import ENGINE, ENGINE_PORT, SIDECAR, Cluster, WarmPod, fitted, named

pytestmark = pytest.mark.skipif(bool(why_no_node()), reason=why_no_node() or "pods can run")

#: A start of vLLM on CPU takes 45 s of processor time, 90 s when it compiles; three times that on cores that others use.
START_S = 420.0
#: DESIGN §3: withdrawn within 2 s, adopted within 5 s; and what a loaded machine adds.
UNREADY_S, ADOPTED_S, SIDECAR_ENDS_S = 8.0, 20.0, 4.0


def spec_of(cluster: Cluster, paths: EnginePaths, model: Path, *more: str) -> dict[str, Any]:
    """Give the shipped pod with this vLLM behind the launcher."""
    words = serve_command(paths, model, ENGINE_PORT)
    words[words.index("--host") + 1] = "0.0.0.0"
    variables = {
        **ENGINE_VARIABLES,
        "PATH": f"{paths.vllm.parent}:/usr/local/bin:/usr/bin:/bin",
    }
    settings = {"WARMUP_PROFILE": str(cluster.profile), "WARMUP_SM": "cpu", "WARMUP_DRAIN_S": "60"}
    spec = fitted([*words, *more], settings, variables)
    named(spec, ENGINE)["command"][0] = os.fspath(paths.python)
    return spec


async def ask(pod: WarmPod, tokens: int, begun: threading.Event) -> tuple[int, str]:
    """Send a request as somebody outside would; `begun` is set with its first token."""
    body = {"model": MODEL_NAME, "prompt": [5, 6, 7], "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return await asyncio.to_thread(pod.runtime.request, ENGINE_PORT, "POST", "/v1/completions", body, START_S, begun)


@pytest.mark.parametrize(
    "more", [pytest.param(["--enforce-eager"], id="eager"), pytest.param([], id="compiled", marks=pytest.mark.slow)]
)
async def test_the_whole_life_of_a_pod_with_a_real_engine(
    tmp_path: Path, engine_paths: EnginePaths, tiny_model: Path, more: list[str]
):
    cluster = Cluster(tmp_path)
    async with cluster.pod(spec=spec_of(cluster, engine_paths, tiny_model, *more)) as pod:
        await pod.life.until_ready(START_S)
        status = await pod.status()
        assert (status["warmup"]["outcome"], status["flagged"]) == ("converged", False)
        await pod.until_published(START_S)

        killed = pod.kill(ENGINE)
        await pod.life.until(lambda: not pod.life[SIDECAR].ready, "the sidecar says no")
        assert time.monotonic() - killed < UNREADY_S
        await pod.life.until_ready(START_S)
        status = await pod.status()
        assert (status["restore"]["outcome"], status["warmup"]["outcome"]) == ("kept", "converged")
        assert (pod.life[ENGINE].restarts, pod.life[SIDECAR].restarts) == (1, 0)
        # What log-probabilities need was compiled by the first engine and is there for the second.
        assert sum(status["warmup"]["kernels_before_ready"].values()) == 0

        pod.kill(SIDECAR)
        await pod.life.until_started(SIDECAR, restarts=1)
        began = time.monotonic()
        await pod.life.until_ready()
        assert time.monotonic() - began < ADOPTED_S
        assert pod.life[ENGINE].restarts == 1

        begun = threading.Event()
        answering = asyncio.ensure_future(ask(pod, 600, begun))
        await asyncio.to_thread(begun.wait)
        assert not answering.done()
        await pod.life.delete()
        code, text = await answering
        assert (code, text.endswith("data: [DONE]\n\n")) == (200, True)
        order = [(ENGINE, "SIGTERM"), (ENGINE, "exited"), (SIDECAR, "SIGTERM"), (SIDECAR, "exited")]
        assert pod.life.story.order(*order)[-4:] == order
        [asked] = pod.life.story.of(SIDECAR, "SIGTERM")
        assert pod.life.story.of(SIDECAR, "exited")[-1].at - asked.at < SIDECAR_ENDS_S
