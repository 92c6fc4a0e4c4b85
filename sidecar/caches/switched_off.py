"""Caches that the engine's own command or environment turns off or puts elsewhere, so that laying them down is for nothing.

Only facts are looked at; whether a restored cache was used is measured in `effectiveness`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from sidecar.caches.normalise import arguments, words_of

#: Variables that turn caches off, and the families of those: vLLM 0.33 envs.py, torch 2.13 _inductor/config.py, Triton 3.8
#: knobs.py, the CUDA programming guide, nvidia-cutlass-dsl 4.8.0 and quack-kernels 0.6.5.
OFF: Mapping[str, tuple[str, ...]] = {
    "VLLM_DISABLE_COMPILE_CACHE": ("vllm_compile",),
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": ("inductor", "vllm_compile"),
    "TRITON_ALWAYS_COMPILE": ("triton",),
    "CUDA_CACHE_DISABLE": ("nv",),
    "CUTE_DSL_DISABLE_FILE_CACHING": ("cute_dsl",),
}
#: The same by being off themselves.
ON: Mapping[str, tuple[str, ...]] = {"QUACK_CACHE_ENABLED": ("quack",)}
_NO = frozenset({"0", "false", "off", "no", "n", "f"})
_OPTION = "--compilation-config"


def reasons(facts: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Give families of which nothing is used, and in one clause why. Facts of unexpected shape say nothing."""
    environment = facts.get("environment")
    given = environment if isinstance(environment, Mapping) else {}
    for table, off in ((OFF, False), (ON, True)):
        for name, families in table.items():
            value = str(given.get(name) or "").strip()
            if value and (value.lower() in _NO) == off:
                yield families, f"{name} is set to {value} in the engine's container, which turns that cache off"
    place = _compile_cache(facts)
    if place and not _within(place, _root(facts)):
        yield ("vllm_compile",), f"{_OPTION} has {place} for its cache_dir, so the engine looks there"


def _compile_cache(facts: Mapping[str, Any]) -> str:
    """Find where vLLM's compile cache is put by an argument (0.33 config/compilation.py, `cache_dir`)."""
    config, rest = None, arguments(words_of(facts.get("argv"))).get(_OPTION, "")
    try:
        # An option that is given twice counts as vLLM takes it: the last one.
        while rest:
            config, end = json.JSONDecoder().raw_decode(rest)
            rest = rest[end:].lstrip()
    except (ValueError, RecursionError):
        return ""
    place = config.get("cache_dir") if isinstance(config, dict) else None
    return place if isinstance(place, str) else ""


def _root(facts: Mapping[str, Any]) -> str:
    """Give where vLLM's caches are put by its variable, as the launcher saw it."""
    places = facts.get("places")
    known = [one for one in (places if isinstance(places, list) else ()) if isinstance(one, Mapping)]
    return next((str(one.get("path")) for one in known if one.get("what") == "VLLM_CACHE_ROOT"), "")


def _within(path: str, root: str) -> bool:
    return bool(root) and (os.path.normpath(path) + "/").startswith(os.path.normpath(root) + "/")
