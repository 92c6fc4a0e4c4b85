"""A worker of a multi-pod engine: warm and good when its leader says so, as long as its own engine runs.

The leader is asked in `engines/leader.py`; a worker restores and publishes like any other pod, under its own node rank.
"""

from __future__ import annotations

from sidecar import lifecycle
from sidecar.engines.leader import LeaderEngine
from sidecar.errors import EngineError
from sidecar.lifecycle import Mode
from sidecar.supervisor.pod import Pod


async def warm(pod: Pod, command: lifecycle.Warm) -> lifecycle.Event:
    """Take the leader's warm-up for ours: its traffic went through this worker, too."""
    await pod.show_cache()
    sentence, flagged = await _leader(pod)
    outcome = "exhausted" if flagged else "converged"
    pod.board.warmup = {"outcome": outcome, "sentence": sentence, "steps": [], "round": 0}
    pod.show_kernels()
    pod.board.tell(f"Warm-up: {outcome}. {sentence}")
    # Whether an unproven engine serves is the leader's policy, and it is ready.
    return lifecycle.WarmEnded(command.work, outcome, sentence, "serve")


async def verify(pod: Pod, command: lifecycle.Verify) -> lifecycle.Event:
    """Take the leader's check of the output for ours."""
    pod.board.golden = {"outcome": "passed", "sentence": "The leader checked the output.", "checks": []}
    return lifecycle.VerifyEnded(command.work, "passed")


def own_engine(pod: Pod) -> str:
    """Say why this worker's own engine doesn't count; empty: it runs, or nobody can say because no launcher reports."""
    if pod.mode is Mode.BESIDE or pod.control is None:
        return ""
    current = pod.control.current()
    if current is None or not current.alive or current.started is None:
        return "This worker's own engine does not run yet."
    return ""


async def _leader(pod: Pod) -> tuple[str, bool]:
    """Give what the leader says of itself, and whether it serves without full proof."""
    engine = pod.engine
    if not isinstance(engine, LeaderEngine):
        return f"Follows the leader at {pod.follows}.", False
    try:
        await engine.stats()
    except EngineError as error:
        pod.board.tell(str(error), "warning")
    return f"Follows the leader at {pod.follows}: {engine.sentence}", engine.flagged
