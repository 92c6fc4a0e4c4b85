"""The comparison of an engine's output with the golden file, as a part of the output check, and what it comes to with the rest.

How prompts are asked and compared is the business of `golden`; what follows from a failure, of the state machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sidecar.config import Settings
from sidecar.engines.protocol import EngineFacts
from sidecar.errors import WarmupError
from sidecar.supervisor.pod import Pod
from sidecar.warmup.results import VerifyOutcome, VerifyResult

if TYPE_CHECKING:
    from sidecar.golden import GoldenProgress, GoldenResult

#: Reading a small file; a volume that takes longer hangs. Seconds.
LOAD_S = 30.0
#: Beyond its deadline for requests, which may be cancelled a moment late. Seconds.
GRACE_S = 10.0
#: What the outcome of a comparison makes of a check that found nothing degenerate.
_OUTCOME: Mapping[str, VerifyOutcome] = {
    "passed": "passed",
    "failed": "wrong",
    "skipped": "skipped",
    "engine_gone": "engine_gone",
    "error": "unchecked",
}


@dataclass(frozen=True)
class Checked:
    """The whole check: its result, and the comparison in the shape of `/status` where there was one."""

    result: VerifyResult
    golden: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the check in the shape of `/status`."""
        return {**self.result.to_json(), **({"golden": dict(self.golden)} if self.golden is not None else {})}


def deadline(settings: Settings) -> float:
    """Give how many seconds more an output check may take because of the golden file."""
    return settings.golden_timeout_s + LOAD_S + GRACE_S if settings.golden is not None else 0.0


async def compare(pod: Pod, facts: EngineFacts, so_far: VerifyResult, salt: str) -> Checked:
    """Compare with the golden file, if there is one and the output is not known to be bad; never raises for either.

    A file that can't be used makes the output `unchecked`: what follows is policy, and the engine runs on.
    """
    path = pod.settings.golden
    if path is None or so_far.outcome not in ("passed", "skipped"):
        return Checked(so_far)
    # Most pods have none, and their daemons stay small.
    from sidecar import golden

    notice = f"WARMUP_GOLDEN {path} can't be used"
    try:
        async with asyncio.timeout(LOAD_S):
            found = await asyncio.to_thread(golden.load, path)
    except (WarmupError, OSError, TimeoutError) as error:
        said = " ".join(str(error).split()) or f"it can't be read within {LOAD_S:.0f} s"
        _forget(pod, notice, but=said)
        pod.degrade(f"{notice}: {said}")
        return Checked(replace(so_far, outcome="unchecked", sentence=f"The output is not compared: {notice}: {said}"))
    _forget(pod, notice)

    def show(progress: GoldenProgress) -> None:
        pod.board.golden = {
            "outcome": "running",
            "sentence": f"Comparing with the golden file: {progress.done} of {progress.total} answers ({progress.way}).",
            "checks": [],
        }

    result = await golden.check(
        pod.engine,
        facts,
        found,
        salt=salt,
        deadline_s=pod.settings.golden_timeout_s,
        progress=show,
        asleep=pod.asleep,
    )
    pod.metrics.observe_golden(result.to_json())
    return Checked(_together(so_far, result), result.to_json())


def _together(degenerate: VerifyResult, compared: GoldenResult) -> VerifyResult:
    """Say what both checks come to: a comparison that passed tells more than one request that could not be sent."""
    outcome = _OUTCOME.get(compared.outcome, "unchecked")
    first = degenerate.sentence if degenerate.outcome == "passed" or outcome != "passed" else ""
    return replace(degenerate, outcome=outcome, sentence=f"{compared.sentence} {first}".strip())


def _forget(pod: Pod, notice: str, but: str = "") -> None:
    """Take back what was said of a golden file before."""
    for each in pod.board.degraded:
        if each.startswith(notice) and not (but and each.endswith(but)):
            pod.mended(each, "The golden file can be used now." if not but else "The golden file has changed.")
