"""All engines that can be driven: one file each in this folder, found by its name.

Whoever adds an engine adds a file with `ENGINE`, a Declaration; nothing else lists engines.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from sidecar.engines.declaration import Declaration

#: The engine that is assumed where nothing says which it is.
USUAL = "vllm"


@functools.cache
def engines() -> Mapping[str, Declaration]:
    """Give all declarations by name, the usual engine first."""
    names = sorted((each.name for each in pkgutil.iter_modules(__path__)), key=lambda name: (name != USUAL, name))
    found = {name: importlib.import_module(f"{__name__}.{name}").ENGINE for name in names}
    return MappingProxyType(found)


def of_command(words: Sequence[str]) -> Declaration | None:
    """Give the engine that a command line starts; None where it looks like none of them."""
    line = " ".join(words)
    found = [engine for engine in engines().values() if engine.command.search(line)]
    return min(found, key=lambda engine: engine.front, default=None)


def of_name(name: str | None) -> Declaration:
    """Give an engine by name; the usual one for a name that none has."""
    return engines().get(name or USUAL) or engines()[USUAL]
