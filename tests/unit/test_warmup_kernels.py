"""Two pods in a row against an engine with hidden kernels: real HTTP, files of kernels, continuous batching."""

from __future__ import annotations

import random
import time
from pathlib import Path

from sidecar.caches.families import stored_families
from sidecar.engines.vllm import VllmEngine
from sidecar.warmup.attempts import Attempt, WarmPolicy
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.coverage import Coverage, coverage_path, load
from sidecar.warmup.evidence import Evidence, EvidenceWatcher
from sidecar.warmup.journal import Journal
from sidecar.warmup.planner import make_plan
from sidecar.warmup.results import WarmResult
from sidecar.warmup.runner import WarmupRunner
from tests.fakes.engine_script import Script
from tests.fakes.kernel_engine import KernelEngine, kernel_folder
from tests.fakes.kernel_model import KernelModel
from tests.unit.warmup_engine import FACTS, profile

STEPS = ({"kind": "prefill", "tokens": [1, 16, 17, 128]}, {"kind": "decode", "batch": [2, 4], "output_tokens": 4})
MIX = {
    "prompt_tokens": {"from": 8, "to": 128},
    "output_tokens": {"from": 1, "to": 3},
    "concurrency": {"from": 1, "to": 4},
}
SEED = 4


async def _pod(live: Path, coverage: Coverage | None = None, **fields: object) -> WarmResult:
    """Warm a new engine process on what lies in the live cache."""
    script = Script(max_model_len=1024, max_num_batched_tokens=128, max_num_seqs=8)
    model = KernelModel.drawn(SEED, max_tokens=128, max_batch=8, folder=kernel_folder(live))
    async with KernelEngine(model, script, scale=0.05) as engine:
        client = VllmEngine(engine.url, api_key=lambda: None, clock=time.monotonic)
        given = {
            "mix": MIX,
            "converge": {"random_draws": 12, "floor_s": 5},
            "search": {"gap": 0.05, "replay_draws": 4},
            **fields,
        }
        plan = make_plan(profile(*STEPS, **given), await client.facts())
        witness = EvidenceWatcher(live, stored_families(), wall_clock=time.time)
        try:
            runner = WarmupRunner(
                client, plan, witness, WarmPolicy(), time.monotonic, random.Random(1), coverage=coverage
            )
            return await runner.run()
        finally:
            await client.close()


async def test_the_second_pod_replays_the_kernels_of_the_first_and_is_warm(tmp_path):
    (tmp_path / "deep_gemm/cache/kernel.old.0").mkdir(parents=True)
    (tmp_path / "deep_gemm/cache/kernel.old.0/kernel.cubin").write_bytes(b"x")
    first = await _pod(tmp_path)
    assert first.outcome == "converged", first.sentence
    assert first.coverage is not None
    named = {name for each in first.coverage.matters for name in each.names}
    on_disk = {f"deep_gemm/cache/{each.name}/kernel.cubin" for each in kernel_folder(tmp_path).iterdir()}
    assert named == on_disk - {"deep_gemm/cache/kernel.old.0/kernel.cubin"}
    first.coverage.save(coverage_path(tmp_path))
    second = await _pod(tmp_path, load(coverage_path(tmp_path))[0])
    late = sum(second.kernels.values())
    assert second.outcome == "converged", second.sentence
    assert second.replayed == len(first.coverage.matters)
    # Which requests share a step is chance, more so on a busy machine: a kernel may be needed that the first pod never met.
    assert (second.lost, second.lost_kernels) == ((), {}), second.sentence
    assert (second.rounds == 0 and second.requests < first.requests) or late, second.sentence


class _Late:
    """A witness whose second look finds a file of the first burst."""

    def __init__(self) -> None:
        self.looks = [Evidence(), Evidence({"triton": 1}, names=("triton/LATE",), late=("triton/LATE",))]

    def mark(self) -> None:
        pass

    async def baseline(self) -> Evidence:
        return Evidence()

    async def collect(self, *, thorough: bool = False) -> Evidence:
        return self.looks.pop(0)


class _Answers:
    async def begin(self, deadline: float) -> None:
        pass

    async def send(self, burst: Burst) -> object:
        return Attempt("done")

    async def progress_by_rank(self) -> dict[str, float]:
        return {}


async def test_a_file_that_appears_late_belongs_to_the_burst_before_and_is_counted():
    plan = make_plan(profile(*STEPS), FACTS)
    journal = Journal(plan, _Answers(), _Late(), WarmPolicy(), lambda: 0.0, ())  # type: ignore[arg-type]
    await journal.begin()
    await journal.send(single("a", Ask(1, 8, 1)), "first")
    await journal.send(single("b", Ask(1, 9, 1)), "second")
    assert {name: each.names for name, each in journal.matters.items()} == {"first": {"triton/LATE"}}
    assert journal.kernels == {"triton": 1}
