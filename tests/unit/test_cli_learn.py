"""`profiles learn` from an engine, a page, the daemon's record and a scripted Prometheus; what is told where nothing is learned."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sidecar.commands import traffic_sources
from sidecar.commands.prometheus import Prometheus, address_of, seconds_of, selected
from sidecar.commands.traffic_sources import from_engine, from_file, from_live_cache, from_prometheus
from sidecar.engines.declaration import Connect
from sidecar.engines.detect import AnyEngine
from sidecar.errors import NotSo, PrometheusUnavailable, UsageError
from sidecar.warmup.profiles import load_file
from sidecar.warmup.recorded import Distribution, RecordedMix, mix_path
from tests.fakes.length_page import LengthPage
from tests.ports import unused_port
from tests.unit.commands import sidecar

PROMPTS, OUTPUTS = {16.0: 0, 1000.0: 300, math.inf: 0}, {20.0: 200, 50.0: 100, math.inf: 0}


async def no_sleep(_: float) -> None:
    """Look again at once."""


async def test_an_engine_tells_lengths_since_its_start_and_what_runs_while_it_is_watched() -> None:
    async with LengthPage(PROMPTS, OUTPUTS, running=7) as page:
        engine = AnyEngine(Connect(page.url, lambda: None, lambda: 0.0))
        found = await from_engine(engine, page.url, 5, None, no_sleep)
        await engine.close()
    assert found.mix.prompt_tokens == Distribution((16, 1000), (0.0, 300.0))
    assert found.mix.output_tokens == Distribution((20, 50), (200.0, 100.0))
    assert found.mix.concurrency == Distribution((6, 7), (0.0, 5.0))
    assert found.mix.requests == 300


async def test_an_idle_engine_leaves_the_span_of_requests_at_once_to_the_extended_profile(tmp_path: Path) -> None:
    async with LengthPage(PROMPTS, OUTPUTS) as page:
        ended = await sidecar(
            "profiles", "learn", "--engine", page.url, "--watch", "0", "--sm", "sm90", "--output", str(tmp_path / "mine.yaml")
        )  # fmt: skip
    assert ended.code == 0, ended.err
    text = (tmp_path / "mine.yaml").read_text()
    assert "was not seen, or not often enough" in " ".join(text.replace("#", "").split())
    assert 'extends: "sm90"' in text
    assert "100.0%" in text
    assert "concurrency:" not in text
    mix = load_file(tmp_path / "mine.yaml").mix
    assert (mix.prompt_tokens.start, mix.prompt_tokens.to, mix.concurrency.to) == (8, 1000, 32)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_page_in_a_file_tells_the_same(tmp_path: Path, engine: str) -> None:
    (tmp_path / "metrics.txt").write_text(LengthPage(PROMPTS, OUTPUTS, 3, engine).text())
    found = from_file(tmp_path / "metrics.txt", None)
    assert (found.mix.prompt_tokens.total, found.mix.concurrency.total) == (300.0, 0.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trtllm_num_requests_running 3\n", "shows no histograms of lengths"),
        ("node_load1 3\n", "no series that start with vllm:"),
        ("", "metrics are empty"),
        (LengthPage({10.0: 40, math.inf: 0}, {10.0: 40, math.inf: 0}).text(), "Only 40 requests are counted"),
        (LengthPage({10.0: 100, math.inf: 900}, OUTPUTS).text(), "90% of the prompts are longer"),
    ],
)  # fmt: skip
def test_a_page_that_tells_too_little_is_told(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "metrics.txt").write_text(text)
    with pytest.raises(NotSo, match=words):
        from_file(tmp_path / "metrics.txt", None)


def test_what_is_no_file_or_no_text_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        from_file(tmp_path / "none", None)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="can't be read"):
        from_file(tmp_path / "bytes", None)


def test_the_record_of_the_daemon_is_taken_as_it_is(tmp_path: Path) -> None:
    part = Distribution((8, 64), (0.0, 500.0))
    RecordedMix(part, part, part, 500.0, 3).save(mix_path(tmp_path))
    found = from_live_cache(tmp_path)
    assert (found.mix.prompt_tokens, found.source) == (part, "the daemon's record of 3 pods")
    with pytest.raises(UsageError, match="No traffic is recorded"):
        from_live_cache(tmp_path / "other")


def test_many_buckets_are_put_together_to_what_a_profile_holds() -> None:
    many = Distribution(tuple(range(1, 301)), (1.0,) * 300)
    kept = traffic_sources._kept(many)
    assert (len(kept.bounds), kept.bounds[-1], kept.total) == (100, 300, 300.0)


def vector(counts: Mapping[str, float], **labels: str) -> list[dict[str, Any]]:
    return [{"metric": {"le": bound, **labels}, "value": [0, str(count)]} for bound, count in counts.items()]


#: Answers by what stands in the query.
ANSWERS: dict[str, Any] = {
    "vllm:request_prompt_tokens_bucket": [
        *vector({"10.0": 50, "100.0": 150, "+Inf": 150}, pod="a"),
        *vector({"100.0": 0, "1000.0": 250, "+Inf": 250}, pod="b"),
        *vector({"10.0": math.nan, "nonsense": 7}, pod="c"),
    ],
    "vllm:request_generation_tokens_bucket": vector({"20.0": 400, "+Inf": 400}, pod="a"),
    "num_requests_running": [
        {"metric": {"running": "4"}, "values": [[0, "2"], [15, "1"]]},
        {"metric": {"running": "0"}, "values": [[0, "9"]]},
        {"metric": {"running": "NaN"}, "values": [[0, "9"]]},
    ],
}


async def prometheus(answer: Callable[[web.Request, str], Any], **options: Any) -> tuple[TestServer, Prometheus]:
    async def handle(request: web.Request) -> web.Response:
        query = str((await request.post())["query"])
        found = answer(request, query)
        if isinstance(found, web.Response):
            return found
        kind = "matrix" if request.path.endswith("query_range") else "vector"
        return web.json_response({"status": "success", "data": {"resultType": kind, "result": found}})

    app = web.Application()
    app.router.add_post("/prom/api/v1/{kind}", handle)
    server = TestServer(app)
    await server.start_server()
    return server, Prometheus(f"http://127.0.0.1:{server.port}/prom", **options)


def canned(_: web.Request, query: str) -> Any:
    return next((found for name, found in ANSWERS.items() if name in query), [])


async def learned(answer: Callable[[web.Request, str], Any], longest: int | None = None, **options: Any) -> Any:
    server, client = await prometheus(answer, **options)
    try:
        async with client:
            return await from_prometheus(client, "7d", 'namespace="chat"', longest)
    finally:
        await server.close()


async def test_prometheus_tells_what_grew_of_every_engine_by_its_own_buckets() -> None:
    asked: list[str] = []

    def answer(request: web.Request, query: str) -> Any:
        asked.append(query)
        return canned(request, query)

    found = await learned(answer)
    assert found.mix.prompt_tokens == Distribution((10, 100, 1000), (50.0, 100.0, 250.0))
    assert found.mix.output_tokens == Distribution((20,), (400.0,))
    assert found.mix.concurrency == Distribution((3, 4), (0.0, 3.0))
    assert all('namespace="chat"' in query for query in asked)
    assert sum("increase(" in query and "[7d]" in query for query in asked) == 4


async def test_the_token_goes_with_every_question() -> None:
    seen: list[str | None] = []

    def answer(request: web.Request, query: str) -> Any:
        seen.append(request.headers.get("Authorization"))
        return canned(request, query)

    await learned(answer, token="secret")
    assert set(seen) == {"Bearer secret"}


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (lambda *_: web.Response(status=401), NotSo, "wants authentication .*--bearer-token-file"),
        (lambda *_: web.Response(status=403, text="{}"), NotSo, "wants authentication"),
        (lambda *_: web.json_response({"status": "error", "error": "1:9: parse error"}, status=400), NotSo,
         "parse error.*--selector"),
        (lambda *_: web.Response(text="<html>"), PrometheusUnavailable, "not as Prometheus's API does"),
        (lambda *_: web.Response(status=502), PrometheusUnavailable, "HTTP 502"),
        (lambda *_: web.json_response({"data": {"resultType": "scalar"}}), PrometheusUnavailable, "no vector"),
        (lambda *_: [], NotSo, "no requests in vllm:request_prompt_tokens or sglang.* with namespace=.* in the last 7d"),
        (lambda _, query: canned(_, query.replace("sglang:prompt_tokens_histogram", "vllm:request_prompt_tokens").replace(
            "sglang:generation_tokens_histogram", "vllm:request_generation_tokens")), NotSo, "vLLM and SGLang.*--selector"),
    ],
)  # fmt: skip
async def test_a_prometheus_that_tells_nothing_is_told_with_what_to_do(
    answer: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        await learned(answer)


async def test_a_refused_token_is_told_from_a_missing_one() -> None:
    with pytest.raises(NotSo, match="refuses this bearer token"):
        await learned(lambda *_: web.Response(status=403), token="old")


async def test_where_nothing_listens_it_is_said() -> None:
    async with Prometheus(f"http://127.0.0.1:{unused_port()}") as client:
        with pytest.raises(PrometheusUnavailable, match="No Prometheus answers"):
            await client.instant("up")


async def test_a_server_that_is_silent_is_given_up() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await never.wait()
        return web.Response()

    never = asyncio.Event()
    app = web.Application()
    app.router.add_post("/api/v1/query", answer)
    server = TestServer(app)
    await server.start_server()
    try:
        async with Prometheus(f"http://127.0.0.1:{server.port}", timeout_s=0.2) as client:
            with pytest.raises(PrometheusUnavailable, match=r"within 0\.2 s"):
                await client.instant("up")
    finally:
        never.set()
        await server.close()


@pytest.mark.parametrize(("text", "seconds"), [("7d", 604800), ("1h30m", 5400), ("2w", 1209600), ("45s", 45)])
def test_windows_are_written_as_prometheus_does(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "0d", "d", "-1d", "7 d", "1m1h", "100y"])
def test_what_is_no_window_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="--query-window"):
        seconds_of(text)


@pytest.mark.parametrize("selector", ['pod="a"', '{pod="a"}', ' {pod="a",} '])
def test_matchers_are_taken_with_or_without_braces(selector: str) -> None:
    assert selected("up", selector, 'x=~"0?"') == 'up{pod="a", x=~"0?"}'
    assert selected("up", "") == "up{}"


@pytest.mark.parametrize("url", ["prometheus:9090", "http://", "http://user:pass@p", "ftp://p", "http://p?x=1"])
def test_what_is_no_address_is_wrong_use(url: str) -> None:
    with pytest.raises(UsageError, match="--prometheus is not usable"):
        address_of(url)


async def test_two_sources_or_none_are_wrong_use(tmp_path: Path) -> None:
    for words in ((), ("--file", "a", "--live-cache", "b")):
        ended = await sidecar("profiles", "learn", *words)
        assert (ended.code, "exactly one of --prometheus" in ended.err) == (2, True)
    ended = await sidecar("profiles", "learn", "--engine", "here")
    assert (ended.code, "--engine is not usable" in ended.err) == (2, True)
    (tmp_path / "token").write_text("two words\n")
    ended = await sidecar(
        "profiles", "learn", "--prometheus", "http://p", "--bearer-token-file", str(tmp_path / "token")
    )
    assert (ended.code, "holds no token" in ended.err) == (2, True)
