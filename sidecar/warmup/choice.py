"""Which profile is taken for a GPU and an engine, with the sentence that says why, and why not the others.

Reads profiles and judges their `match`; what they hold is of no interest here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar.engines.protocol import EngineFacts
from sidecar.errors import ProfileError
from sidecar.warmup.matching import ORDER, Condition, conditions, specificity
from sidecar.warmup.profiles import Listed, Profile, list_profiles


@dataclass(frozen=True)
class Considered:
    """One profile as the choice saw it: whether its conditions fit, how specific it is, and a sentence."""

    name: str
    path: Path
    fits: bool
    specificity: int
    sentence: str
    sm: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The profile that was chosen, why, and every profile that was considered."""

    profile: Profile
    sentence: str
    considered: tuple[Considered, ...] = ()


def choose_profile(sm: str, facts: EngineFacts | None = None, directory: Path | None = None) -> Choice:
    """Choose by SM version among the profiles whose other conditions the engine meets.

    In this order: the same SM version; the nearest lower one, because newer GPUs run the same step kinds with
    other kernels; `cpu`, whose traffic is small and fits any engine; the others. Among several the most specific
    one, as `matching.ORDER` weighs it. `sm` is `sm90`, `cpu` or empty. Without facts a profile fits that names
    nothing but engines. Raises ProfileError when the directory holds no usable profile, or two equal ones.
    """
    return choose_among(list_profiles(directory), sm, facts)


def choose_among(listed: Sequence[Listed], sm: str, facts: EngineFacts | None) -> Choice:
    """Choose among profiles that were read already, as `choose_profile` does."""
    judged = {each.name: _judge(each, sm, facts) for each in listed}
    considered = tuple(judged.values())
    fitting = [each for each in listed if each.profile is not None and judged[each.name].fits]
    if not fitting:
        problems = " ".join(each.problem for each in listed if each.problem)
        raise ProfileError(
            f"No profile fits this engine. {problems}".strip() + " Set WARMUP_PROFILE to a name or a path."
        )
    exact = [each for each in fitting if sm and sm in _sm(each)]
    if exact:
        chosen = _most_specific(exact)
        return Choice(chosen, f"Profile {chosen.name}, made for {sm}{_because(chosen, facts)}.", considered)
    nearest, lower = _nearest_lower(sm, fitting)
    if lower is not None:
        sentence = f"Profile {lower.name}: there is none for {sm}, and {nearest} is the nearest lower SM version."
        return Choice(lower, sentence, considered)
    generic = [each for each in fitting if "cpu" in _sm(each)] or fitting
    chosen = _most_specific(generic)
    why = f"there is none for {sm} or below" if sm else "the SM version is unknown (set WARMUP_SM)"
    return Choice(chosen, f"Profile {chosen.name}: {why}, and its traffic fits any engine.", considered)


def _judge(listed: Listed, sm: str, facts: EngineFacts | None) -> Considered:
    profile = listed.profile
    if profile is None:
        return Considered(listed.name, listed.path, False, 0, listed.problem)
    weight = specificity(profile.match)
    found = tuple(conditions(profile.match, facts))
    if profile.only_extended:
        sentence, fits = "There for others to extend.", False
    else:
        # Without an engine to ask, profiles for vLLM are what this program is for.
        failed = [each for each in found if each.verdict != "met" and not (facts is None and each.name == "engine")]
        fits = not failed
        sentence = f"Not for this engine: {failed[0]}." if failed else _sm_sentence(profile, sm)
    return Considered(listed.name, listed.path, fits, weight, sentence, profile.match.sm, found)


def _sm_sentence(profile: Profile, sm: str) -> str:
    if not profile.match.sm:
        return "For any SM version."
    if sm in profile.match.sm:
        return f"For {sm}, and all other conditions are met." if specificity(profile.match) else f"For {sm}."
    return f"For {' and '.join(profile.match.sm)}, and the SM version is {sm or 'unknown'}."


def _because(profile: Profile, facts: EngineFacts | None) -> str:
    """Name the conditions beyond the engine that made this one more specific than others."""
    met = [str(each) for each in conditions(profile.match, facts) if each.verdict == "met" and each.name in ORDER[1:]]
    return f" where {' and '.join(met)}" if met else ""


def _sm(listed: Listed) -> tuple[str, ...]:
    return listed.profile.match.sm if listed.profile is not None else ()


def _most_specific(listed: Sequence[Listed]) -> Profile:
    """Take the most specific one. Raises ProfileError where two are equal: nobody said which is meant."""
    ranked = sorted(
        ((specificity(each.profile.match), each) for each in listed if each.profile is not None),
        key=lambda pair: (-pair[0], pair[1].name),
    )
    best = [each for weight, each in ranked if weight == ranked[0][0]]
    if len(best) > 1:
        names = " and ".join(str(each.path) for each in best)
        raise ProfileError(
            f"{names} fit this engine equally well: they have the same conditions. Make one of them more specific, or "
            "set WARMUP_PROFILE to the one that is meant."
        )
    chosen = best[0].profile
    assert chosen is not None, "broken profiles are not ranked"
    return chosen


def _number(sm: str) -> int | None:
    return int(sm[2:]) if sm.startswith("sm") and sm[2:].isdigit() else None


def _nearest_lower(sm: str, listed: Sequence[Listed]) -> tuple[str, Profile | None]:
    wanted = _number(sm)
    if wanted is None:
        return "", None
    below = [
        (number, each)
        for each in listed
        for name in _sm(each)
        if (number := _number(name)) is not None and number < wanted
    ]
    if not below:
        return "", None
    nearest = max(number for number, _ in below)
    return f"sm{nearest}", _most_specific([each for number, each in below if number == nearest])
