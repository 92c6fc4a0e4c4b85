"""Opening and closing the port: who is in the way, and how fast everybody is sent home."""

from __future__ import annotations

import asyncio
import socket
import time

import aiohttp
import pytest

from sidecar.errors import ListenFailed
from sidecar.metrics import Metrics
from sidecar.web import server
from tests.fakes import scenes


async def serve(port: int = 0, host: str = "127.0.0.1") -> server.Listening:
    return await server.serve(scenes.ready(), Metrics("0.1.0", "launcher"), host, port)


async def test_a_taken_port_is_refused_with_who_has_it_and_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ListenFailed) as refused:
            await serve(taken.getsockname()[1])
    assert "is taken by python" in str(refused.value)
    assert "WARMUP_LISTEN" in str(refused.value)


async def test_a_port_can_be_opened_again_at_once() -> None:
    first = await serve()
    port = first.addresses[0][1]
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/readyz") as answer:
        assert answer.status == 200
    await first.stop()
    second = await serve(port)
    await second.stop()


@pytest.mark.parametrize(("host", "port"), [("203.0.113.77", 0), ("127.0.0.1", 99999)])
async def test_an_address_that_can_not_be_opened_is_a_sentence_that_names_the_setting(host: str, port: int) -> None:
    with pytest.raises(ListenFailed, match="WARMUP_LISTEN"):
        await serve(port, host)


async def test_stopping_takes_under_half_a_second_with_connections_kept_open() -> None:
    listening = await serve()
    port = listening.addresses[0][1]
    silent = await asyncio.open_connection("127.0.0.1", port)
    half = await asyncio.open_connection("127.0.0.1", port)
    half[1].write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n")
    await half[1].drain()
    async with aiohttp.ClientSession() as client:
        async with client.get(f"http://127.0.0.1:{port}/readyz") as answer:
            await answer.read()
        began = time.perf_counter()
        await listening.stop()
        took = time.perf_counter() - began
    for _, writer in (silent, half):
        writer.close()
    # Of the server's own 60 s for clients that stay.
    assert took < 10


async def test_stopping_does_not_wait_for_a_client_that_never_reads() -> None:
    board = scenes.ready()
    board.engine = {"detail": "x" * 20_000_000}
    listening = await server.serve(board, Metrics("0.1.0", "launcher"), "127.0.0.1", 0)
    with socket.create_connection(listening.addresses[0]) as lazy:
        lazy.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        lazy.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(lazy, 1) == b"H"
        began = time.perf_counter()
        await listening.stop()
        assert time.perf_counter() - began < 10


async def test_stopping_twice_or_nothing_is_fine() -> None:
    listening = await serve()
    await server.stop_all(listening, None)
    await listening.stop()


async def test_a_stopped_port_answers_nobody() -> None:
    listening = await serve()
    await listening.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*listening.addresses[0])


async def test_an_empty_host_means_all_addresses() -> None:
    listening = await serve(host="")
    assert "0.0.0.0" in [host for host, _ in listening.addresses]
    await listening.stop()
