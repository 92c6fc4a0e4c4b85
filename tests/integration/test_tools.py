"""`plan`, `warm` and `bench` against a running vLLM, as somebody uses them who has no sidecar: each once, in this order.

The engine is started bare: no launcher, no daemon, no store. Without graphs, which would take a minute more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sidecar.demo.engine_setup import EnginePaths
from sidecar.demo.workplace import Workplace, free_ports, serve_command
from tests.integration.looks import LOG_PROBABILITIES, STRUCTURED, ask_engine, kernel_files
from tests.integration.pod import HEALTH_S, EngineProcess
from tests.unit.commands import CHECKOUT, environment

COMMAND_S = 300.0
LOAD = ("--concurrency", "4", "--requests", "40", "--prompt-tokens", "16:256", "--output-tokens", "4:16")
#: The engine's own limits, smaller than its defaults, so that a plan that holds them has them from the engine.
LIMITS = ("--max-model-len", "1536", "--max-num-seqs", "24")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def found(self) -> Any:
        """Give what was printed as JSON."""
        return json.loads(self.out)


@dataclass
class Visit:
    """One engine, and what the commands said of it. Times of live requests in seconds."""

    workplace: Workplace
    plan: Ended | None = None
    warm: Ended | None = None
    kernels: dict[str, tuple[int, int]] = field(default_factory=dict)
    kernels_later: dict[str, tuple[int, int]] = field(default_factory=dict)
    log_probabilities_s: float = 0.0
    structured_s: float = 0.0
    benches: list[Ended] = field(default_factory=list)
    compared: Ended | None = None

    def run(self, *words: str) -> Ended:
        """Run one command on this engine."""
        ended = subprocess.run(
            [sys.executable, "-m", "sidecar", *words],
            cwd=CHECKOUT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=COMMAND_S, check=False,
        )  # fmt: skip
        return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, engine_paths: EnginePaths, tiny_model: Path
) -> Iterator[Workplace]:
    """Start an engine on empty caches, and wait until it answers."""
    root = tmp_path_factory.mktemp("bare") / "pod"
    root.mkdir()
    workplace = Workplace(root, *free_ports(2))
    workplace.make_empty()
    command = [*serve_command(engine_paths, tiny_model, workplace.engine_port), "--enforce-eager", *LIMITS]
    log = workplace.log("engine")
    # Without a launcher it is up to whoever starts the engine where its kernels go.
    variables = workplace.environment(engine_paths, os.environ) | workplace.cache_environment()
    engine = EngineProcess(command, variables, log)
    try:
        ends = time.monotonic() + HEALTH_S
        while not _answers(workplace.engine_url):
            assert engine.runs, log.read_text()[-3000:]
            assert time.monotonic() < ends, log.read_text()[-3000:]
            time.sleep(0.5)
        yield workplace
    finally:
        engine.end()


@pytest.fixture(scope="module")
def visit(running: Workplace) -> Visit:
    """Plan, warm, look at live requests, bench twice, compare."""
    made, url = Visit(running), ("--url", running.engine_url)
    made.plan = made.run("plan", *url, "--sm", "cpu", "--json")
    made.warm = made.run("warm", *url, "--sm", "cpu", "--live-cache", str(running.live), "--json")
    made.kernels = kernel_files(running.live)
    made.log_probabilities_s = _timed(running, LOG_PROBABILITIES)
    made.structured_s = _timed(running, STRUCTURED)
    reports = [str(running.root / name) for name in ("before.json", "after.json")]
    made.benches.append(made.run("bench", *url, *LOAD, "--json", reports[0]))
    made.benches.append(made.run("bench", *url, *LOAD, "--json", reports[1], "--compare", reports[0]))
    made.compared = made.run("bench", "--compare", *reports)
    made.kernels_later = kernel_files(running.live)
    return made


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def _timed(workplace: Workplace, extra: Any) -> float:
    began = time.monotonic()
    ask_engine(workplace.engine_url, "The river ran under the old bridge", extra)
    return time.monotonic() - began


def _stalls(visit: Visit, step: str) -> list[dict[str, Any]]:
    assert visit.warm is not None
    return [each for each in visit.warm.found["stalls"] if each["step"] == step]


def test_a_plan_takes_the_limits_of_the_running_engine(visit: Visit):
    assert visit.plan is not None
    assert visit.plan.code == 0, visit.plan.err
    facts = visit.plan.found["engine"]
    assert facts["max_model_len"] == 1536
    assert visit.plan.found["asked"].startswith(visit.workplace.engine_url)
    assert visit.plan.found["profile"] == "cpu"


def test_a_plan_tells_the_requests_of_a_round_as_they_are_sent(visit: Visit):
    assert visit.plan is not None
    assert visit.warm is not None
    planned = {step["name"]: step["requests"] for step in visit.plan.found["steps"]}
    sent = {step["name"]: step["requests"] for step in visit.warm.found["steps"]}
    assert sent.keys() == planned.keys()
    # Slow bursts are sent once more, so a step may have a few more than its rounds have.
    assert all(sent[name] >= planned[name] for name in planned)


def test_warm_converges_without_a_sidecar_and_says_what_compiled(visit: Visit):
    assert visit.warm is not None
    assert visit.warm.code == 0, visit.warm.err + visit.warm.out
    found = visit.warm.found
    assert (found["outcome"], found["compiling_seen"]) == ("converged", True)
    assert found["kernels"].get("inductor", 0) >= 1
    assert {step["state"] for step in found["steps"]} == {"done"}


def test_the_stall_of_log_probabilities_falls_into_the_warm_up_and_not_after_it(visit: Visit):
    stalls = _stalls(visit, "log-probabilities")
    assert stalls, visit.warm
    assert visit.log_probabilities_s < max(each["slowest_s"] for each in stalls) / 2


def test_structured_output_is_set_up_in_the_warm_up_and_not_after_it(visit: Visit):
    assert visit.warm is not None
    step = next(each for each in visit.warm.found["steps"] if each["name"] == "structured output")
    assert (step["state"], step["ttft_first_s"] >= step["ttft_best_s"]) == ("done", True)
    # Setting the grammar backend up takes 0.1 to 0.3 s and more; a request on a busy machine may take as long.
    assert visit.structured_s < step["ttft_first_s"] + 1.0


def test_nothing_compiles_after_the_warm_up(visit: Visit):
    assert visit.kernels_later == visit.kernels


def test_bench_measures_every_request_of_a_load(visit: Visit):
    for ended in visit.benches:
        assert ended.code == 0, ended.err + ended.out
        assert "TTFT" in ended.out
    report = json.loads((visit.workplace.root / "after.json").read_text())
    assert (report["answered"], report["errors"], report["busiest"]) == (40, {}, 4)
    # An answer of random weights may have tokens and no text.
    assert report["figures"]["ttft_s"]["count"] >= 30


def test_two_runs_are_compared_at_once_and_from_their_files(visit: Visit):
    assert visit.compared is not None
    assert visit.compared.code == 0, visit.compared.err
    for text in (visit.compared.out, visit.benches[1].out):
        assert "TTFT p50" in text
