"""`profiles learn`: a profile whose traffic mix is what users send, read from histograms that are there anyway.

Where it is read is the business of `traffic_sources.py`, what is written that of `learned_text.py`.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar.commands.made_files import force_option, write_new
from sidecar.commands.numbers import Number
from sidecar.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from sidecar.commands.traffic_sources import Found

SOURCES = ("prometheus", "engine", "file", "live_cache")
#: Extended where nothing tells the GPU: what the profiles of all GPUs extend.
ANY_GPU = "gpu"


@click.command("learn")
@click.option("--prometheus", metavar="URL", help="Ask this Prometheus, which scrapes the engines.")
@click.option("--query-window", metavar="7d", default="7d", show_default=True, help="How far back Prometheus looks.")
@click.option(
    "--selector", metavar="LABELS", default="", help="""Which engines, as in 'namespace="chat", model_name="m"'."""
)
@click.option("--bearer-token-file", metavar="FILE", type=click.Path(path_type=Path), help="Token for Prometheus.")
@click.option("--engine", metavar="URL", help="Ask a running engine for what it counted since it started.")
@click.option("--api-key-file", metavar="FILE", type=click.Path(path_type=Path), help="The engine's API key.")
@click.option("--watch", metavar="SECONDS", type=Number(0, 86400), default=10, show_default=True,
              help="Count for so long how many requests the engine runs.")  # fmt: skip
@click.option("--file", metavar="FILE", type=click.Path(path_type=Path), help="Read a page of an engine's metrics.")
@click.option("--live-cache", metavar="DIR", type=click.Path(path_type=Path), help="Take the record of the daemon.")
@click.option(
    "--max-model-len", metavar="TOKENS", type=click.IntRange(1, 1 << 24), help="Longest request of the engine."
)
@click.option("--sm", metavar="SM", default=None, help="Extend the shipped profile for this SM version, such as sm90.")
@click.option("--extends", metavar="NAME", default=None, help="Extend this profile. [default: by --sm, else gpu]")
@click.option("--output", metavar="FILE", default=None, help="Write the profile to FILE, else print it.")
@force_option
def command(**arguments: Any) -> int:
    """Make a profile whose traffic mix is what users send: lengths of prompts and outputs, and requests at once.

    Read from the engines' own histograms, in exactly one of --prometheus, --engine, --file and --live-cache. Prompts are
    never seen, only counted. The profile is for review: each distribution stands in it with a plot.

    \b
    Examples:
      warmup-sidecar profiles learn --prometheus http://127.0.0.1:9090 --selector 'model_name="m"' --sm sm90 --output mine.yaml
      warmup-sidecar profiles learn --engine http://127.0.0.1:8000 --watch 60
      warmup-sidecar profiles learn --live-cache /var/cache/engine --extends sm90-fp8-kv
    """
    from sidecar.commands.learned_text import Told, profile_text
    from sidecar.warmup.profiles import load_profile

    given = [name for name in SOURCES if arguments[name] is not None]
    if len(given) != 1:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in SOURCES)
        raise UsageError(f"Give exactly one of {flags}.")
    extends = arguments["extends"] or _shipped_for(arguments["sm"])
    load_profile(extends)
    found = _found(given[0], arguments)
    write_new(
        [(arguments["output"], profile_text(found.mix, extends, Told(found.source, found.notes)))],
        force=arguments["force"],
    )
    return EXIT_OK


def _shipped_for(sm: str | None) -> str:
    from sidecar.commands.engine_given import checked_sm
    from sidecar.warmup.choice import choose_profile

    return choose_profile(checked_sm(sm)).profile.name if sm else ANY_GPU


def _found(source: str, arguments: dict[str, Any]) -> Found:
    from sidecar.commands import traffic_sources

    longest = arguments["max_model_len"]
    if source == "file":
        return traffic_sources.from_file(arguments["file"], longest)
    if source == "live_cache":
        return traffic_sources.from_live_cache(arguments["live_cache"])
    return asyncio.run(_asked_prometheus(arguments) if source == "prometheus" else _asked_engine(arguments))


async def _asked_prometheus(arguments: dict[str, Any]) -> Found:
    from sidecar.commands.prometheus import Prometheus
    from sidecar.commands.traffic_sources import from_prometheus

    token = _secret(arguments["bearer_token_file"], "--bearer-token-file")
    async with Prometheus(arguments["prometheus"], token) as server:
        return await from_prometheus(
            server, arguments["query_window"], arguments["selector"], arguments["max_model_len"]
        )


async def _asked_engine(arguments: dict[str, Any]) -> Found:
    from sidecar.commands.engine_port import address_of
    from sidecar.commands.traffic_sources import from_engine
    from sidecar.engines.declaration import Connect
    from sidecar.engines.detect import AnyEngine

    url = address_of(arguments["engine"], "--engine")
    key = _secret(arguments["api_key_file"], "--api-key-file")
    engine = AnyEngine(Connect(url, lambda: key or None, time.monotonic))
    try:
        return await from_engine(engine, url, arguments["watch"], arguments["max_model_len"])
    finally:
        await engine.close()


def _secret(path: Path | None, flag: str) -> str:
    if path is None:
        return ""
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{flag} {path} can't be read ({getattr(error, 'strerror', None) or 'it is not text'})."
        ) from error
    if not found or not found.isprintable() or " " in found:
        raise UsageError(f"{flag} {path} holds no token: one line without blanks.")
    return found
