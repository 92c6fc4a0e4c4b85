"""The network port over real sockets: probes, status, metrics, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import aiohttp
import pytest

from sidecar.caches.client import PublishResult, RestoreResult
from sidecar.lifecycle import Gate, Phase
from sidecar.metrics import Metrics
from sidecar.status import SECTIONS, Board
from sidecar.warmup.results import VerifyResult, WarmResult
from sidecar.web import app, server
from tests.fakes import scenes

WHY = "Waiting for the engine to answer; restore was: hit."


@pytest.fixture
def board() -> Board:
    return scenes.awaiting_engine()


@pytest.fixture
async def port(board: Board) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve the board; a client whose paths are relative to the port."""
    listening = await server.serve(board, Metrics("0.1.0", "launcher"), "127.0.0.1", 0)
    host, number = listening.addresses[0]
    async with aiohttp.ClientSession(f"http://{host}:{number}") as client:
        yield client
    await listening.stop()


async def ask(port: aiohttp.ClientSession, path: str, method: str = "GET") -> tuple[int, str]:
    async with port.request(method, path) as answer:
        return answer.status, await answer.text()


async def test_readyz_says_why_not(port: aiohttp.ClientSession, board: Board) -> None:
    board.gate = Gate(False, False, WHY)
    assert await ask(port, "/readyz") == (503, WHY + "\n")


async def test_readyz_is_200_exactly_while_the_gate_is_open(port: aiohttp.ClientSession, board: Board) -> None:
    board.gate = Gate(True, False, "Warm.")
    assert (await ask(port, "/readyz"))[0] == 200
    board.gate = Gate(False, False, WHY)
    assert (await ask(port, "/readyz"))[0] == 503


async def test_verbose_readyz_shows_where_each_part_stands(port: aiohttp.ClientSession, board: Board) -> None:
    board.degraded = ("The store is away.",)
    status, text = await ask(port, "/readyz?verbose")
    assert status == 503
    assert text.startswith(board.gate.sentence)
    for line in (
        "phase: awaiting_engine (for 41.0 s)",
        "restore: hit",
        "engine: gone (connection refused)",
        "degraded: The store is away.",
    ):
        assert line in text


async def test_startupz_opens_when_the_engine_may_start(port: aiohttp.ClientSession, board: Board) -> None:
    board.startup_open, board.startup_sentence = False, "The launcher isn't laid yet."
    assert await ask(port, "/startupz") == (503, "The launcher isn't laid yet.\n")
    board.startup_open = True
    assert (await ask(port, "/startupz"))[0] == 200


async def test_livez_follows_the_heartbeat_and_not_the_engine(port: aiohttp.ClientSession, board: Board) -> None:
    board.engine = {"state": "gone"}
    assert (await ask(port, "/livez"))[0] == 200
    board.alive = lambda: False
    status, text = await ask(port, "/livez")
    assert (status, "heartbeat" in text) == (503, True)


async def test_status_has_every_documented_section_and_no_other(port: aiohttp.ClientSession) -> None:
    _, text = await ask(port, "/status")
    assert set(json.loads(text)) == set(SECTIONS)


RESULTS: dict[str, dict[str, Any]] = {
    "warmup": WarmResult("converged", "").to_json(),
    "restore": RestoreResult(outcome="hit", sentence="").to_json(),
    "publish": PublishResult(outcome="published", sentence="").to_json(),
    "golden": VerifyResult("passed", "").to_json(),
}


@pytest.mark.parametrize("section", RESULTS)
def test_every_field_of_a_result_is_documented(section: str) -> None:
    # What is laid down and cleared, claimed and signed is for the restore itself, what was packed for the next publish;
    # rounds are shown as `round`.
    inner = {"commit", "clear", "claims", "signed", "packed", "rounds"}
    words = set(re.findall(r"\w+", SECTIONS[section]))
    assert set(RESULTS[section]) - inner <= words


async def test_status_stays_json_whatever_an_engine_says(port: aiohttp.ClientSession, board: Board) -> None:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    board.engine = {
        "kv_cache_usage": float("nan"),
        "limits": {"x": [float("inf")]},
        "model": "\ud800",
        "odd": object(),
    }
    engine = json.loads((await ask(port, "/status"))[1], parse_constant=refuse)["engine"]
    assert (engine["kv_cache_usage"], engine["limits"]["x"]) == (None, [None])


async def test_half_a_surrogate_pair_in_a_sentence_breaks_no_probe(port: aiohttp.ClientSession, board: Board) -> None:
    board.gate = Gate(False, False, "The engine said \ud800.")
    assert await ask(port, "/readyz") == (503, "The engine said ?.\n")
    assert (await ask(port, "/"))[0] == 200


async def test_metrics_are_served_as_prometheus_text(port: aiohttp.ClientSession) -> None:
    async with port.get("/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "warmup_sidecar_ready 0.0" in await answer.text()


@pytest.mark.parametrize("path", [endpoint.path for endpoint in app.ENDPOINTS])
async def test_head_answers_like_get_without_a_body(port: aiohttp.ClientSession, path: str) -> None:
    assert await ask(port, path, "HEAD") == ((await ask(port, path))[0], "")


@pytest.mark.parametrize("endpoint", app.ENDPOINTS, ids=lambda endpoint: endpoint.path)
async def test_only_declared_codes_are_answered(
    port: aiohttp.ClientSession, board: Board, endpoint: app.Endpoint
) -> None:
    seen = set()
    for opened in (True, False):
        board.gate, board.startup_open = Gate(opened, False, "x"), opened
        board.alive = partial(bool, opened)
        seen.add((await ask(port, endpoint.path))[0])
    assert seen == set(endpoint.codes)


async def test_an_unknown_path_lists_what_there_is(port: aiohttp.ClientSession) -> None:
    status, text = await ask(port, "/healthz")
    assert status == 404
    assert all(endpoint.path in text for endpoint in app.ENDPOINTS)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_can_be_changed_through_the_port(port: aiohttp.ClientSession, method: str) -> None:
    async with port.request(method, "/readyz") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/drain", "/rewarm"])
async def test_calls_of_the_control_socket_are_unknown_on_the_port(port: aiohttp.ClientSession, path: str) -> None:
    assert (await ask(port, path, "POST"))[0] == 404


@pytest.mark.parametrize("path", ["/", "/readyz", "/nothing"])
async def test_every_answer_carries_the_security_headers(port: aiohttp.ClientSession, path: str) -> None:
    async with port.get(path) as answer:
        assert {name: answer.headers.get(name) for name in app.HEADERS} == dict(app.HEADERS)


async def test_a_path_that_is_only_like_one_of_ours_is_refused(port: aiohttp.ClientSession) -> None:
    for path in ("/etc/passwd", "/readyz/", "/READYZ", "/%ff"):
        assert (await ask(port, path))[0] == 404


async def test_the_page_reloads_itself_as_asked(port: aiohttp.ClientSession) -> None:
    assert '<meta http-equiv="refresh" content="3">' in (await ask(port, "/"))[1]
    assert '<meta http-equiv="refresh" content="7">' in (await ask(port, "/?refresh=7"))[1]
    assert 'http-equiv="refresh"' not in (await ask(port, "/?refresh=0"))[1]
    for odd in ("-1", "x", "1e3", "٧", "²", ""):
        assert 'content="3"' in (await ask(port, f"/?refresh={odd}"))[1]
    assert 'content="3600"' in (await ask(port, "/?refresh=999999999999"))[1]


def test_probes_tell_every_phase_apart_from_ready() -> None:
    opened = {scene().phase for scene in scenes.SCENES.values() if scene().gate.open}
    assert opened == {Phase.READY}


def test_the_readme_rows_have_one_cell_a_column() -> None:
    assert all(len(row) == len(app.HEADINGS) for row in app.documented())
