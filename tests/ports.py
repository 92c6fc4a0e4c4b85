"""Ports for servers of the tests, from below those that the kernel gives to clients, so that no connection takes one first."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

_FIRST, _END = 3000, 7900
#: Runs beside each other take different ones: a port is free from when it is named until its server has bound it.
_RUNS = 8


def _candidates() -> itertools.cycle[int]:
    mine = list(range(_FIRST + os.getpid() % _RUNS, _END, _RUNS))
    start = os.getpid() // _RUNS % len(mine)
    return itertools.cycle(mine[start:] + mine[:start])


_ports = _candidates()


def unused_port() -> int:
    """Name a TCP port of the loopback address on which nobody listens; not one that was named just before."""
    for port in itertools.islice(_ports, _END):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"no port between {_FIRST} and {_END} is free")


def unused_ports(count: int) -> list[int]:
    """Name so many different ports."""
    return [unused_port() for _ in range(count)]
