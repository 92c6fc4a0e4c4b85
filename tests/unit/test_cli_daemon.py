"""The commands that speak to a running daemon: status, wait, drain, rewarm; against its real web side."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from aiohttp import web

from sidecar.lifecycle import Gate, Phase
from sidecar.web.client import local_url
from tests.unit.commands import daemon, end_of, sidecar, start


@pytest.fixture
def control_dir():
    # Not tmp_path: the path of a unix socket holds 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="ws-") as folder:
        yield Path(folder)


async def _hello(request: web.Request) -> web.Response:
    return web.json_response({"hello": "world"})


async def _ready(request: web.Request) -> web.Response:
    return web.Response(text="Ready.")


@contextlib.asynccontextmanager
async def something_else():
    """Serve HTTP that is no sidecar's."""
    app = web.Application()
    app.router.add_get("/status", _hello)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_status_shows_the_sentence_and_is_3_while_not_ready(control_dir):
    async with daemon(control_dir) as one:
        one.board.gate = Gate(False, False, "Warming up: a whole round must compile nothing.")
        one.board.degraded = ("The store is read-only.",)
        ended = await sidecar("status", "--url", one.url)
    assert ended.code == 3
    assert "not ready" in ended.out
    assert "Warming up: a whole round must compile nothing." in ended.out
    assert "degraded: The store is read-only." in ended.out


async def test_status_is_0_when_ready_and_shows_steps_and_kernels(control_dir):
    async with daemon(control_dir) as one:
        one.board.gate = Gate(True, False, "Converged.")
        one.board.enter(Phase.READY)
        one.board.engine = {
            "url": "http://127.0.0.1:8000",
            "model": "tiny",
            "limits": {"max_model_len": 4096},
        }
        step = {
            "name": "prefill 16",
            "kind": "prefill",
            "state": "done",
            "requests": 4,
            "ttft_first_s": 1.41,
            "ttft_best_s": 0.011,
            "ttft_last_s": 0.012,
            "kernels": 3,
            "detail": "",
        }
        one.board.warmup = {
            "outcome": "converged",
            "sentence": "Two rounds.",
            "steps": [step],
            "seconds": 9.5,
            "kernels_before_ready": {"inductor": 21},
            "kernels_after_ready": {"inductor": 0},
        }
        one.board.tell("A [bold]strange[/] event.")
        ended = await sidecar("status", "--url", one.url)
    assert ended.code == 0
    for text in ("prefill 16", "1.41 s", "11 ms", "inductor", "21", "4096", "A [bold]strange[/] event."):
        assert text in ended.out


async def test_status_as_json_is_what_the_daemon_says(control_dir):
    async with daemon(control_dir) as one:
        ended = await sidecar("status", "--json", "--listen", one.url.removeprefix("http://"))
        assert json.loads(ended.out)["reason"] == one.board.gate.sentence


async def test_status_survives_a_newer_daemons_unknown_shapes(control_dir):
    async with daemon(control_dir) as one:
        one.board.warmup = {
            "outcome": "converged",
            "steps": "later",
            "kernels_before_ready": [1],
            "seconds": "x",
        }
        one.board.engine = {"limits": None}
        ended = await sidecar("status", "--url", one.url)
    assert ended.code == 3
    assert ended.err == ""


async def test_status_of_nobody_says_where_it_asked_and_what_to_do():
    ended = await sidecar("status", "--url", "http://127.0.0.1:9")
    assert ended.code == 3
    assert "No sidecar answers at http://127.0.0.1:9 (Connection refused)." in ended.err
    assert "--url" in ended.err


async def test_status_of_something_else_says_that_it_is_no_sidecar():
    async with something_else() as url:
        ended = await sidecar("status", "--url", url)
    assert ended.code == 3
    assert "not a warmup-sidecar" in ended.err


async def test_a_wrong_setting_that_status_does_not_need_does_not_stop_it(control_dir):
    async with daemon(control_dir) as one:
        ended = await sidecar("status", "--url", one.url, "--json", variables={"WARMUP_STALL_S": "never"})
    assert json.loads(ended.out)["phase"] == "starting"


async def test_a_wrong_setting_that_status_needs_is_wrong_use():
    ended = await sidecar("status", variables={"WARMUP_LISTEN": "nowhere"})
    assert ended.code == 2
    assert "WARMUP_LISTEN='nowhere'" in ended.err


async def test_wait_prints_each_sentence_once_and_ends_when_ready(control_dir):
    async with daemon(control_dir) as one:
        one.board.gate = Gate(False, False, "Restoring.")
        process = await start("wait", "--url", one.url, "--timeout", "30")
        assert process.stdout is not None
        assert b"Restoring." in await process.stdout.readline()
        one.board.gate = Gate(False, False, "Warming up.")
        assert b"Warming up." in await process.stdout.readline()
        one.board.gate = Gate(True, False, "Ready.")
        ended = await end_of(process)
    assert ended.code == 0
    assert ended.out.count("\n") == 1


async def test_wait_for_startup_asks_the_startup_probe(control_dir):
    async with daemon(control_dir) as one:
        one.board.startup_open, one.board.startup_sentence = True, "The engine may start."
        ended = await sidecar("wait", "--for", "startup", "--json", "--url", one.url)
    assert ended.code == 0
    assert json.loads(ended.out)["sentence"] == "The engine may start."
    assert "The engine may start." in ended.err


async def test_wait_does_not_repeat_a_sentence_that_stays(control_dir):
    async with daemon(control_dir) as one:
        ended = await sidecar("wait", "--url", one.url, "--timeout", "1.6")
    assert ended.out.count("The sidecar is starting.") == 1


async def test_wait_gives_up_after_its_timeout_with_the_last_sentence(control_dir):
    async with daemon(control_dir) as one:
        ended = await sidecar("wait", "--url", one.url, "--timeout", "0.6", "--quiet")
    assert ended.code == 3
    assert "Not ready after 0.6 s: The sidecar is starting." in ended.err
    assert ended.out == ""


async def test_wait_waits_for_a_sidecar_that_is_not_there_yet(control_dir):
    async with daemon(control_dir) as gone:
        url = gone.url
    process = await start("wait", "--url", url, "--timeout", "30")
    assert process.stdout is not None
    assert b"No sidecar answers" in await process.stdout.readline()
    app = web.Application()
    app.router.add_get("/readyz", _ready)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(url.rpartition(":")[2])).start()
    ended = await end_of(process)
    await runner.cleanup()
    assert ended.code == 0


async def test_drain_goes_through_the_control_socket_and_tells_what_happens(control_dir):
    async with daemon(control_dir) as one:
        ended = await sidecar("drain", "--control-dir", str(control_dir))
        assert one.calls == ["drain"]
    assert (ended.code, ended.out) == (0, "Draining: readiness is withdrawn.\n")


async def test_a_refused_rewarm_is_3_with_the_daemons_sentence(control_dir):
    async with daemon(control_dir) as one:
        ended = await sidecar("rewarm", variables={"WARMUP_CONTROL_DIR": str(control_dir)})
        assert one.calls == ["rewarm"]
    assert ended.code == 3
    assert "The engine sleeps; wake it first." in ended.err


async def test_drain_without_a_daemon_names_the_socket(control_dir):
    ended = await sidecar("drain", "--control-dir", str(control_dir))
    assert ended.code == 3
    assert f"{control_dir}/control.sock" in ended.err
    assert "--control-dir" in ended.err


async def test_a_daemon_that_hangs_is_given_up():
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    async with server:
        ended = await sidecar("status", "--url", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert ended.code == 3
    assert "did not answer within 5 s" in ended.err


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("0.0.0.0:9797", "http://127.0.0.1:9797"),
        (":1", "http://127.0.0.1:1"),
        ("[::]:2", "http://[::1]:2"),
        ("10.0.0.7:3", "http://10.0.0.7:3"),
        ("[fd00::7]:4", "http://[fd00::7]:4"),
    ],
)
def test_a_daemon_is_reached_where_it_listens(listen, url):
    assert local_url(listen) == url
