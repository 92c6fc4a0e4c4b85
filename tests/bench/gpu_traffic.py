"""Live traffic for an engine on a GPU: fixed cases, repeated, and a random mix; every first token timed, every new kernel seen.

Which process serves, and whether it was warmed, is not known here.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from sidecar.caches.families import is_kernel, stored_families

REPETITIONS = 3
MANY = 128
#: Times that each connection is used before the cases; its first use costs client and server more than later ones.
OPENED = 2
REQUEST_S = 300.0


@dataclass(frozen=True)
class Case:
    """`count` requests at once of `tokens` prompt tokens, of which `shared` are the same for all; `fields` go in as they are."""

    name: str
    count: int
    tokens: int
    output: int = 16
    shared: int = 0
    fields: dict[str, Any] = field(default_factory=dict)


_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
#: What stalled an H200 after `/health` said 200, and the rest of the same list.
CASES = (
    Case("1 x 16", 1, 16),
    Case("1 x 512", 1, 512),
    Case("1 x 2048", 1, 2048),
    Case("1 x 8192", 1, 8192),
    Case("1 x 30000", 1, 30_000),
    Case("sampling", 1, 64, fields={"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 1}),
    Case("penalties", 1, 64, fields={"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}),
    Case("log-probabilities", 1, 64, fields={"logprobs": 5}),
    Case("structured output", 1, 64, fields={"response_format": _SCHEMA}),
    Case("2 x 512", 2, 512),
    Case("32 x 512", 32, 512),
    Case("128 x 256", 128, 256),
    Case("256 x 128", 256, 128),
    Case("16 x shared 8k prefix", 16, 8192 + 64, shared=8192),
)


@dataclass
class Felt:
    """What clients felt of one case or pass: time to first token of each request in seconds, and what compiled meanwhile."""

    name: str
    first: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Give figures in seconds."""
        ordered = sorted(self.first)
        at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4) if ordered else None  # noqa: E731
        return {
            "case": self.name, "requests": len(self.first), "median_s": at(0.5), "p99_s": at(0.99), "worst_s": at(1.0),
            "failed": len(self.failed), "first_failure": self.failed[:1], "kernels": self.kernels,
        }  # fmt: skip


class Kernels:
    """Sees which kernels are new in a live cache since it last looked."""

    def __init__(self, live: Path) -> None:
        self._live = live
        self._known: set[str] = set()

    def new(self) -> list[str]:
        """Name the kernels that appeared since the last call, `family/path`."""
        found = set[str]()
        for family in stored_families():
            root = self._live / family.directory
            for path in root.rglob("*") if root.is_dir() else ():
                relative = path.relative_to(root).as_posix()
                if is_kernel(family, relative):
                    found.add(f"{family.name}/{relative}")
        fresh = sorted(found - self._known)
        self._known |= found
        return fresh


class Traffic:
    """Sends requests to one engine as its users would. `longest` is the model's length in tokens."""

    def __init__(self, url: str, model: str, live: Path, longest: int, most: int, vocabulary: int, seed: int) -> None:
        self._url, self._model, self._longest, self._most = url, model, longest, most
        self._vocabulary = vocabulary
        self._seed = seed
        self._rng = random.Random(seed)
        self.kernels = Kernels(live)

    async def cases(self) -> list[dict[str, Any]]:
        """Send every case that fits the engine three times over, connections open already; give each repetition's figures.

        Many requests at once go out once more over new connections: what these cost is no kernel's fault.
        """
        rows = []
        fitting = [each for each in CASES if each.tokens + each.output <= self._longest and each.count <= self._most]
        async with self._session() as session:
            await self._open(session, max(each.count for each in fitting))
            for case in fitting:
                for number in range(REPETITIONS):
                    rows.append(await self._pass(session, f"{case.name}, {number + 1}", [self._bodies(case)]))
        for case in (each for each in fitting if each.count >= MANY):
            async with self._session() as session:
                rows.append(await self._pass(session, f"{case.name}, new connections", [self._bodies(case)]))
        return rows

    async def _open(self, session: aiohttp.ClientSession, count: int) -> None:
        async def ask() -> None:
            async with session.get(f"{self._url}/health") as answer:
                await answer.read()

        for _ in range(OPENED):
            await asyncio.gather(*(ask() for _ in range(count)))

    async def mix(self, requests: int, passes: int) -> list[dict[str, Any]]:
        """Send a random mix of lengths and of requests at once; each further pass has the same shapes and other prompts."""
        shapes = self._shapes(requests)
        rows = []
        async with self._session() as session:
            for number in range(passes):
                waves = [[self._body(tokens, output, {}) for tokens, output in wave] for wave in shapes]
                rows.append(await self._pass(session, f"random mix, pass {number + 1}", waves))
        return rows

    def _shapes(self, requests: int) -> list[list[tuple[int, int]]]:
        rng, left, waves = random.Random(self._seed), requests, []
        while left > 0:
            count = min(left, self._most, round(math.exp(rng.uniform(0, math.log(64)))))
            longest = min(self._longest - 64, 60_000 // count)
            wave = [
                (round(math.exp(rng.uniform(math.log(4), math.log(longest)))), rng.randint(1, 48)) for _ in range(count)
            ]
            waves.append(wave)
            left -= count
        return waves

    async def _pass(
        self, session: aiohttp.ClientSession, name: str, waves: Sequence[Sequence[dict[str, Any]]]
    ) -> dict[str, Any]:
        self.kernels.new()
        felt = Felt(name)
        for wave in waves:
            await asyncio.gather(*(self._one(session, body, felt) for body in wave))
        felt.kernels = self.kernels.new()
        print(json.dumps(felt.to_json() | {"kernels": len(felt.kernels)}), flush=True)
        return felt.to_json()

    def _bodies(self, case: Case) -> list[dict[str, Any]]:
        shared = self._prompt(case.shared)
        return [self._body(case.tokens - case.shared, case.output, case.fields, shared) for _ in range(case.count)]

    def _body(self, tokens: int, output: int, fields: dict[str, Any], shared: Sequence[int] = ()) -> dict[str, Any]:
        prompt = [*shared, *self._prompt(tokens)]
        plain = {"model": self._model, "prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True}
        return plain | {"stream": True} | fields

    def _prompt(self, tokens: int) -> list[int]:
        return [self._rng.randrange(10, self._vocabulary) for _ in range(tokens)]

    async def _one(self, session: aiohttp.ClientSession, body: dict[str, Any], felt: Felt) -> None:
        began, first, said = time.monotonic(), None, ""
        try:
            async with session.post(f"{self._url}/v1/completions", json=body) as answer:
                async for line in answer.content:
                    if first is None and line.startswith(b"data: {") and b'"choices"' in line:
                        first = time.monotonic() - began
                    elif first is None and line.strip():
                        said = line.decode(errors="replace")[:300]
                if answer.status != 200 or first is None:
                    felt.failed.append(f"status {answer.status}: {said}")
                    return
        except (aiohttp.ClientError, TimeoutError) as error:
            felt.failed.append(repr(error))
            return
        felt.first.append(first)

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=REQUEST_S), read_bufsize=1 << 20
        )
