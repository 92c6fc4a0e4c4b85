"""How a warm-up is told to people: one or two sentences for each way in which it can end.

Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proof:
    """What says that nothing is left to compile: random draws of this pod and of earlier ones, a replay, rounds."""

    draws: int = 0
    earlier_draws: int = 0
    replayed: int = 0
    rounds: int = 1
    lost: int = 0
    recorded: bool = False


def rule_of_three(draws: int) -> float:
    """Bound the share of traffic that may still compile after so many clean draws, at 95 % confidence.

    The rule of three: an event not seen in n independent draws has a probability of at most about 3/n.
    """
    return min(1.0, 3 / draws) if draws > 0 else 1.0


def work_done(rounds: int, requests: int, seconds: float, kernels: Mapping[str, int]) -> str:
    """Say what was sent and what it compiled."""
    total = sum(kernels.values())
    families = ", ".join(f"{count} {family}" for family, count in sorted(kernels.items()))
    compiled = f"compiled {total} kernel{_s(total)} ({families})" if total else "compiled nothing"
    return f"{requests} requests in {seconds:.1f} s and {rounds} round{_s(rounds)} {compiled}"


def converged(done: str, proof: Proof, unsupported: Sequence[str], empty: bool) -> str:
    """Say that nothing is left to compile as far as traffic can tell, and how far that is."""
    if empty:
        told = (
            "latency is flat, but the live cache is empty: this engine compiles nothing, or it keeps its kernels "
            "elsewhere and compiling could not be seen"
        )
    else:
        told = _proven_by(proof)
    skipped = f" The engine does not support: {', '.join(unsupported)}." if unsupported else ""
    return f"Warm: {done}; {told}.{skipped}{_lost(proof.lost)}"


def _proven_by(proof: Proof) -> str:
    if proof.rounds:
        basis = "the last round"
    else:
        basis = f"the replay of the {proof.replayed} burst{_s(proof.replayed)} that compiled in earlier pods"
    draws = proof.draws + proof.earlier_draws
    if not draws:
        return f"{basis} compiled nothing; no random draws were made, so nothing is known beyond the steps"
    counted = f", with the {proof.earlier_draws} of earlier pods" if proof.earlier_draws else ""
    share = rule_of_three(draws) * 100
    mix = "traffic mix that earlier pods recorded" if proof.recorded else "traffic mix"
    return (
        f"{basis} and {proof.draws} random draws compiled nothing: at most {_percent(share)} % of the {mix} "
        f"may still compile (95 % confidence{counted})"
    )


def _percent(share: float) -> str:
    """Write a share in percent with two digits, and never as a power of ten."""
    return f"{share:.0f}" if share >= 10 else f"{share:.2g}"


def _lost(count: int) -> str:
    if not count:
        return ""
    return (
        f" {count} kernel{_s(count)} that an earlier pod had compiled {'was' if count == 1 else 'were'} lost from the "
        "cache and compiled again."
    )


def not_covered(done: str, points: Sequence[str]) -> str:
    """Say which sizes no request has tried, so that kernels may be left there."""
    return (
        f"Warm but for sizes that were not tried before the search had spent its share: {'; '.join(points)}. {done}. "
        "The next pod on this cache goes on there; raise WARMUP_WARM_BUDGET_S, or search.budget_share, max_requests "
        "or gap in the profile, to have it done at once."
    )


def not_flat(slow: Sequence[str]) -> str:
    """Say which bursts still stall, without a kernel file that explains it."""
    shown = ", ".join(slow[:3]) + (f" and {len(slow) - 3} more" if len(slow) > 3 else "")
    return f"{shown}: something stalls them that writes no kernel file."


def unwarmed(why: str, not_applicable: Sequence[str]) -> str:
    """Say why nothing at all was sent."""
    if why:
        return f"No warm-up traffic was sent. {why} Its first requests from a peer compile what is missing."
    shown = " ".join(not_applicable[:2])
    return (
        f"No warm-up traffic was sent, because no step of the profile fits this engine. {shown} "
        "Set WARMUP_PROFILE to a profile for its task."
    ).replace("  ", " ")


def exhausted_by_budget(done: str, budget_s: float, open_point: str) -> str:
    """Say that time ran out, and what was not yet proven."""
    return (
        f"The warm-up budget of {budget_s:g} s ended: {done}. {open_point} Raise WARMUP_WARM_BUDGET_S, or "
        "start from "
        "a store, so that the next pod finds these kernels."
    )


def exhausted_by_rounds(done: str, open_point: str) -> str:
    """Say that the rounds ran out, and what was not yet proven."""
    return f"Warm-up gave up: {done}. {open_point} Raise converge.max_rounds or the tolerance in the profile."


def blind(done: str, why: str) -> str:
    """Say that nothing is proven, because compiling could not be seen."""
    return f"Warm-up can't be proven: {why}. {done}, and latency is flat."


def killers_left_out(done: str, killers: Sequence[str]) -> str:
    """Say which traffic is not covered because an engine died of it."""
    return (
        "Warm but for traffic of which the engine died before, and which was left out: "
        f"{', '.join(killers)}. {done}. "
        "Find out why the engine dies of it (out of memory is usual), or remove it from the profile."
    )


def idle_ranks(done: str, ranks: Sequence[str]) -> str:
    """Say which data-parallel ranks no request has reached, so that nothing is known of their kernels."""
    named = f"rank{_s(len(ranks))} {', '.join(ranks)}"
    return (
        f"Warm but for data-parallel {named}, which made no progress in the last round, so nothing is known of the kernels "
        f"there. {done}. Check that requests with the header X-data-parallel-rank reach each rank through this port, and "
        "that the profile has a step of kind data_parallel."
    )


def broken(first: str, count: int) -> str:
    """Say that the engine answers real requests with errors."""
    more = f", and {count - 1} more" if count > 1 else ""
    return f"The engine fails on real requests: {first}{more}. See its log; it is not fit for such traffic."


def all_unsupported(first: str) -> str:
    """Say that no request at all was accepted."""
    return (
        f"The engine refuses every kind of request that the profile sends: {first}. Check WARMUP_MODEL, the "
        "engine's "
        "task and role (prefill-only or decode-only engines need traffic of their own), or set another "
        "profile."
    )


def plainer(lacks: Sequence[str]) -> str:
    """Say which fields requests went without, because the engine refused the first one that had them."""
    early = " Answers may end before their number of tokens is reached." if "ignore_eos" in lacks else ""
    return f"The engine, or what stands before it, refuses {' and '.join(lacks)}, so requests are sent without.{early}"


def unauthorized(detail: str) -> str:
    """Say that the API key is missing or wrong."""
    return f"The engine refuses the API key: {detail}. Put its key into the file that WARMUP_API_KEY_FILE names."


def timed_out(where: str, detail: str) -> str:
    """Say that a request hung."""
    return (
        f"{where}: {detail}; nothing more is sent. If kernels compile that long here, raise "
        "WARMUP_REQUEST_TIMEOUT_S; "
        "otherwise the engine hangs, see its log."
    )


def engine_gone(where: str, detail: str, blamed: bool, *, of_step: bool) -> str:
    """Say that the engine died, and of what as far as is known."""
    if blamed:
        left_out = "This and what is larger is left out now." if of_step else "It is not sent to this engine again."
        return f"The engine died during {where}: {detail}. {left_out}"
    return f"The engine was gone before {where} could be sent: {detail}."


def _s(count: int) -> str:
    return "" if count == 1 else "s"
