"""What a golden check catches and what it costs, on the real vLLM on CPU.

    python -m tests.bench.bench_golden --root FOLDER [--damages 50] [--clean 200] [--json FILE]

Damages: models whose weights got noise of 3 % to 100 % of their spread in 5 % to all of their tensors, loaded into the running
engine one after another. Clean checks: the trusted weights, while other requests of changing number and length keep the
engine busy. Nothing here is a test, and no number is asserted; `python -m tests --only engine` prepares the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sidecar.engines.protocol import CompletionRequest, EngineFacts
from sidecar.engines.vllm import VllmEngine
from sidecar.golden import GoldenResult, GoldenSet, PromptSet, check, record, starter_prompts
from tests.bench.figures import Figure, machine, save, table
from tests.integration.trusted_engine import TrustedEngine, make_model
from tests.prepare import engine as prepared
from tests.unit.commands import CHECKOUT, environment

PROMPTS = 32
SMALLEST, LARGEST = 0.03, 1.0
FEWEST, ALL = 0.05, 1.0
SMALL_LOAD, LARGE_LOAD = 1, 6
DEADLINE_S = 300.0
WARM_S = 1800.0


@dataclass(frozen=True)
class Damage:
    """One damaged model, and what the check said. `different` answers of `answers` were not those recorded."""

    seed: int
    size: float
    share: float
    outcome: str
    different: int
    near_ties: int
    answers: int
    drift: float
    change: float
    why: str

    @property
    def changed(self) -> bool:
        """Say whether the damage changed what the engine says."""
        return self.different > 0


def some_prompts(count: int = PROMPTS) -> PromptSet:
    """Take so many of the starter set, all kinds of them but pictures."""
    found = starter_prompts()
    usable = [each for each in found.prompts if not each.picture]
    shared = [each for each in usable if each.passage]
    others = [each for each in usable if not each.passage]
    rest = count - len(shared)
    chosen = [others[at * len(others) // rest] for at in range(rest)]
    return found.model_copy(update={"prompts": (*chosen, *shared)})


def damages_of(count: int, first: int = 1) -> list[tuple[int, float, float]]:
    """Draw seed, size and share of so many damages."""
    rng = random.Random(4 + first)

    def between(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    return [
        (seed, round(between(SMALLEST, LARGEST), 3), round(between(FEWEST, ALL), 3))
        for seed in range(first, first + count)
    ]


async def one_check(engine: VllmEngine, facts: EngineFacts, golden: GoldenSet) -> GoldenResult:
    """Check once."""
    return await check(engine, facts, golden, salt=f"bench-{random.getrandbits(64):x}", deadline_s=DEADLINE_S)


async def damage(
    trusted: TrustedEngine,
    engine: VllmEngine,
    facts: EngineFacts,
    golden: GoldenSet,
    folder: Path,
    drawn: list[tuple[int, float, float]],
) -> list[Damage]:
    """Check damaged models one after another."""
    found = []
    for seed, size, share in drawn:
        await asyncio.to_thread(trusted.load, folder / str(seed))
        result = await one_check(engine, facts, golden)
        numbers = result.statistics
        found.append(
            Damage(
                seed, size, share, result.outcome, int(numbers.get("different") or 0), int(numbers.get("near_ties") or 0),
                result.answers, round(result.drift_percent or 0.0, 2), round(numbers.get("mean_change") or 0.0, 4),
                result.sentence,
            )
        )  # fmt: skip
        print(f"{seed}: {found[-1]}", flush=True)
    await asyncio.to_thread(trusted.load, trusted.model)
    return found


@contextlib.asynccontextmanager
async def busy(engine: VllmEngine, facts: EngineFacts) -> AsyncIterator[None]:
    """Keep the engine busy with requests of changing length and number until the block ends."""
    rng = random.Random(11)

    async def one() -> None:
        while True:
            ids = [rng.randrange(300, 3500) for _ in range(rng.randrange(4, 400))]
            request = CompletionRequest(
                prompt=ids, max_tokens=rng.randrange(1, 48), temperature=1.0, stream=False, extra={"ignore_eos": True}
            )
            await engine.complete(request)
            await asyncio.sleep(rng.random() * 0.3)

    running = [asyncio.create_task(one()) for _ in range(rng.randint(SMALL_LOAD, LARGE_LOAD))]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def warm_up(url: str) -> float:
    """Warm the engine up, whose caches are empty, and say how many seconds that took."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "sidecar", "warm", "--url", url, "--sm", "cpu", "--json"],
        cwd=CHECKOUT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=WARM_S, check=False,
    )  # fmt: skip
    return time.monotonic() - began


async def clean(
    engine: VllmEngine, facts: EngineFacts, golden: GoldenSet, count: int, minutes: float
) -> list[GoldenResult]:
    """Check the trusted weights under load, so often or for so long."""
    found: list[GoldenResult] = []
    ends = time.monotonic() + 60 * minutes
    async with busy(engine, facts):
        for at in range(count):
            if time.monotonic() > ends:
                break
            found.append(await one_check(engine, facts, golden))
            if found[-1].outcome != "passed" or at % 20 == 0:
                print(f"clean {at}: {found[-1].sentence} {dict(found[-1].statistics)}", flush=True)
    return found


async def measure(arguments: argparse.Namespace, trusted: TrustedEngine, damaged: Path) -> list[Figure]:
    """Record, then check what was asked for."""
    engine = VllmEngine(trusted.url, api_key=lambda: None, clock=time.monotonic)
    try:
        facts = await engine.facts()
        warm_s = await asyncio.to_thread(warm_up, trusted.url)
        golden = await record(
            engine,
            facts,
            some_prompts(arguments.prompts),
            salt="bench-record",
            deadline_s=600.0,
            recorded_at="now",
            label="bench",
        )
        idle = []
        for _ in range(3):
            began = time.monotonic()
            await one_check(engine, facts, golden)
            idle.append(time.monotonic() - began)
        found = await damage(trusted, engine, facts, golden, damaged, damages_of(arguments.damages, arguments.first))
        (arguments.root / "damages.json").write_text(json.dumps([asdict(each) for each in found], indent=1))
        passes = await clean(engine, facts, golden, arguments.clean, arguments.minutes)
    finally:
        await engine.close()
    return figures(found, passes, min(idle), warm_s, golden)


def figures(
    found: list[Damage], passes: list[GoldenResult], idle_s: float, warm_s: float, golden: GoldenSet
) -> list[Figure]:
    """Put the numbers together."""
    changed = [each for each in found if each.changed]
    missed = [each for each in changed if each.outcome != "failed"]
    noise = [each.drift_percent or 0.0 for each in passes]
    of, under = f"{len(changed)} of {len(found)} damages changed an answer", f"{len(passes)} clean checks under load"
    return [
        Figure("damage that changes answers", "missed", len(missed), "", 0, of),
        Figure("damage", "caught of all", sum(each.outcome == "failed" for each in found), "", None, of),
        Figure("damage", "smallest drift that was caught",
               min((each.drift for each in found if each.outcome == "failed"), default=0.0), "%", None, of),
        Figure("clean", "alarms", sum(each.outcome != "passed" for each in passes), "", 0, under),
        Figure("clean", "largest drift", max(noise, default=0.0), "%", golden.files[0].limits.drift_percent, under),
        Figure("clean", "most near ties", max((int(each.statistics["near_ties"] or 0) for each in passes), default=0), "",
               None, under),
        Figure("time", f"a check of {len(golden.files[0].prompts)} prompts, idle engine", idle_s, "s", None, "best of 3"),
        Figure("time", "the same, of a warm-up", 100 * idle_s / warm_s, "%", 10, f"a cold warm-up of {warm_s:.1f} s"),
    ]  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--damages", type=int, default=50)
    parser.add_argument("--clean", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60, help="clean checks end after so long")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--first", type=int, default=1, help="seed of the first damage")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    paths = prepared.found()
    assert paths is not None, "no CPU engine; `python -m tests --only engine` prepares it"
    root = arguments.root.resolve()
    tiny = prepared.model_folder() / "tiny-qwen3-1"
    sharp = make_model(paths, "sharp", str(tiny), str(root / "sharp"))
    jobs = [",".join(map(str, each)) for each in damages_of(arguments.damages, arguments.first)]
    damaged = make_model(paths, "perturbed", str(sharp), str(root / "damaged"), *jobs) if jobs else root
    trusted = TrustedEngine(root / "engine", paths, sharp)
    try:
        trusted.wait()
        found = asyncio.run(measure(arguments, trusted, damaged))
    finally:
        trusted.end()
    print(f"\n{machine()}\n\n{table(found)}")
    if arguments.json:
        save(arguments.json, found)


if __name__ == "__main__":
    main()
