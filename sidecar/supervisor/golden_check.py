"""The comparison of an engine's output with the golden file, as a part of the output check, and what it comes to with the rest.

How prompts are asked and compared is the business of `golden`; what follows from a failure, of the state machine.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sidecar.config import Settings
from sidecar.engines.protocol import EngineFacts
from sidecar.errors import WarmupError
from sidecar.supervisor.pod import Pod
from sidecar.warmup.results import VerifyOutcome, VerifyResult

if TYPE_CHECKING:
    from sidecar.golden import GoldenProgress, GoldenResult, GoldenSet
    from sidecar.golden.loading import Loading

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
#: What to do about a comparison that was not possible.
_ADVICE: Mapping[str, str] = {
    "time": "Raise WARMUP_GOLDEN_TIMEOUT_S ({timeout:g} s now) if the engine is merely slow.",
    "key": "Check WARMUP_API_KEY_FILE.",
    "engine": "The golden file is not to blame: look at the engine's log.",
}
#: The engine answers nothing, and what does not answer is not ready whatever policy says of output.
_FELL_ASLEEP: VerifyOutcome = "failed"


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
    notice = f"WARMUP_GOLDEN {path} can't be used"
    try:
        found = await _loader().load(path, LOAD_S)
    except (WarmupError, OSError, TimeoutError) as error:
        said = _unusable(error)
        _forget(pod, notice, but=said)
        pod.degrade(f"{notice}: {said}")
        return Checked(replace(so_far, outcome="unchecked", sentence=f"The output is not compared: {notice}: {said}"))
    _forget(pod, notice)
    result = await _compared(pod, facts, found, salt)
    # It compares texts, which takes seconds where all of a hundred prompts went wrong.
    told = await asyncio.to_thread(result.to_json)
    pod.metrics.observe_golden(told)
    return Checked(_together(so_far, result, pod.settings), told)


async def _compared(pod: Pod, facts: EngineFacts, found: GoldenSet, salt: str) -> GoldenResult:
    """Compare, and show on the status page how far it is."""
    from sidecar import golden

    def show(progress: GoldenProgress) -> None:
        pod.board.golden = {
            "outcome": "running",
            "sentence": f"Comparing with the golden file: {progress.done} of {progress.total} answers ({progress.way}).",
            "checks": [],
        }

    deadline_s = pod.settings.golden_timeout_s
    return await golden.check(
        pod.engine, facts, found, salt=salt, deadline_s=deadline_s, progress=show, asleep=pod.asleep
    )


@functools.cache
def _loader() -> Loading:
    """Give what all checks of this process share, so that a volume that hangs holds one thread and no more."""
    # Most pods have no golden file, and their daemons stay small.
    from sidecar.golden.loading import Loading

    return Loading()


def _unusable(error: BaseException) -> str:
    """Say why a golden file can't be used, and what to do about it."""
    if isinstance(error, TimeoutError):
        return f"it can't be read within {LOAD_S:.0f} s. Look at the volume that it is on."
    said = " ".join(str(error).split()).rstrip(".")
    return (
        f"{said}. Mend or replace the golden file."
        if isinstance(error, WarmupError)
        else f"{said}. Look at the volume."
    )


def _together(degenerate: VerifyResult, compared: GoldenResult, settings: Settings) -> VerifyResult:
    """Say what both checks come to: a comparison that passed tells more than one request that could not be sent."""
    if compared.cause == "asleep":
        return replace(degenerate, outcome=_FELL_ASLEEP, sentence=compared.sentence)
    outcome = _OUTCOME.get(compared.outcome, "unchecked")
    first = degenerate.sentence if degenerate.outcome == "passed" or outcome != "passed" else ""
    advice = _ADVICE.get(compared.cause, "").format(timeout=settings.golden_timeout_s)
    return replace(degenerate, outcome=outcome, sentence=" ".join(filter(None, (compared.sentence, advice, first))))


def _forget(pod: Pod, notice: str, but: str = "") -> None:
    """Take back what was said of a golden file before."""
    for each in pod.board.degraded:
        if each.startswith(notice) and not (but and each.endswith(but)):
            pod.mended(each, "The golden file can be used now." if not but else "The golden file has changed.")
