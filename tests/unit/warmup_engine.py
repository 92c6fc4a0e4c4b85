"""An engine in the test's own process, on virtual time, for the unit tests of warm-up.

No HTTP: what the client makes of HTTP is tested in the engines' tests, and warm-up against a real server in
`test_warmup_on_http.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from typing import Any

from sidecar.engines.protocol import (
    Completion,
    CompletionRequest,
    EngineFacts,
    EngineStats,
    Health,
    Hints,
)
from sidecar.warmup.evidence import Evidence
from sidecar.warmup.profiles import Profile

FACTS = EngineFacts(
    engine="vllm",
    version="0.32.0",
    model="m",
    max_model_len=4096,
    max_num_batched_tokens=1024,
    max_num_seqs=64,
    vocab_size=32000,
    block_size=16,
    kv_blocks=4096,
    chat=True,
)
WORDS = [
    "the",
    "river",
    "ran",
    "under",
    "old",
    "stone",
    "bridges",
    "while",
    "people",
    "at",
    "market",
    "talked",
    "about",
    "rain",
    "and",
    "early",
    "bread",
]


def now() -> float:
    """Give the loop's time, which is virtual under looptime."""
    return asyncio.get_running_loop().time()


def length(request: CompletionRequest) -> int:
    """Give the prompt's length in tokens, of text in words."""
    if isinstance(request.prompt, tuple):
        return len(request.prompt)
    return len((request.prompt or "hello there").split())


class StandInEngine:
    """Answers after `ttft_s`, then a token each `token_s`. `answer` may give another completion."""

    name = "vllm"

    def __init__(self, *, ttft_s: float = 0.02, token_s: float = 0.01) -> None:
        self.ttft_s, self.token_s = ttft_s, token_s
        self.requests: list[CompletionRequest] = []
        self.arrived: list[tuple[float, int]] = []
        self.in_flight = 0
        self.busiest = 0
        self.identity = "1.0"
        self.state: Any = "up"
        self.answer: Callable[[CompletionRequest], Completion | None] = lambda _: None
        self.stall: Callable[[CompletionRequest], float] = lambda _: 0.0
        self.text: Callable[[CompletionRequest], str] = some_words

    async def health(self) -> Health:
        return Health(self.state, 200 if self.state == "up" else None, 0.001, f"health is {self.state}")

    async def facts(self) -> EngineFacts:
        return FACTS

    async def stats(self) -> EngineStats:
        return EngineStats(identity=self.identity)

    def use_hints(self, hints: Hints) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def complete(self, request: CompletionRequest) -> Completion:
        self.requests.append(request)
        self.arrived.append((now(), length(request)))
        self.in_flight += 1
        self.busiest = max(self.busiest, self.in_flight)
        try:
            return await self._complete(request)
        finally:
            self.in_flight -= 1

    async def _complete(self, request: CompletionRequest) -> Completion:
        other = self.answer(request)
        if other is not None:
            return other
        started, wait = now(), self.ttft_s + self.stall(request)
        if wait > request.deadline_s:
            await asyncio.sleep(request.deadline_s)
            return failed("timed_out", "no complete answer in time", None)
        await asyncio.sleep(wait)
        if request.on_first_token is not None:
            request.on_first_token()
        await asyncio.sleep(self.token_s * (request.max_tokens - 1))
        return Completion(
            ok=True,
            status=200,
            ttft_s=wait if request.stream else None,
            total_s=now() - started,
            text=self.text(request),
            tokens=request.max_tokens,
            prompt_tokens=length(request),
            finish_reason="length",
        )


def some_words(request: CompletionRequest) -> str:
    """Write words that differ from request to request."""
    rng = random.Random(str((request.prompt, request.extra.get("seed"))))
    return " ".join(rng.choice(WORDS) for _ in range(request.max_tokens))


def failed(kind: Any, error: str, status: int | None) -> Completion:
    """Make a completion that went wrong."""
    return Completion(ok=False, status=status, ttft_s=None, total_s=0.0, error=error, error_kind=kind)


def answered(request: CompletionRequest) -> Completion:
    """Make a completion that came at once."""
    return Completion(ok=True, status=200, ttft_s=0.0, total_s=0.0, text="and so it went", tokens=request.max_tokens)


class KernelModel:
    """Compiles on the first visit of a key, which stalls the request; also the witness that reports it."""

    def __init__(
        self, key: Callable[[CompletionRequest], object], known: Collection[object] = (), stall_s: float = 3.0
    ) -> None:
        self._key = key
        self._stall_s = stall_s
        self.known: set[object] = set(known)
        self.blind = ""
        self.empty = False
        self.names: list[object] = []
        self._new = 0

    def stall(self, request: CompletionRequest) -> float:
        """Give the seconds this request waits for a compiler."""
        key = self._key(request)
        if key is None or key in self.known:
            return 0.0
        self.known.add(key)
        self.names.append(key)
        self._new += 1
        return self._stall_s

    def mark(self) -> None:
        """Files never come late here."""

    async def baseline(self) -> Evidence:
        self._new = 0
        return Evidence(empty=self.empty, blind=self.blind)

    async def collect(self, *, thorough: bool = False) -> Evidence:
        new, self._new = self._new, 0
        names = tuple(f"triton/{each}" for each in self.names[-new:]) if new else ()
        return Evidence({"triton": new} if new else {}, names=names, empty=self.empty, blind=self.blind)


def nothing_compiles(request: CompletionRequest) -> object:
    """Be the key of an engine without kernels."""
    return None


def profile(*steps: dict[str, Any], **fields: Any) -> Profile:
    """Make a profile of these steps; small, without draws and search unless told otherwise."""
    defaults: dict[str, Any] = {
        "description": "test",
        "name": "test",
        "converge": {"random_draws": 0},
        "search": {"enabled": False},
    }
    return Profile.model_validate({**defaults, "steps": list(steps), **fields})
