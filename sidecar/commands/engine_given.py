"""What a command is told of an engine: by flags, by a file of facts, or by asking one that runs; and its profile.

Nothing is sent to an engine that is work for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar.errors import UsageError

if TYPE_CHECKING:
    from sidecar.engines.protocol import EngineFacts, Hint
    from sidecar.warmup.choice import Choice

FACTS_LIMIT = 4 * 1024 * 1024
#: Flags that name a fact of the engine, with what a wrong one would be told.
_FLAGS: tuple[tuple[str, str, type, str], ...] = (
    ("max_model_len", "TOKENS", int, "Longest request of the engine."),
    ("max_num_batched_tokens", "TOKENS", int, "Tokens the engine works on in one step."),
    ("max_num_seqs", "N", int, "Requests the engine works on at once."),
    ("kv_tokens", "TOKENS", int, "What the engine's KV cache holds."),
    ("kv_cache_dtype", "TYPE", str, "Type of the KV cache, such as fp8_e4m3."),
    ("quantization", "SCHEME", str, "Scheme of the weights, such as fp8, nvfp4 or none."),
    ("role", "ROLE", str, "Role of the engine: both, prefill or decode."),
    ("task", "TASK", str, "What the engine does: generate, embed, score, classify or transcription."),
    ("dp_ranks", "N", int, "Data-parallel ranks behind the engine's port."),
    ("speculative_tokens", "N", int, "Tokens the engine drafts at once."),
    ("engine_version", "VERSION", str, "Version of the engine, such as 0.32.0."),
)
_WORDS = {
    "role": ("both", "prefill", "decode"),
    "task": ("generate", "embed", "score", "classify", "transcription"),
}


@dataclass(frozen=True)
class Given:
    """What is known of an engine and its GPU; `asked` says how."""

    facts: EngineFacts
    sm: str
    asked: str


def engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags that say for which engine: `--sm`, `--url`, `--facts`, and one for each limit."""
    for name, metavar, kind, text in reversed(_FLAGS):
        chosen: Any = click.Choice(_WORDS[name]) if name in _WORDS else click.IntRange(min=1) if kind is int else kind
        function = click.option(f"--{name.replace('_', '-')}", name, type=chosen, metavar=metavar, help=text)(function)
    file = click.option(
        "--facts", "facts_file", metavar="FILE", help="Facts of an attempt, as the launcher writes them (facts.json)."
    )
    key = click.option("--api-key-file", metavar="FILE", help="File with the engine's API key. [WARMUP_API_KEY_FILE]")
    url = click.option("--url", metavar="URL", help="Ask the engine that runs there for its limits.")
    sm = click.option("--sm", metavar="SM", help="SM version, such as sm90, or cpu. [WARMUP_SM]")
    return sm(url(key(file(function))))


def given(arguments: Mapping[str, Any]) -> Given:
    """Put together what the flags say; raises UsageError for a file that can't be read, EngineError for no engine."""
    from sidecar.commands.settings_flags import loaded

    settings = loaded({}).settings
    hints, sm, read = _from_file(arguments.get("facts_file"))
    sm = checked_sm(arguments.get("sm") or settings.sm or sm)
    url = arguments.get("url")
    if url:
        from sidecar.commands.engine_port import address_of

        url = address_of(url)
        facts = asyncio.run(_ask(url, arguments.get("api_key_file") or settings.api_key_file, hints))
        asked = f"{url} was asked{read and ', after ' + read}"
    else:
        from sidecar.engines.server_facts import facts_of_hints

        facts = facts_of_hints(hints)
        asked = read or "nothing but the flags and defaults"
    return Given(_with_flags(facts, arguments), sm, asked)


def chosen(name: str, found: Given) -> Choice:
    """Take the profile of this name or path; with `auto` the one that fits. Raises ProfileError."""
    from sidecar.warmup.choice import Choice, choose_profile
    from sidecar.warmup.profiles import load_profile

    if name != "auto":
        return Choice(load_profile(name), f"Profile {name}, as asked for.")
    return choose_profile(found.sm, found.facts)


def checked_sm(sm: str) -> str:
    """Give the SM version of `--sm`; empty stays empty. Raises UsageError."""
    from sidecar.config import Settings

    try:
        return Settings.model_validate({"sm": sm}).sm
    except ValueError:
        raise UsageError(f"--sm {sm} is no SM version; give one such as sm90 or sm120, or cpu.") from None


def _from_file(name: str | None) -> tuple[dict[str, Hint], str, str]:
    """Read the launcher's facts: command line, environment and GPUs of one start of the engine."""
    if not name:
        return {}, "", ""
    from sidecar import files
    from sidecar.engines.outside import hints_of, launcher_place
    from sidecar.errors import FileUnreadable
    from sidecar.gpu.sm import from_product

    try:
        found = files.read_json(Path(name), FACTS_LIMIT)
    except FileUnreadable as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{name} can't be read ({error.strerror}); check the path.") from error
    argv, environment = found.get("argv"), found.get("environment")
    if not isinstance(argv, list) or not isinstance(environment, dict):
        raise UsageError(f"{name} has no `argv` and `environment`; give the facts.json of an attempt.")
    gpus = found.get("gpus")
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    sm = next(
        (sm for each in names if (sm := from_product(each))), "" if names or not isinstance(gpus, list) else "cpu"
    )
    return hints_of([launcher_place(found)]), sm, f"reading {name}"


async def _ask(url: str, key_file: Path | str | None, hints: Mapping[str, Hint]) -> EngineFacts:
    from sidecar.engines.declaration import Connect
    from sidecar.engines.detect import AnyEngine

    def key() -> str | None:
        try:
            return Path(key_file).read_text(encoding="utf-8").strip() if key_file else None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{key_file} can't be read ({error}); it must hold the engine's API key.") from error

    found = key()
    engine = AnyEngine(Connect(url, lambda: found, time.monotonic, hints=hints))
    try:
        return await engine.facts()
    finally:
        await engine.close()


def _with_flags(facts: EngineFacts, arguments: Mapping[str, Any]) -> EngineFacts:
    """Lay flags over what is known: whoever gives one asks what would be."""
    from sidecar.engines.weights import scheme_of_name

    changes: dict[str, Any] = {}
    sources = dict(facts.sources)
    for flag, *_ in _FLAGS:
        value = arguments.get(flag)
        if value is None:
            continue
        name = {"engine_version": "version", "task": "tasks"}.get(flag, flag)
        changes[name] = (value,) if flag == "task" else value
        sources[name] = f"flag --{flag.replace('_', '-')}"
    if "quantization" in changes:
        changes["weights"] = scheme_of_name(changes["quantization"]) or changes["quantization"]
        sources["weights"] = sources["quantization"]
    return dataclasses.replace(facts, **changes, sources=sources)
