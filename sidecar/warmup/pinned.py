"""Waits until the engine has let go of the KV cache that warm-up filled: what stays pinned is no room for users.

An engine of role prefill keeps the blocks of a request until a peer has fetched them or their lease ends. Nothing is sent
here, and what follows when they stay pinned is decided by the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.engines.protocol import Engine, EngineFacts, EngineStats
from sidecar.errors import EngineError

#: vLLM reports usage in whole blocks; this many may come and go by themselves.
SLACK_BLOCKS = 2.0
#: The same where the number of blocks isn't known, as a share of the cache.
SLACK = 0.002
LOOK_S = 2.0
#: The engine looks for ended leases between steps, and so a little after they end.
LATE_S = 20.0


@dataclass(frozen=True)
class Pinned:
    """Usage before warm-up traffic, and after it was waited for; ratios 0 to 1. `seconds`: how long that took."""

    before: float
    after: float
    seconds: float

    @property
    def sentence(self) -> str:
        """Tell it to people."""
        return (
            f"After warm-up {self.after:.1%} of the KV cache stayed in use for {self.seconds:.0f} s, {self.before:.1%} "
            "before it: blocks of requests that no peer fetched are pinned. Check that the decode side takes them, shorten the "
            "connector's abort timeout (VLLM_NIXL_ABORT_REQUEST_TIMEOUT), or raise WARMUP_KV_RELEASE_S."
        ).replace("%", " %")


def may_pin(facts: EngineFacts) -> bool:
    """Say whether this engine keeps KV blocks for others after a request has ended."""
    return facts.role in ("prefill", "decode") or bool(facts.kv_connectors)


def patience(facts: EngineFacts, cap_s: float) -> float:
    """Give how long to wait in seconds: until the engine's own lease has ended, where it is known, and `cap_s` at most."""
    return cap_s if facts.kv_release_s is None else min(cap_s, facts.kv_release_s + LATE_S)


async def usage(engine: Engine) -> float | None:
    """Read which share of the KV cache is in use; None when the engine doesn't show it."""
    stats = await _stats(engine)
    return stats.kv_cache_usage if stats else None


async def wait_until_released(
    engine: Engine, before: float | None, wait_s: float, blocks: int | None, clock: Callable[[], float]
) -> Pinned | None:
    """Wait until usage is back where it was before warm-up; give how it stands when it is not after `wait_s` seconds.

    An engine that doesn't show its usage can't be waited for, and None is given.
    """
    started, baseline = clock(), before or 0.0
    slack = SLACK_BLOCKS / blocks if blocks else SLACK
    last: float | None = None
    while True:
        stats = await _stats(engine)
        if stats is not None:
            last = stats.kv_cache_usage
            if last is None or last <= baseline + slack:
                return None
        spent = clock() - started
        if spent >= wait_s:
            return Pinned(baseline, last if last is not None else 1.0, spent)
        await asyncio.sleep(min(LOOK_S, wait_s - spent))


async def _stats(engine: Engine) -> EngineStats | None:
    try:
        return await engine.stats()
    except EngineError:
        return None
