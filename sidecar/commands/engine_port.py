"""An engine's port as one-shot commands use it: flags, a client, what the engine is, and whether it sleeps.

No sidecar is asked and no store is used; what is sent is the business of the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from sidecar import config
from sidecar.commands.settings_flags import loaded, settings_options
from sidecar.errors import EngineAsleep, UsageError, WarmupError

if TYPE_CHECKING:
    from sidecar.engines.protocol import Engine, EngineFacts

#: How one-shot commands call what sentences of the daemon name by its variable.
_FLAGS = {"WARMUP_ENGINE_URL": "--url", "WARMUP_WARM_BUDGET_S": "--budget"}
_VARIABLE = re.compile(r"\bWARMUP_([A-Z_]+[A-Z])\b(=?)")
#: Time between two looks at whether the engine sleeps. Seconds.
LOOK_S = 2.0


def engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--url` and the flags that say how to talk to an engine and which profile is for it."""
    function = settings_options("api_key_file", "model", "profile", "sm", "request_timeout_s")(function)
    return click.option(
        "--url",
        metavar="URL",
        default=None,
        help=f"Where the engine answers. [WARMUP_ENGINE_URL; default: {config.Settings.model_fields['engine_url'].default}]",
    )(function)


def settings_for(url: str | None, arguments: Mapping[str, Any]) -> config.Loaded:
    """Merge flags, environment and file. Raises UsageError or SettingsError for what can't be used."""
    flags = {**arguments, "engine_url": None if url is None else address_of(url)}
    found = loaded(flags)
    names = [name for name in flags if name in config.Settings.model_fields]
    wrong = [
        each
        for each in found.problems
        if any(re.search(rf"\b({name}|{config.variable(name)})\b", each.sentence) for name in names)
    ]
    with flags_for_variables():
        config.Loaded(found.settings, tuple(wrong), found.sources).or_raise()
    return found


def address_of(url: str, option: str = "--url") -> str:
    """Take the address people copy from a client's settings, with /v1 at its end, too. Raises UsageError about the option."""
    plain = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(plain)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.path
        usable = usable and not (parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            f"{option} is not usable: give scheme, host and port and nothing else, as in http://127.0.0.1:8000."
        )
    return plain


@contextlib.contextmanager
def flags_for_variables() -> Iterator[None]:
    """Write flags instead of variables into the sentences of errors: that is what this command is called with."""
    try:
        yield
    except WarmupError as error:
        raise type(error)(in_flags(str(error))) from error


def in_flags(sentence: str) -> str:
    """Write flags instead of variables into a sentence."""
    return _VARIABLE.sub(_flag, sentence)


def _flag(found: re.Match[str]) -> str:
    name = found[0].rstrip("=")
    field = found[1].lower()
    if name not in _FLAGS and field not in config.Settings.model_fields:
        return found[0]
    return _FLAGS.get(name, "--" + field.replace("_", "-")) + (" " if found[2] else "")


@dataclass
class Connected:
    """An engine that answers, what it says of itself, and its state, looked at every other second."""

    url: str
    engine: Engine
    facts: EngineFacts
    state: str = "up"

    def asleep(self) -> bool:
        """Say whether the engine slept at the last look."""
        return self.state == "asleep"

    @property
    def name(self) -> str:
        """Name the engine with its version, such as `vllm 0.25.1`."""
        return f"{self.facts.engine} {self.facts.version or ''}".strip()


@contextlib.asynccontextmanager
async def connected(settings: config.Settings) -> AsyncIterator[Connected]:
    """Connect to any server with OpenAI's endpoints, and watch whether it sleeps.

    Raises UsageError for a key file that can't be read, EngineAsleep, or another EngineError.
    """
    from sidecar.engines.declaration import Connect
    from sidecar.engines.detect import make_engine, recognised
    from sidecar.engines.watcher import EngineWatcher

    key = _key(settings.api_key_file)
    # The word of whoever names a URL is taken: it need not look like an engine.
    named = settings.engine
    if named == "auto":
        named = await recognised(Connect(settings.engine_url, lambda: key, time.monotonic)) or "vllm"
    engine = make_engine(settings.model_copy(update={"engine": named}), lambda: key, time.monotonic)
    watching: asyncio.Task[None] | None = None
    try:
        with flags_for_variables():
            facts = await engine.facts()
            if (await engine.stats()).asleep:
                raise EngineAsleep(f"The engine at {settings.engine_url} is asleep; wake it up first (POST /wake_up).")
        found = Connected(settings.engine_url, engine, facts)
        watcher = EngineWatcher(engine, clock=time.monotonic, sleep=asyncio.sleep, poll_s=LOOK_S, metrics_s=LOOK_S)
        watching = asyncio.create_task(watcher.run(lambda seen: setattr(found, "state", seen.state)))
        yield found
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching})
        await engine.close()


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"--api-key-file {path} can't be read ({why}).") from error
    if not key:
        raise UsageError(f"--api-key-file {path} is empty; it must hold the engine's key.")
    return key


async def sm_of(settings: config.Settings) -> tuple[str, str]:
    """Give the SM version and where it is from; NVML counts only for an engine on this machine."""
    from sidecar.errors import GpuUnavailable
    from sidecar.gpu.reader import read_once

    if settings.sm:
        return settings.sm, "as given"
    if urlsplit(settings.engine_url).hostname not in ("127.0.0.1", "localhost", "::1"):
        return "", ""
    try:
        return (await read_once()).sm, "NVML of this machine"
    except GpuUnavailable:
        return "", ""
