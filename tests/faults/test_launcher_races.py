"""The race of "start now" against "restore committed": one side wins, and the swap happened exactly if the sidecar did."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from sidecar.handshake import Decision
from tests.unit.launching import SHELL, Stage, files_in, output, until, write

ROUNDS = 200
GONE = "gone"
OLD = dict.fromkeys("abc", "old")
NEW = dict.fromkeys("abc", "new")


@pytest.fixture
def stage(tmp_path: Path):
    made = Stage(tmp_path)
    yield made
    made.close()


def with_facts(stage: Stage) -> str:
    """Name the attempt that has handed over its facts, whether it still waits or not."""
    state = stage.sidecar.current()
    return state.attempt if state is not None and state.facts is not None else ""


def one_round(stage: Stage, chance: random.Random) -> str:
    """Let both sides decide at about the same time; give the winner."""
    write(stage.live / "triton", OLD)
    (stage.live / "triton" / "d").unlink(missing_ok=True)
    # The launcher looks at once and then every 30 ms; the sidecar comes around one of its first two looks.
    cap, delay_s = chance.choice([(0.0, chance.uniform(0, 0.002)), (0.01, chance.uniform(0.015, 0.045))])
    process = stage.launch(
        SHELL, "-c", f"cat {stage.live}/triton/*", env={"PATH": "/bin:/usr/bin", "WARMUP_LAUNCHER_WAIT_S": str(cap)}
    )
    attempt = until(lambda: with_facts(stage) or (GONE if process.poll() is not None else ""), "facts")
    if attempt == GONE:
        # On a busy machine it may be over before the other side comes at all.
        out, _ = output(process)
        assert (process.returncode, out, files_in(stage.live / "triton")) == (0, b"oldoldold", OLD)
        return "launcher"
    entry = stage.staged(attempt, "triton", NEW)
    time.sleep(delay_s)
    ours = stage.sidecar.decide(attempt, Decision("hit", (entry,)))
    out, _ = output(process)
    state = stage.sidecar.state(attempt)
    assert process.returncode == 0
    assert state.started is not None
    assert (state.decided_by == "sidecar") is ours
    assert (state.started.by == "sidecar") is ours
    assert state.started.committed == (("triton",) if ours else ())
    assert out == (b"newnewnew" if ours else b"oldoldold")
    assert files_in(stage.live / "triton") == (NEW if ours else OLD)
    return state.started.by


def test_exactly_one_side_wins_and_the_swap_happened_exactly_if_the_sidecar_did(stage: Stage):
    chance = random.Random(2)
    winners = [one_round(stage, chance) for _ in range(ROUNDS)]
    # Otherwise it was no race.
    assert min(winners.count("sidecar"), winners.count("launcher")) >= ROUNDS // 20
