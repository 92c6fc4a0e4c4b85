"""The control socket: who may call, what a call does, and whose socket it is."""

from __future__ import annotations

import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.errors import ControlSocketTaken, ControlSocketUnusable, NotSo
from sidecar.web import control, server
from tests.fakes import scenes


class Daemon:
    """Notes what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def drain(self) -> str:
        self.asked.append("drain")
        return "Draining: no new traffic comes."

    def rewarm(self) -> str:
        raise NotSo("There is no engine to warm; wait until it answers.")


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


async def serve(directory: Path, daemon: Daemon) -> server.Listening:
    return await server.serve_control(
        scenes.ready(), control.Actions(daemon.drain, daemon.rewarm, daemon.rewarm), directory
    )


@pytest.fixture
async def listening(tmp_path: Path, daemon: Daemon) -> AsyncIterator[server.Listening]:
    made = await serve(tmp_path, daemon)
    yield made
    await made.stop()


async def call(directory: Path, method: str, path: str) -> tuple[int, Any]:
    connector = aiohttp.UnixConnector(str(directory / control.SOCKET))
    async with (
        aiohttp.ClientSession(connector=connector) as client,
        client.request(method, f"http://control{path}") as answer,
    ):
        is_json = answer.content_type == "application/json"
        return answer.status, await answer.json() if is_json else await answer.text()


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_drain_is_handed_to_the_daemon_and_its_sentence_comes_back(
    listening: server.Listening, tmp_path: Path, daemon: Daemon
) -> None:
    assert await call(tmp_path, "POST", "/drain") == (
        200,
        {"ok": True, "sentence": "Draining: no new traffic comes."},
    )
    assert daemon.asked == ["drain"]


async def test_a_call_that_can_not_be_done_says_why(listening: server.Listening, tmp_path: Path) -> None:
    status, answer = await call(tmp_path, "POST", "/rewarm")
    assert (status, answer["ok"], answer["outcome"]) == (409, False, "not_so")
    assert "no engine to warm" in answer["sentence"]


async def test_status_is_the_same_as_on_the_port(listening: server.Listening, tmp_path: Path) -> None:
    assert (await call(tmp_path, "GET", "/status"))[1]["phase"] == "ready"


async def test_looking_does_not_drain(listening: server.Listening, tmp_path: Path, daemon: Daemon) -> None:
    assert (await call(tmp_path, "GET", "/drain"))[0] == 405
    assert daemon.asked == []


async def test_owner_and_group_may_call_and_nobody_else(listening: server.Listening, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / control.SOCKET).stat().st_mode) == 0o660


async def test_a_socket_that_a_dead_daemon_left_is_replaced(tmp_path: Path, daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / control.SOCKET))
    listening = await serve(tmp_path, daemon)
    assert (await call(tmp_path, "GET", "/status"))[0] == 200
    await listening.stop()


async def test_a_living_daemon_is_not_pushed_aside(listening: server.Listening, tmp_path: Path, daemon: Daemon) -> None:
    with pytest.raises(ControlSocketTaken, match="WARMUP_CONTROL_DIR"):
        await serve(tmp_path, daemon)
    assert (await call(tmp_path, "GET", "/status"))[0] == 200


async def test_a_living_daemon_that_hangs_is_not_pushed_aside(tmp_path: Path, daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / control.SOCKET))
        hung.listen()
        with pytest.raises(ControlSocketTaken):
            await serve(tmp_path, daemon)


async def test_stopping_leaves_no_file(tmp_path: Path, daemon: Daemon) -> None:
    listening = await serve(tmp_path, daemon)
    await listening.stop()
    assert names_in(tmp_path) == []


async def test_stopping_leaves_the_socket_of_a_successor(tmp_path: Path, daemon: Daemon) -> None:
    listening = await serve(tmp_path, daemon)
    (tmp_path / control.SOCKET).unlink()
    successor = await serve(tmp_path, daemon)
    await listening.stop()
    assert (await call(tmp_path, "GET", "/status"))[0] == 200
    await successor.stop()


async def test_a_refused_start_leaves_no_temporary_file(
    listening: server.Listening, tmp_path: Path, daemon: Daemon
) -> None:
    with pytest.raises(ControlSocketTaken):
        await serve(tmp_path, daemon)
    assert names_in(tmp_path) == [control.SOCKET]


async def test_a_directory_that_is_missing_is_a_sentence(tmp_path: Path, daemon: Daemon) -> None:
    with pytest.raises(ControlSocketUnusable, match="the directory must exist"):
        await serve(tmp_path / "missing", daemon)


async def test_a_path_that_is_too_long_for_a_socket_is_a_sentence(tmp_path: Path, daemon: Daemon) -> None:
    with pytest.raises(ControlSocketUnusable, match="longer than the 107 bytes"):
        await serve(tmp_path / ("x" * 120), daemon)


async def test_something_else_at_the_place_of_the_socket_is_not_overwritten(tmp_path: Path, daemon: Daemon) -> None:
    (tmp_path / control.SOCKET).write_text("mine")
    with pytest.raises(ControlSocketUnusable, match="not a socket"):
        await serve(tmp_path, daemon)
    assert (tmp_path / control.SOCKET).read_text() == "mine"


def test_the_readme_rows_have_one_cell_a_column() -> None:
    assert all(len(row) == len(control.HEADINGS) for row in control.documented())
