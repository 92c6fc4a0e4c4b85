"""The facts that must agree before a cache may be reused, declared once, and the two keys made of them.

Nothing is collected here: the launcher or the daemon hands in the facts. What is harmless in arguments and
environment is listed in `normalise`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.caches import normalise, privacy, visible_gpus
from sidecar.caches.own_names import own_names

KeyScope = Literal["exact", "toolchain"]
Stored = Literal["value", "value, secrets as digests"]
# 3: JSON in arguments is spelt in one way. A key of another scheme is never found: a miss, which `store explain` tells.
SCHEME = 3
KEY_LENGTH = 32
BOTH: tuple[KeyScope, ...] = ("exact", "toolchain")
EXACT: tuple[KeyScope, ...] = ("exact",)
TOOLCHAIN: tuple[KeyScope, ...] = ("toolchain",)
NONE: tuple[KeyScope, ...] = ()
SECRETS: Stored = "value, secrets as digests"

Facts = Mapping[str, Any]
Values = dict[str, str]


@dataclass(frozen=True)
class Fact:
    """One fact: the scopes whose key it enters, how to read it, how it is stored and shown, and why it matters.

    `read` returns one value by name (the name's part after the fact's own), or nothing when the fact is away.
    """

    name: str
    where: str
    scopes: tuple[KeyScope, ...]
    read: Callable[[Facts, str], Values]
    why: str
    stored: Stored = "value"


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The facts of an engine in stored form (secrets as digests), and the key of each scope."""

    exact: Mapping[str, str]
    toolchain: Mapping[str, str]
    exact_key: str
    toolchain_key: str

    def facts(self, scope: KeyScope) -> Mapping[str, str]:
        """Return the facts that enter a scope's key."""
        return self.exact if scope == "exact" else self.toolchain

    def key(self, scope: KeyScope) -> str:
        """Return a scope's key."""
        return self.exact_key if scope == "exact" else self.toolchain_key


@dataclass(frozen=True)
class Difference:
    """One fact that differs: ours and theirs, None where one side does not have it."""

    fact: str
    ours: str | None
    theirs: str | None

    @property
    def how(self) -> Literal["changed", "missing here", "missing there"]:
        """Tell a fact with another value from one that only one side has."""
        if self.ours is None:
            return "missing here"
        return "missing there" if self.theirs is None else "changed"

    @property
    def is_given(self) -> bool:
        """Say whether somebody chooses this fact; all others are learned, or not, by where the sidecar runs."""
        return self.fact.partition(".")[0] in ("argv", "environment", "compilers", "config_file")

    def said(self, value: str | None) -> str:
        """Put one side's value into words."""
        if value is None:
            return "not given" if self.is_given else "not known"
        return value or ("given without a value" if self.is_given else "empty")

    def __str__(self) -> str:
        return f"{self.fact} is {_short(self.said(self.ours))} here and {_short(self.said(self.theirs))} there"


def fingerprint(facts: Facts, live_cache: str) -> Fingerprint:
    """Compute both keys from a facts.json object. Facts of unexpected shape count as away; never raises."""
    scopes: dict[KeyScope, dict[str, str]] = {"exact": {}, "toolchain": {}}
    for fact in FACTS:
        values = {
            f"{fact.name}.{part}" if part else fact.name: privacy.hidden(part, value)
            if fact.stored != "value"
            else value
            for part, value in fact.read(facts, live_cache).items()
        }
        for scope in fact.scopes:
            scopes[scope].update(values)
    return Fingerprint(
        exact=scopes["exact"],
        toolchain=scopes["toolchain"],
        exact_key=key_of("exact", scopes["exact"]),
        toolchain_key=key_of("toolchain", scopes["toolchain"]),
    )


def key_of(scope: KeyScope, values: Mapping[str, str], scheme: int = SCHEME) -> str:
    """Digest a scope's facts in stored form, so that a stored facts.json can be checked against its key."""
    text = json.dumps({"scheme": scheme, "scope": scope, "facts": dict(values)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def compare(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[Difference]:
    """List the facts that differ, by name."""
    names = sorted(ours.keys() | theirs.keys())
    return [Difference(name, ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)]


def cuda_majors(facts: Facts) -> frozenset[str]:
    """Name the major versions of CUDA that the engine's image has: torch's, and nvcc's; empty when neither is known.

    torch's is the tag of its version (`2.11.0+cu130`), else the version of the one CUDA runtime wheel there is.
    """
    torch = re.search(r"\+cu(\d+)\d$", str(_at(facts, "packages", "torch", "version") or ""))
    runtimes = {
        version.partition(".")[0]
        for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13")
        if (version := str(_at(facts, "packages", name, "version") or ""))
    }
    nvcc = str(_at(facts, "toolchain", "nvcc") or "").partition(".")[0]
    of_torch = {torch[1]} if torch else runtimes
    return frozenset(found for found in (*of_torch, nvcc) if found.isdecimal())


def _short(value: str) -> str:
    return value if len(value) <= 48 else f"{value[:45]}..."


def _at(facts: Facts, *path: str) -> Any:
    found: Any = facts
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _one(*path: str) -> Callable[[Facts, str], Values]:
    def read(facts: Facts, _live_cache: str) -> Values:
        value = _at(facts, *path)
        return {} if value is None or isinstance(value, (Mapping, list)) else {"": str(value)}

    return read


def _variables(facts: Facts) -> dict[str, str]:
    found = _at(facts, "environment")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


def _argv(facts: Facts, _live_cache: str) -> Values:
    return normalise.arguments(normalise.words_of(_at(facts, "argv")), own_names(facts))


def _environment(facts: Facts, _live_cache: str) -> Values:
    return normalise.environment(_variables(facts), own_names(facts))


def _compiler_environment(facts: Facts, _live_cache: str) -> Values:
    return normalise.compiler_environment(_variables(facts), own_names(facts))


def _argument_files(facts: Facts, _live_cache: str) -> Values:
    found = _at(facts, "argv_files")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


def _packages(facts: Facts, _live_cache: str) -> Values:
    found = _at(facts, "packages")
    if not isinstance(found, Mapping):
        return {}
    return {
        str(name): f"{_at(found, name, 'version')} {str(_at(found, name, 'record') or '')[:16]}".strip()
        for name in found
        if isinstance(found[name], Mapping)
    }


def _gpu_names(facts: Facts, _live_cache: str) -> Values:
    """Name each GPU; what is a part of one (MIG) measures other tactics than the whole, which CUDA names apart, too."""
    return {
        str(one.get("index", at)): " ".join([str(one.get("name")), *(f"MIG {part}" for part in _parts(one))])
        for at, one in enumerate(visible_gpus.gpus(facts))
    }


def _parts(gpu: Mapping[str, Any]) -> list[str]:
    found = gpu.get("mig")
    return [str(part) for part in found] if isinstance(found, list) else []


def _gpu_list(facts: Facts, _live_cache: str) -> Values:
    unclear = visible_gpus.unclear(facts)
    return {} if unclear is None else {"": unclear}


def _gpu_kinds(facts: Facts, _live_cache: str) -> Values:
    """Name the set of SM versions where all are known, else the set of GPU names."""
    kinds = {f"SM {one['sm']}" if one.get("sm") else str(one.get("name")) for one in visible_gpus.gpus(facts)}
    return {"": ", ".join(sorted(kinds))} if kinds else {}


def _driver_major(facts: Facts, _live_cache: str) -> Values:
    version = _at(facts, "driver", "version")
    return {"": str(version).split(".")[0]} if version else {}


def _world(facts: Facts, _live_cache: str) -> Values:
    found = facts.get("world")
    if not isinstance(found, Mapping):
        return {}
    address = re.compile(r"(^|_)(addr|address|host|hostname|ip|port|name)($|_)", re.IGNORECASE)
    # What came from options, in small letters and as it was spelt, is among the arguments in one spelling.
    kept = {str(name): value for name, value in found.items() if str(name).isupper() and not address.search(str(name))}
    return {name: str(value) for name, value in kept.items() if value is not None}


def _names(facts: Facts, _live_cache: str) -> Values:
    return {"": ", ".join(own_names(facts))}


def _live_path(_facts: Facts, live_cache: str) -> Values:
    return {"": live_cache.rstrip("/")}


FACTS: tuple[Fact, ...] = (
    Fact("image", "image.digest", BOTH, _one("image", "digest"), "Pins every file of the engine's container at once."),
    Fact(
        "packages",
        "packages",
        BOTH,
        _packages,
        "Version and digest of RECORD: a rebuilt wheel of the same version may hold other sources.",
    ),
    Fact("python", "python.version", BOTH, _one("python", "version"), "Compiled launchers are bound to its ABI."),
    Fact("python_abi", "python.abi", BOTH, _one("python", "abi"), "Compiled launchers are bound to it."),
    Fact("prefix", "python.prefix", BOTH, _one("python", "prefix"), "DeepGEMM and ninja keep absolute include paths."),
    Fact("live_cache", "the live cache's path", BOTH, _live_path, "Triton group files and ninja files hold it."),
    Fact("nvcc", "toolchain.nvcc", BOTH, _one("toolchain", "nvcc"), "CUDA modules are bound to its runtime."),
    Fact("nvcc_path", "toolchain.nvcc_path", BOTH, _one("toolchain", "nvcc_path"), "Part of each ninja command."),
    Fact("cuda_home", "toolchain.cuda_home", BOTH, _one("toolchain", "cuda_home"), "Part of each ninja command."),
    Fact("cxx", "toolchain.cxx", BOTH, _one("toolchain", "cxx"), "Host code and precompiled headers are bound to it."),
    Fact("libc", "libc", BOTH, _one("libc"), "Shared objects are linked against it."),
    Fact("cpu_arch", "cpu.arch", BOTH, _one("cpu", "arch"), "Host code."),
    Fact("cpu_flags", "cpu.flags", EXACT, _one("cpu", "flags"), "Inductor builds host code for exactly this CPU."),
    Fact("gpu_kinds", "gpus[].sm or name", BOTH, _gpu_kinds, "Device code runs on its SM version only."),
    Fact("gpus", "gpus[].name by index", EXACT, _gpu_names, "torch.compile keys by name and embeds device indices."),
    Fact("gpu_list", "CUDA_VISIBLE_DEVICES", BOTH, _gpu_list, "Among unlike GPUs, it decides which kind is used."),
    Fact("driver_major", "driver.version", TOOLCHAIN, _driver_major, "Decides which CUDA runtimes and PTX load."),
    Fact("driver", "driver.version", EXACT, _one("driver", "version"), "Tactics are timed and graphs built on it."),
    Fact(
        "compilers", "environment", TOOLCHAIN, _compiler_environment, "Flags that self-keyed compilers read.", SECRETS
    ),
    Fact("environment", "environment", EXACT, _environment, "Switches that vLLM's own key may leave out.", SECRETS),
    Fact(
        "argv", "argv", EXACT, _argv, "Model, sizes, parallelism, quantisation: the shapes that were compiled.", SECRETS
    ),
    Fact(
        "config_file",
        "argv_files",
        EXACT,
        _argument_files,
        "Arguments that `--config` or `--extra_llm_api_options` names a file for.",
    ),
    Fact("world", "world", EXACT, _world, "Each rank's artifacts are its own."),
    Fact("home", "home", EXACT, _one("home"), "vLLM 0.22 to 0.26 hash paths below it."),
    Fact("cpu_model", "cpu.model", NONE, _one("cpu", "model"), "Shown only: the flags decide."),
    Fact("uid", "uid", NONE, _one("uid"), "Shown only: files are shared through the group."),
    Fact("cwd", "cwd", NONE, _one("cwd"), "Shown only: no key holds it."),
    Fact("names", "names", NONE, _names, "Other names of the pod and its node: taken out of values, too."),
    Fact("hostname", "hostname", NONE, _one("hostname"), "Taken out of values: it differs from pod to pod."),
)
