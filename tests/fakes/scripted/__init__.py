"""Scripted servers of engines: one file for each, named as the engine, with a class `Server`.

Each is built from what its engine's documentation and server source say of paths, statuses, fields and answers; none is
a recording.
"""

from __future__ import annotations

import importlib

from tests.fakes.scripted.server import ScriptedServer


def server_of(engine: str) -> type[ScriptedServer]:
    """Give the scripted server of an engine by its name."""
    found: type[ScriptedServer] = importlib.import_module(f"{__name__}.{engine}").Server
    return found
