"""`status` of many sidecars and `status --watch`: against real web sides, on a terminal and into a pipe."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from rich.console import Console

from sidecar.commands import status_watch, watch_view
from sidecar.commands.status_watch import Watched
from sidecar.lifecycle import Gate, Phase
from tests.fakes import scenes
from tests.unit.commands import CHECKOUT, DEADLINE_S, Daemon, daemon, environment, sidecar, start

#: Where nothing listens: the discard port.
NOBODY = "http://127.0.0.1:9"
ESCAPE = "\x1b[2J\x1b]0;owned\x07 \u202e[bold]"


@pytest.fixture
def control_dir() -> Iterator[Path]:
    # Not tmp_path: the path of a unix socket holds 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="ws-") as folder:
        yield Path(folder)


@pytest_asyncio.fixture
async def one(control_dir: Path) -> AsyncIterator[Daemon]:
    async with daemon(control_dir) as found:
        found.board.gate = Gate(False, False, "Warming up: 3 of 8 steps.")
        yield found


def become_ready(one: Daemon) -> None:
    one.board.gate = Gate(True, False, "Converged.")
    one.board.enter(Phase.READY)


def watched(**status: Any) -> Watched:
    return Watched("http://10.0.0.7:9797", {"phase": "warming", "ready": False, **status}, "", 1)


def drawn(many: list[Watched], width: int, height: int = 0) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(watch_view.overview(many, width, height))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        return (await process.stdout.readline()).decode()


async def interrupted(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Press Ctrl-C; give the exit code and what stands on standard error."""
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(DEADLINE_S):
        _, said = await process.communicate()
    return process.returncode, said.decode()


# --- the overview


@pytest.mark.parametrize("width", [20, 40, 60, 90, 160])
def test_each_sidecar_is_one_line_however_narrow_the_terminal(width: int) -> None:
    away = Watched(
        NOBODY, {}, "No sidecar answers here, and this sentence is longer than any of these terminals is. " * 3, 1
    )
    many = [Watched(f"http://pod-{name}", scene().to_json(), "", 1) for name, scene in scenes.SCENES.items()]
    lines = drawn([*many, away], width)
    assert all(len(each) <= width for each in lines)
    assert sum("pod-" in each or "127" in each for each in lines) == len(many) + 1


def test_a_wide_terminal_shows_kernels_restore_and_kv_cache() -> None:
    board = scenes.compiling_under_traffic()
    text = "\n".join(drawn([Watched("http://pod", board.to_json(), "", 1)], 200))
    for cell in ("pod", "ready", "95.0 s", "0 + 2", "hit", "41 %", "A whole round of 516 requests"):
        assert cell in text


def test_those_that_are_not_ready_are_shown_when_not_all_have_room() -> None:
    good = [Watched(f"http://good-{n}", {"phase": "ready", "ready": True}, "", 1) for n in range(20)]
    lines = drawn([*good, watched(reason="This one waits.")], 120, height=10)
    assert len(lines) < 10
    assert any("This one waits." in each for each in lines)
    assert "20 of 21 ready, 14 not shown" in lines[0]


@pytest.mark.parametrize(
    "status", [{"timeline": "later"}, {"engine": None, "restore": [1]}, {"warmup": {"kernels_before_ready": 3}}]
)
def test_shapes_of_a_newer_daemon_are_shown_as_far_as_they_go(status: dict[str, Any]) -> None:
    assert "warming" in "\n".join(drawn([watched(**status)], 160))


def test_nothing_an_engine_says_can_move_the_cursor() -> None:
    text = "\n".join(drawn([watched(reason=ESCAPE, phase=ESCAPE, restore={"outcome": ESCAPE})], 200))
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "[bold]" in text


async def test_one_that_is_away_is_a_line_with_its_sentence(one: Daemon) -> None:
    many = [Watched(one.url), Watched(NOBODY)]
    await status_watch.look(many)
    assert [each["phase"] for each in map(watch_view.cells, many)] == ["starting", "away"]
    assert "No sidecar answers at http://127.0.0.1:9 (Connection refused)." in watch_view.cells(many[1])["sentence"]


# --- the command


async def test_of_several_a_line_each_is_shown_once_and_one_that_is_away_is_3(one: Daemon) -> None:
    become_ready(one)
    ended = await sidecar("status", one.url, NOBODY)
    assert (ended.code, ended.err) == (3, "")
    assert "1 of 2 ready" in ended.out
    assert "Converged." in ended.out
    assert "Connection refused" in ended.out


async def test_into_a_pipe_a_line_is_printed_when_something_changes_and_ctrl_c_is_a_clean_end(one: Daemon) -> None:
    process = await start("status", "--watch", "--interval", "0.2", one.url, NOBODY)
    first = sorted([await line(process), await line(process)], key=lambda text: "away" in text)
    assert "starting" in first[0]
    assert "Warming up: 3 of 8 steps." in first[0]
    assert "Connection refused" in first[1]
    become_ready(one)
    assert "Converged." in await line(process)
    assert await interrupted(process) == (0, "")


async def test_as_json_each_answer_is_a_line(one: Daemon) -> None:
    process = await start("status", "--watch", "--interval", "0.2", "--json", one.url)
    found = [json.loads(await line(process)) for _ in range(2)]
    assert [(each["url"], each["status"]["phase"], each["trouble"]) for each in found] == [
        (one.url, "starting", None)
    ] * 2
    assert found[0]["at"] < found[1]["at"]
    assert await interrupted(process) == (0, "")


async def test_a_sidecar_that_comes_back_is_seen_again() -> None:
    answers = [{"hello": "world"}, {"phase": "ready", "ready": True}]

    async def status(_: web.Request) -> web.Response:
        return web.json_response(answers.pop(0))

    app = web.Application()
    app.router.add_get("/status", status)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    seen: list[tuple[bool, bool]] = []
    try:
        each = Watched(f"http://127.0.0.1:{runner.addresses[0][1]}")
        for _ in range(2):
            await status_watch.look([each], lambda found: seen.append((bool(found.trouble), found.is_ready)))
    finally:
        await runner.cleanup()
    assert seen == [(True, False), (False, True)]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
async def test_a_terminal_is_given_back_as_it_was(one: Daemon, end: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    process = _on_terminal(theirs, "status", "--watch", "--interval", "0.2", one.url)
    os.close(theirs)
    try:
        shown = await asyncio.to_thread(_until, ours, b"Warming up: 3 of 8 steps.")
        assert b"\x1b[?1049h" in shown
        process.send_signal(end)
        shown = await asyncio.to_thread(_until, ours, b"")
        assert await asyncio.to_thread(process.wait, DEADLINE_S) == 0
        assert shown.index(b"\x1b[?1049l") < shown.index(b"0 of 1 ready")
        assert b"\x1b[?25h" in shown
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def _on_terminal(terminal: int, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "sidecar", *words],
        stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.PIPE, start_new_session=True, cwd=CHECKOUT,
        env=environment(TERM="xterm", COLUMNS="100", LINES="30"),
        # A shell ignores it in what it puts into the background, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def _until(terminal: int, wanted: bytes) -> bytes:
    """Read from a terminal until something was written, or, with nothing wanted, until it is closed."""
    shown = b""
    while not wanted or wanted not in shown:
        try:
            read = os.read(terminal, 65536)
        except OSError:
            # EIO: the other end was closed.
            break
        if not read:
            break
        shown += read
    return shown
