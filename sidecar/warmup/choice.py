"""Which profile is taken for a GPU and an engine, with the sentence that says why.

Reads profiles and judges their `match`; what they hold is of no interest here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.engines.protocol import EngineFacts
from sidecar.errors import ProfileError
from sidecar.warmup.profiles import Profile, list_profiles


@dataclass(frozen=True)
class Choice:
    """The profile that was chosen, and why."""

    profile: Profile
    sentence: str


def choose_profile(sm: str, facts: EngineFacts | None = None, directory: Path | None = None) -> Choice:
    """Choose by SM version among the profiles whose other conditions the engine meets.

    In this order: the same SM version; the nearest lower one, because newer GPUs run the same step kinds with
    other kernels; `cpu`, whose traffic is small and fits any engine; the first by name. `sm` is `sm90`, `cpu`
    or empty. Raises ProfileError when the directory holds no usable profile.
    """
    listed = list_profiles(directory)
    fitting = [each.profile for each in listed if each.profile is not None and _fits(each.profile, facts)]
    if not fitting:
        problems = " ".join(each.problem for each in listed if each.problem)
        raise ProfileError(
            f"No profile fits this engine. {problems}".strip() + " Set WARMUP_PROFILE to a name or a path."
        )
    exact = [each for each in fitting if sm and sm in each.match.sm]
    if exact:
        chosen = _most_specific(exact)
        return Choice(chosen, f"Profile {chosen.name}, made for {sm}.")
    lower = _nearest_lower(sm, fitting)
    if lower is not None:
        return Choice(lower, f"Profile {lower.name}: there is none for {sm}, and this is the nearest lower SM version.")
    generic = [each for each in fitting if "cpu" in each.match.sm] or fitting
    chosen = _most_specific(generic)
    why = f"there is none for {sm} or below" if sm else "the SM version is unknown (set WARMUP_SM)"
    return Choice(chosen, f"Profile {chosen.name}: {why}, and its traffic fits any engine.")


def _fits(profile: Profile, facts: EngineFacts | None) -> bool:
    if facts is None:
        return True
    match = profile.match
    pairs = (
        (match.engine, facts.engine),
        (match.kv_cache_dtype, facts.kv_cache_dtype),
        (match.quantization, facts.quantization),
    )
    return all(not wanted or value in wanted for wanted, value in pairs)


def _conditions(profile: Profile) -> int:
    match = profile.match
    return sum(bool(each) for each in (match.engine, match.kv_cache_dtype, match.quantization))


def _most_specific(profiles: Sequence[Profile]) -> Profile:
    return min(profiles, key=lambda each: (-_conditions(each), each.name))


def _number(sm: str) -> int | None:
    return int(sm[2:]) if sm.startswith("sm") and sm[2:].isdigit() else None


def _nearest_lower(sm: str, profiles: Sequence[Profile]) -> Profile | None:
    wanted = _number(sm)
    if wanted is None:
        return None
    below = [
        (number, each)
        for each in profiles
        for name in each.match.sm
        if (number := _number(name)) is not None and number < wanted
    ]
    if not below:
        return None
    nearest = max(number for number, _ in below)
    return _most_specific([each for number, each in below if number == nearest])
