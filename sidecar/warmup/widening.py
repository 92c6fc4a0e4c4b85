"""A profile made wider where the engine's own warm-up is switched off, which leaves its cost to the first requests.

Knows steps and sweeps; what is switched off is a fact of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.warmup.profiles import Profile
from sidecar.warmup.sizes import Sizes, Sweep
from sidecar.warmup.steps import DecodeStep, PrefillStep
from sidecar.warmup.task_steps import AnyStep

#: What the engine's own warm-up would have gone through by token count. The others don't follow sizes.
BY_SIZE = ("DeepGEMM", "FlashInfer autotuning")
FACTOR = 2
#: Sweep no finer: beyond it a sweep is slower than the search for what lies between.
POINTS_LIMIT = 256
#: Added where a profile has no sweep: about 12 % from one count to the next up to 8192 tokens.
EXTRA_POINTS = 48
EXTRA_NAME = "wider sweep"


def widened(profile: Profile, skipped: Sequence[str], source: str) -> tuple[Profile, str]:
    """Give the profile with twice the points in every sweep of prefill and decode, and the sentence that says so.

    Unchanged, and without a sentence, when nothing is switched off.
    """
    if not skipped:
        return profile, ""
    steps = tuple(_finer(step) for step in profile.steps)
    if steps == profile.steps and any(name in BY_SIZE for name in skipped):
        steps = (*steps, _extra(profile))
    what = f"The engine's own warm-up of {' and '.join(skipped)} is switched off ({source})"
    if steps == profile.steps:
        return profile, f"{what}; the profile has no sweep that could be wider, so the search has to find the rest."
    changed = profile.model_copy(update={"steps": steps})
    return changed, f"{what}, so the sweeps have twice as many sizes and warm-up takes longer."


def _finer(step: AnyStep) -> AnyStep:
    if isinstance(step, PrefillStep):
        return step.model_copy(update={"tokens": _twice(step.tokens)})
    if isinstance(step, DecodeStep):
        return step.model_copy(update={"batch": _twice(step.batch)})
    return step


def _twice(sizes: Sizes) -> Sizes:
    return tuple(
        size.model_copy(update={"points": max(size.points, min(POINTS_LIMIT, size.points * FACTOR - 1))})
        if isinstance(size, Sweep)
        else size
        for size in sizes
    )


def _extra(profile: Profile) -> PrefillStep:
    sweep = Sweep.model_validate({
        "from": 16,
        "to": "max_num_batched_tokens",
        "points": EXTRA_POINTS,
        "multiple_of": 16,
        "offsets": [0, 1],
    })  # fmt: skip
    taken = {step.title for step in profile.steps}
    name = EXTRA_NAME if EXTRA_NAME not in taken else f"{EXTRA_NAME} (added)"
    return PrefillStep(kind="prefill", name=name, tokens=(sweep,), output_tokens=2)
