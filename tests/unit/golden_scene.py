"""A scripted engine that speaks, and what golden tests do with it: record, break something, check again.

No test lives here.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from sidecar.engines.protocol import EngineFacts
from sidecar.engines.vllm import VllmEngine
from sidecar.golden import GoldenResult, GoldenSet, PromptSet, check, record
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_script import Script

PASSAGE = "The mill stands by the river and has not turned since the flood of the year before last. " * 3


def prompts(count: int = 8, **more: Any) -> PromptSet:
    """Make so many prompts, and four that share a passage."""
    single = [{"name": f"p{at}", "text": f"Tell me about number {at} and", "max_tokens": 12} for at in range(count)]
    shared = [{"name": f"s{at}", "text": f"Question {at}:", "passage": "mill", "max_tokens": 12} for at in range(4)]
    return PromptSet.model_validate({"passages": {"mill": PASSAGE}, "prompts": single + shared, **more})


@dataclass
class Scene:
    """One engine with a client."""

    fake: FakeEngine
    engine: VllmEngine

    async def facts(self) -> EngineFacts:
        """Ask the engine what it is."""
        return await self.engine.facts()

    async def record(self, chosen: PromptSet | None = None, deadline_s: float = 60.0, **more: Any) -> GoldenSet:
        """Record with the engine as it is."""
        return await record(
            self.engine, await self.facts(), chosen or prompts(), salt=secrets.token_hex(4), deadline_s=deadline_s,
            recorded_at="2026-01-01T00:00:00Z", label="trusted", **more,
        )  # fmt: skip

    async def check(self, golden: GoldenSet, deadline_s: float = 60.0, **more: Any) -> GoldenResult:
        """Check the engine as it is now."""
        facts = more.pop("facts", None) or await self.facts()
        return await check(self.engine, facts, golden, salt=secrets.token_hex(4), deadline_s=deadline_s, **more)


@contextlib.asynccontextmanager
async def scene(**script: Any) -> AsyncIterator[Scene]:
    """Start a scripted engine that speaks."""
    async with FakeEngine(Script(**{"speaks": True, "vocab_size": 4096, "dev_mode": True, **script})) as fake:
        engine = VllmEngine(fake.url, api_key=lambda: None, clock=asyncio.get_running_loop().time)
        try:
            yield Scene(fake, engine)
        finally:
            await engine.close()
