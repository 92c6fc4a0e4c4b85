"""Routers and proxies in front of engines: known by their command or image, never warmed through, and told from the engine."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sidecar.config.routers import ENGINE_COMMANDS, router_of
from sidecar.engines.adapters import of_command, of_name
from sidecar.engines.argv import hints_from_argv
from sidecar.engines.declaration import Connect
from sidecar.engines.detect import AnyEngine
from sidecar.engines.protocol import CompletionRequest
from sidecar.kube.injection.engine import NotInjected, find_engine, looks_like_engine
from sidecar.kube.injection.options import Options
from sidecar.kube.pod_object import find
from sidecar.warmup.planner import make_plan
from sidecar.warmup.profiles import load_profile
from tests.fakes.scripted.router import Server
from tests.unit.test_kube_pod import engine, pod, said, sidecar

ROUTERS = (
    "trtllm-serve disaggregated -c disagg_config.yaml",
    "python3 -m sglang_router.launch_router --pd-disaggregation --prefill http://p:30000 --decode http://d:30001",
    "sglang-router launch --worker-urls http://w:30000",
    "python -m sglang.srt.disaggregation.mini_lb --prefill http://p:30000",
    "python3 -m dynamo.frontend --http-port 8000",
    "/app/pd-sidecar --port=8000 --connector=nixlv2",
    "--port=8000 --vllm-port=8200",
    "vllm-router --port 8001 --service-discovery static",
    "python tests/v1/kv_connector/nixl_integration/toy_proxy_server.py --port 8192",
    "python3 examples/disagg_proxy_demo.py --model m",
    "python disagg_prefill_proxy_server.py",
    "litellm --config c.yaml",
)
ENGINES = (
    "vllm serve m --port 8200",
    "trtllm-serve m --server_role CONTEXT",
    "trtllm-serve disaggregated-model",
    "python -m sglang.launch_server --model-path m",
    "python -m dynamo.vllm --model m",
    "vllm serve /models/litellm --otlp-service-name vllm-router",
    "python -m vllm.entrypoints.openai.api_server --model a/litellm",
    "sglang serve --model-path vllm-router",
    "vllm serve m --port 8001 & vllm-router --port 8000",
    "python -m dynamo.frontend & python -m dynamo.vllm --model m",
    "trtllm-serve m & trtllm-serve disaggregated -c x",
    "python -m sglang.launch_server --model-path m & python -m sglang_router.launch_router --port 8000",
)


@pytest.mark.parametrize("command", ROUTERS)
def test_a_router_is_known_by_its_command_and_sent_nothing(command: str):
    found = of_command(command.split())
    assert found is of_name("router")
    hints = hints_from_argv(command.split(), {})
    facts_engine, title = hints["engine"].value, hints["model"].value
    assert (facts_engine, title) == ("router", router_of(command))


@pytest.mark.parametrize("command", ENGINES)
def test_an_engine_is_no_router(command: str):
    assert router_of(command) == ""
    assert of_command(command.split()) is not of_name("router")
    container = {"name": "e", "image": "mine", "command": ["bash", "-c", command]}
    assert looks_like_engine(container)
    assert find_engine([container], Options()) == 0


@pytest.mark.parametrize("name", ENGINE_COMMANDS)
def test_the_injector_and_the_adapter_know_an_engine_by_the_same_words(name: str):
    assert of_name(name).name == name
    assert of_name(name).command is ENGINE_COMMANDS[name]


@pytest.mark.parametrize("quoted", ['python -m "sglang.launch_server" --model-path m', "'sglang.launch_server'"])
def test_a_module_in_quotes_is_an_engines_command_too(quoted: str):
    assert looks_like_engine({"name": "e", "image": "mine", "command": ["bash", "-c", quoted]})


def test_a_container_with_a_gpu_runs_a_model_even_if_its_command_looks_like_a_routers():
    only = {"name": "e", "command": ["start.sh", "--vllm-port", "8001"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    assert find_engine([only], Options()) == 0


@pytest.mark.parametrize(
    "engine_command", ["vllm serve m", "trtllm-serve m --port 8001", "python -m sglang.launch_server"]
)
def test_a_command_that_starts_an_engine_and_its_router_is_the_engines(engine_command: str):
    script = ["bash", "-c", f"{engine_command} & {ROUTERS[1]} & exec {ROUTERS[0]}"]
    found = of_command(script)
    assert found is not None
    assert not found.front


async def test_a_router_is_watched_and_nothing_but_its_health_is_asked():
    async with Server() as server:
        watched = AnyEngine(Connect(server.url, lambda: None, time.monotonic))
        watched.use_hints(hints_from_argv(server.command.split(), {}))
        assert (await watched.health()).state == "up"
        facts = await watched.facts()
        await watched.stats()
        await watched.adapters()
        plan = make_plan(load_profile("sm90"), facts)
        assert (await watched.complete(CompletionRequest(prompt=(1, 2)))).error_kind == "unsupported"
        await watched.close()
    assert plan.steps == ()
    assert "unwarmed" in plan.unwarmed
    assert "router" in plan.unwarmed
    assert set(server.asked) == {"/health"}


@pytest.mark.parametrize(("status", "state"), [(200, "up"), (404, "up"), (503, "unhealthy"), (500, "unhealthy")])
def test_a_proxy_without_a_health_page_is_alive_and_one_without_engines_is_not(status: int, state: str):
    client = of_name("router").make(Connect("http://127.0.0.1:9", lambda: None, time.monotonic))
    assert client._judge_health(status)[0] == state  # type: ignore[attr-defined]


def routing(**more: Any) -> dict[str, Any]:
    image = "ghcr.io/llm-d/llm-d-routing-sidecar:v0.4.0"
    return {"name": "routing-proxy", "image": image, "args": ["--port=8000", "--connector=nixlv2"], **more}


def plain(*args: str) -> dict[str, Any]:
    return {"name": "serve", "image": "mine", "command": ["vllm", "serve", "m"], "args": list(args)}


def test_a_url_that_points_at_the_routing_sidecar_is_a_problem_with_the_engines_own_port():
    thing = pod(engine(args=["--port=8200"]), init=(sidecar(), routing()))
    wrong = said(thing, engine_url="http://127.0.0.1:8000")
    assert "port 8000 is that of container routing-proxy, which is llm-d's routing sidecar" in wrong
    assert "Set WARMUP_ENGINE_URL=http://127.0.0.1:8200." in wrong
    assert "routing-proxy" not in said(thing, engine_url="http://127.0.0.1:8200")
    assert "routing-proxy" not in said(thing, engine_url="http://engine.svc:8000")


def test_a_port_that_a_router_declares_counts_where_its_arguments_name_none():
    thing = pod(plain(), sidecar(), routing(args=[], ports=[{"containerPort": 8100}]))
    assert "to the own port of the engine" in said(thing, engine_url="http://localhost:8100")


def test_a_router_in_the_pod_is_not_taken_for_the_engine():
    only = plain()
    found = find(pod(routing(), only, sidecar()))
    assert found.engine is only
    assert find(pod(routing(), sidecar())).engine is None


def test_no_launcher_is_put_before_a_router():
    options = Options()
    with pytest.raises(NotInjected, match="is llm-d's routing sidecar, which runs no model"):
        find_engine([routing()], options)
    front = {"name": "front", "image": "nvcr.io/tensorrt-llm", "command": ["trtllm-serve", "disaggregated", "-c", "x"]}
    with pytest.raises(NotInjected, match="is trtllm-serve disaggregated"):
        find_engine([front], options)
    assert find_engine([routing(), plain()], options) == 1
