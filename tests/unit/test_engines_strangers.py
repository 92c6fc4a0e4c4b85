"""Claims about ports without an engine: each gives a sentence that says what to do, none a traceback."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sidecar.config import Settings
from sidecar.engines.detect import look, make_engine
from sidecar.engines.protocol import CompletionRequest, Engine
from sidecar.engines.vllm import Deadlines, VllmEngine
from sidecar.errors import EngineError, NotAnEngine
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script

SHORT = Deadlines(health_s=1.0, metrics_s=1.0, facts_s=0.5, recheck_s=0.2)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def tcp(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve raw bytes, and leave no connection behind for the next test."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]
    if tasks:
        await asyncio.wait(tasks, timeout=1)


@asynccontextmanager
async def http(routes: dict[str, Any], default: int = 404) -> AsyncIterator[int]:
    async def answer(request: web.BaseRequest) -> web.Response:
        if request.path not in routes:
            return web.Response(status=default, text="<html>no such page</html>")
        body = routes[request.path]
        return web.Response(text=body) if isinstance(body, str) else web.json_response(body)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client(port: int, *, strict: bool = True, scheme: str = "http") -> AsyncIterator[VllmEngine]:
    made = VllmEngine(
        f"{scheme}://127.0.0.1:{port}", api_key=lambda: None, clock=time.monotonic, strict=strict, deadlines=SHORT
    )
    try:
        yield made
    finally:
        await made.close()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\x00\xff\r\n")
    await writer.drain()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "engine")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    file: Path = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


async def test_a_web_server_is_not_an_engine():
    async with http({}) as port, client(port) as engine:
        health = await engine.health()
        assert (health.state, health.status) == ("not_an_engine", 404)
        assert "WARMUP_ENGINE_URL" in health.detail
        for ask in (engine.facts, engine.stats):
            with pytest.raises(NotAnEngine, match="WARMUP_ENGINE_URL"):
                await ask()
        assert (await engine.complete(CompletionRequest(prompt="hi"))).error_kind == "not_json"


async def test_a_server_that_has_a_health_page_only_is_not_an_engine():
    routes = {"/health": "fine", "/metrics": "up 1\n", "/version": {"version": "3"}}
    async with http(routes) as port, client(port) as engine:
        assert (await engine.health()).state == "up"
        for ask in (engine.stats, engine.facts):
            with pytest.raises(NotAnEngine, match="neither a list of models"):
                await ask()


async def test_a_server_that_says_200_to_everything_is_not_an_engine():
    async with http({}, default=200) as port, client(port, strict=False) as engine:
        with pytest.raises(NotAnEngine):
            await engine.facts()
        result = await engine.complete(CompletionRequest(prompt="hi", model="m"))
        assert result.error_kind == "not_json"


@pytest.mark.parametrize(("owner", "series"), [("sglang", ""), ("x", "sglang:num_running_reqs 1\n")])
async def test_another_engine_is_named(owner: str, series: str):
    models = {"object": "list", "data": [{"id": "m", "owned_by": owner}]}
    async with http({"/v1/models": models, "/metrics": series}) as port, client(port) as engine:
        with pytest.raises(NotAnEngine, match="is SGLang"):
            await engine.facts()


async def test_a_router_in_front_of_the_engine_is_told_from_the_engine():
    models = {"object": "list", "data": [{"id": "m", "owned_by": "router"}]}
    async with http({"/health": "", "/v1/models": models}) as port:
        async with client(port) as engine:
            with pytest.raises(NotAnEngine, match="router or a proxy"):
                await engine.stats()
        async with client(port, strict=False) as engine:
            assert (await engine.facts()).model == "m"


async def test_a_list_of_models_owned_by_vllm_is_enough_and_adapters_are_no_base_model():
    listed = [{"id": "sql", "owned_by": "vllm", "parent": "m"}, {"id": "m", "owned_by": "vllm"}]
    async with http({"/v1/models": {"data": listed}}) as port, client(port) as engine:
        facts = await engine.facts()
    assert (facts.model, facts.adapters, facts.version) == ("m", ("sql",), None)


async def test_a_stream_that_hangs_after_an_error_is_not_waited_for():
    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        writer.write(b'data: {"error": "dead"}\n\n')
        await reader.read()

    async with tcp(fail) as port, client(port) as engine:
        result = await engine.complete(CompletionRequest(prompt="hi", model="m", deadline_s=5))
    assert result.error_kind == "broken"
    assert result.total_s < 5


async def test_what_is_no_http_is_not_an_engine():
    async with tcp(garbage) as port, client(port) as engine:
        health = await engine.health()
        assert health.state == "not_an_engine"
        assert "does not answer in HTTP" in health.detail
        with pytest.raises(NotAnEngine):
            await engine.facts()
        assert (await engine.complete(CompletionRequest(prompt="hi"))).error_kind == "not_json"


async def test_a_port_that_hangs_up_is_a_reset():
    async with tcp(hang_up) as port, client(port) as engine:
        health = await engine.health()
        assert health.state == "reset"
        assert "without an answer" in health.detail


async def test_a_port_that_says_nothing_is_slow_and_not_gone():
    async with tcp(silence) as port, client(port) as engine:
        health = await engine.health()
        assert health.state == "timed_out"
        with pytest.raises(EngineError, match="did not answer within") as caught:
            await engine.stats()
        assert not isinstance(caught.value, NotAnEngine)


async def test_a_tls_port_is_asked_to_be_addressed_with_https(certificate: ssl.SSLContext):
    async with tcp(silence, certificate) as port, client(port) as engine:
        health = await engine.health()
        assert health.state == "not_an_engine"
        assert "https://" in health.detail


async def test_a_plain_port_is_asked_to_be_addressed_with_http():
    async with http({}) as port, client(port, scheme="https") as engine:
        health = await engine.health()
        assert health.state == "not_an_engine"
        assert "http://" in health.detail


async def test_an_engine_with_tls_on_loopback_needs_no_trusted_certificate(certificate: ssl.SSLContext):
    async def healthy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()

    async with tcp(healthy, certificate) as port, client(port, scheme="https") as engine:
        assert (await engine.health()).state == "up"


async def test_a_host_without_address_is_unreachable():
    engine = VllmEngine("http://no-such-host.invalid:8000", api_key=lambda: None, clock=time.monotonic)
    health = await engine.health()
    await engine.close()
    assert health.state == "unreachable"
    assert "WARMUP_ENGINE_URL" in health.detail


async def test_a_page_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch):
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 65536)
            try:
                await writer.drain()
            except ConnectionError:
                break

    monkeypatch.setattr("sidecar.engines.connection.BODY_LIMIT", 100_000)
    async with tcp(endless) as port, client(port) as engine:
        health = await engine.health()
        assert health.state == "not_an_engine"
        assert "100000 bytes" in health.detail


async def made_for(url: str, **settings: Any) -> Engine:
    return make_engine(Settings(engine_url=url, **settings), lambda: None, time.monotonic)


async def test_a_look_at_an_engine_says_what_it_is():
    async with FakeEngine(Script(log_jit=False)) as fake:
        engine = await made_for(fake.url)
        seen = await look(engine)
        await engine.close()
    assert seen.usable
    assert "It is vllm 0.32.0 and serves fake-model." in seen.sentences


@pytest.mark.parametrize("kind", ["auto", "vllm"])
async def test_a_look_at_something_else_says_what_to_do(kind: str):
    async with http({"/health": ""}) as port:
        engine = await made_for(f"http://127.0.0.1:{port}", engine=kind)
        seen = await look(engine)
        await engine.close()
    assert not seen.usable
    assert "WARMUP_ENGINE_URL" in seen.sentences[-1]


async def test_a_port_that_is_said_to_be_vllm_is_taken_for_it():
    models = {"object": "list", "data": [{"id": "m", "owned_by": "router"}]}
    seen = {}
    async with http({"/health": "", "/v1/models": models}) as port:
        for kind in ("auto", "vllm"):
            engine = await made_for(f"http://127.0.0.1:{port}", engine=kind)
            seen[kind] = (await look(engine)).usable
            await engine.close()
    assert seen == {"auto": False, "vllm": True}


async def test_a_look_at_nothing_says_so():
    server: AbstractAsyncContextManager[int] = tcp(silence)
    async with server as port:
        pass
    engine = await made_for(f"http://127.0.0.1:{port}")
    seen = await look(engine)
    await engine.close()
    assert seen.to_json()["sentences"] == [f"Nothing listens on http://127.0.0.1:{port}."]
