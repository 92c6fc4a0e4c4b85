"""A worker's view of its leader, over real HTTP: ready is up, everything else is not, and load is not death."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from sidecar.engines import leader as leader_room
from sidecar.engines.leader import LeaderEngine
from sidecar.engines.protocol import CompletionRequest
from sidecar.errors import EngineError


class Leader:
    """The probes and the status of a leader's sidecar."""

    def __init__(self) -> None:
        self.status, self.sentence, self.seconds = 200, "Nothing is left to compile.", 0.0
        self.page: object = {"flagged": False, "engine": {"identity": "process:1"}}
        self.url = self.raw = ""

    async def readyz(self, _request: web.Request) -> web.Response:
        await asyncio.sleep(self.seconds)
        return web.Response(status=self.status, text=self.sentence + "\n")

    async def show(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.raw) if self.raw else web.json_response(self.page)


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    made = Leader()
    application = web.Application()
    application.add_routes([web.get("/readyz", made.readyz), web.get("/status", made.show)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def engine(leader: Leader) -> AsyncIterator[LeaderEngine]:
    made = LeaderEngine(leader.url, time.monotonic)
    yield made
    await made.close()


async def test_a_leader_that_is_ready_is_an_engine_that_is_up(engine: LeaderEngine):
    first, second = await engine.health(), await engine.health()
    assert (first.state, first.new_connection, second.new_connection) == ("up", True, False)


async def test_a_leader_that_is_not_ready_is_followed_with_its_own_sentence(engine: LeaderEngine, leader: Leader):
    leader.status, leader.sentence = 503, "Warming up."
    health = await engine.health()
    assert health.state == "refused"
    assert "Warming up." in health.detail


async def test_a_leader_that_is_gone_takes_the_worker_with_it(engine: LeaderEngine):
    gone = LeaderEngine("http://127.0.0.1:1", time.monotonic)
    assert (await gone.health()).state == "refused"
    await gone.close()


async def test_a_leader_that_is_slow_is_loaded_and_not_dead(
    engine: LeaderEngine, leader: Leader, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leader_room, "PROBE_S", 0.2)
    leader.seconds = 5.0
    assert (await engine.health()).state == "timed_out"


async def test_something_else_on_that_port_is_no_leader(engine: LeaderEngine, leader: Leader):
    leader.status = 404
    assert (await engine.health()).state == "not_an_engine"


async def test_a_worker_whose_own_engine_does_not_run_is_not_up(leader: Leader):
    engine = LeaderEngine(leader.url, time.monotonic, lambda: "This worker's own engine does not run yet.")
    assert (await engine.health()).detail == "This worker's own engine does not run yet."
    await engine.close()


async def test_another_engine_of_the_leader_is_another_identity(engine: LeaderEngine, leader: Leader):
    before = (await engine.stats()).identity
    leader.page = {"flagged": True, "engine": {"identity": "process:2"}}
    assert (await engine.stats()).identity != before
    assert engine.flagged


@pytest.mark.parametrize("page", [[], "text", {"engine": None}])
async def test_a_status_that_tells_nothing_is_no_identity(engine: LeaderEngine, leader: Leader, page: object):
    leader.page = page
    if isinstance(page, dict):
        assert (await engine.stats()).identity is None
    else:
        with pytest.raises(EngineError):
            await engine.stats()


@pytest.mark.parametrize("page", ["x" * (5 << 20), [[]]])
async def test_a_status_that_never_ends_or_goes_too_deep_is_an_error(
    engine: LeaderEngine, leader: Leader, page: object
):
    leader.page = page
    if isinstance(page, list):
        leader.raw = "[" * 100_000
    with pytest.raises(EngineError):
        await engine.stats()


async def test_a_worker_is_sent_no_traffic(engine: LeaderEngine):
    assert not (await engine.complete(CompletionRequest("hello"))).ok
