"""Places that tell of an engine from outside of its port: its launcher, its Pod's spec, its Node's labels.

Each is handed over as one `Place`, by whoever can read it; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sidecar.engines.adapters import of_name
from sidecar.engines.argv import hints_from_argv
from sidecar.engines.config_file import config_hints
from sidecar.engines.protocol import EMPTY, Hint

LAUNCHER = "launcher"


@dataclass(frozen=True, slots=True)
class Place:
    """What one place tells; empty where it tells nothing. `name` becomes the source of each fact.

    `argv` and `environment` are the engine's, `transfer` is what is known of its --kv-transfer-config
    where argv has a digest of it, `file` of the file that it names for more;
    `sm` is an SM version such as `sm90`, `products` are names of its GPUs.
    """

    name: str
    argv: tuple[str, ...] = ()
    file: Mapping[str, object] = field(default_factory=lambda: EMPTY)
    environment: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    transfer: Mapping[str, object] = field(default_factory=lambda: EMPTY)
    sm: str = ""
    products: tuple[str, ...] = ()


def launcher_place(facts: Mapping[str, object]) -> Place:
    """Make a place of the launcher's facts.json; what isn't as it should be is left out."""
    argv, environment, gpus = facts.get("argv"), facts.get("environment"), facts.get("gpus")
    transfer, file = facts.get("kv_transfer"), facts.get("argv_file")
    whole = isinstance(argv, list) and isinstance(environment, Mapping)
    return Place(
        LAUNCHER,
        tuple(map(str, argv)) if whole and isinstance(argv, list) else (),
        file if isinstance(file, Mapping) else EMPTY,
        environment=dict(environment) if whole and isinstance(environment, Mapping) else EMPTY,
        transfer=transfer if isinstance(transfer, Mapping) else EMPTY,
        products=tuple(str(gpu.get("name") or "") for gpu in gpus if isinstance(gpu, Mapping))
        if isinstance(gpus, list)
        else (),
    )


def hints_of(places: Iterable[Place]) -> dict[str, Hint]:
    """Read the facts that the places tell by argv and environment; of two that tell the same, the first counts."""
    found: dict[str, Hint] = {}
    for place in places:
        hints = _with_file(hints_from_argv(place.argv, place.environment), place.file)
        if place.transfer:
            hints.setdefault("kv_transfer", Hint(dict(place.transfer), "argv --kv-transfer-config"))
        for name, hint in hints.items():
            # The launcher sees the command as it runs; of other places it is said whose word it is.
            told = hint if place.name == LAUNCHER else replace(hint, source=f"{place.name}, {hint.source}")
            found.setdefault(name, told)
    return found


def _with_file(hints: dict[str, Hint], file: Mapping[str, object]) -> dict[str, Hint]:
    """Add what the file tells that the command names; which of both counts, each engine declares."""
    told = hints.get("engine")
    if told is None:
        # What a file of an unknown program means is unknown, too.
        return hints
    name = str(told.value)
    more = config_hints(file, name)
    return {**hints, **more} if of_name(name).config_counts else {**more, **hints}
