"""What follows a check of the output: ready, a restart that gives something back, or the policies for bad output in order.

Pure, like the table whose handlers call this; when a check is due is decided there.
"""

from __future__ import annotations

from dataclasses import replace

from sidecar.lifecycle import events as e
from sidecar.lifecycle.states import Mode, Phase, Policy, Snapshot, Suspension

Result = tuple[Snapshot, tuple[e.Command, ...]]

#: Restores after which the output of a cold start may differ, and those of them whose files are as the store has them.
RESTORED = frozenset({"hit", "partial", "kept"})
FROM_STORE = RESTORED - {"kept"}
#: Checks in a row that got no answer from an engine that is up, and starts that missed their fallback, until that is policy's.
BROKEN_ROUNDS, MISSES_BORNE = 3, 2
#: As many deaths before ready with one fallback end it; one may have had another cause.
DEATHS_TO_GIVE_UP = 2
#: So many end one that was good in an earlier pod: the first two are laid to the generation that was restored.
DEATHS_OF_TRUSTED = 4
#: Outcomes of a check that the policies for bad output are for.
BAD = {"degenerate": Suspension.DEGENERATE, "wrong": Suspension.WRONG}
_WHAT = {
    "degenerate": "its output was degenerate",
    "wrong": "its output was not what the golden file has",
    "failed": "it could not generate",
}


def ready(s: Snapshot) -> Result:
    """Let traffic come, and remember what has been proven. What an engine with bad output compiled is not published."""
    boot = (e.RecordBoot(s.generation, "ready"),) if s.generation and not s.adopting and s.verify == "passed" else ()
    known = (e.Remember(s.fallback, s.fallback_why),) if s.fallback and not s.trusted and s.verify == "passed" else ()
    after = replace(
        s,
        phase=Phase.READY,
        suspension=None,
        adopting=False,
        served=True,
        deaths=0,
        died="",
        cold_retried=False,
        blamed="",
        restarted=False,
        broken=0,
        missed=0,
        failed_starts=0,
        trusted=s.trusted or bool(known),
    )
    proof = (e.Prove(s.identity),) if s.identity and not after.unproven else ()
    return after, (*proof, *boot, *known, *(() if s.verify in BAD else (e.Publish(),)))


def renewable(s: Snapshot) -> bool:
    """Say whether the engine may be restarted: by its launcher, and never after users' requests could come.

    That it happens once is remembered where it outlives the daemon, in the control directory.
    """
    return s.mode is not Mode.BESIDE and bool(s.attempt) and not (s.served or s.adopting)


def renew(s: Snapshot, why: str) -> Result:
    """Restart an engine that started cold, now that it is good."""
    died = "it had started cold and is restarted once, before any traffic comes, on the caches that it made."
    after = s.cleared(Phase.AWAITING_LAUNCHER, identity="", restore="", died=died)
    return after, (e.RestartEngine(s.attempt, why),)


def bad(s: Snapshot, policy: Policy) -> Result:
    """Go through the policies for bad output; the first that can be followed counts, and the last resort is to hold.

    Output that is as bad with empty caches acquits the generation that was blamed: other pods need not start cold for it.
    """
    if s.blamed and not s.generation:
        why = f"with empty caches {_WHAT[s.verify]} too: {s.verify_sentence}"
        after, commands = _follow(replace(s, blamed=""), policy)
        return after, (e.Acquit(s.blamed, why), *commands)
    return _follow(s, policy)


def broken(s: Snapshot, policy: Policy) -> Result:
    """Try again later what got no answer; when that goes on, the policies for bad output count, except to serve it."""
    s = replace(s, broken=s.broken + 1)
    commands: tuple[e.Command, ...] = ()
    if s.broken >= BROKEN_ROUNDS:
        after, commands = bad(s, policy)
        if after.phase is not Phase.SUSPENDED:
            return after, commands
        s = after
    after = replace(s, phase=Phase.SUSPENDED, suspension=Suspension.BROKEN, work=s.work + 1)
    return after, (*commands, e.RetryLater(after.work))


def _follow(s: Snapshot, policy: Policy) -> Result:
    for choice in policy.on_golden_failed:
        if choice in ("retry-cold", "fallback") and s.served and not s.restarted and _is_restartable(s):
            return _restart(s)
        if choice == "retry-cold" and _may_be_the_caches(s):
            return _retry_cold(s)
        if choice == "fallback" and _is_restartable(s) and s.next_fallback:
            return _fall_back(s)
        if choice == "serve" and s.verify in BAD:
            return ready(s)
        if choice == "hold":
            break
    return replace(s, phase=Phase.SUSPENDED, suspension=BAD.get(s.verify, Suspension.BROKEN)), ()


def unchecked(s: Snapshot, policy: Policy) -> Result:
    """Let policy decide about output that can't be compared: nothing is restarted for it, and it is tried again."""
    for choice in policy.on_golden_failed:
        if choice == "serve":
            return ready(s)
        if choice == "hold":
            break
    after = replace(s, phase=Phase.SUSPENDED, suspension=Suspension.UNCHECKED, work=s.work + 1)
    return after, (e.RetryLater(after.work),)


def is_checkable(s: Snapshot) -> bool:
    """Say whether the output may be checked now by itself: the engine is up, warm, and held for nothing but its output."""
    return s.phase is Phase.READY or s.suspension in (Suspension.DEGENERATE, Suspension.WRONG, Suspension.UNCHECKED)


def check(s: Snapshot, suspicion: str, *before: e.Command) -> Result:
    """Check the output once more; no traffic meanwhile. Bad output is told as such until it is known better."""
    suspension = Suspension.DEGENERATE if suspicion else None
    after = replace(
        s, phase=Phase.VERIFYING, work=s.work + 1, suspension=suspension, verify="", verify_sentence=suspicion
    )
    return after, (*before, e.Verify(after.work))


def give_up_fallback(s: Snapshot, detail: str) -> Snapshot:
    """Note that an engine died by itself before it was ready with a fallback; after some times another one is taken.

    Where none is left, the engine is started as it was asked for: better held than never up.
    """
    if not s.fallback or s.served:
        return s
    if s.failed_starts + 1 < (DEATHS_OF_TRUSTED if s.trusted else DEATHS_TO_GIVE_UP):
        return replace(s, failed_starts=s.failed_starts + 1)
    following = s.next_fallback
    return replace(
        s,
        fallback=following,
        tried=following or s.tried,
        failed_starts=0,
        trusted=False,
        fallback_why=s.fallback_why if following else "",
        died=f"{detail} It could not be started with `{s.fallbacks[s.fallback - 1]}`, which is given up.",
    )


def miss_fallback(s: Snapshot) -> Snapshot:
    """Note that the engine starts without the fallback that it was to have; it is tried again, unless that goes on."""
    if not s.fallback or s.missed >= MISSES_BORNE:
        return s
    return replace(s, tried=s.fallback - 1, missed=s.missed + 1)


def _is_restartable(s: Snapshot) -> bool:
    return s.mode is not Mode.BESIDE and bool(s.attempt)


def _may_be_the_caches(s: Snapshot) -> bool:
    # Once a fallback is tried, what the pod has is its own making, unless it came from the store for this fallback.
    suspect = bool(s.generation) if s.fallback else s.restore in RESTORED
    return s.mode is not Mode.BESIDE and suspect and not s.cold_retried


def _restart(s: Snapshot) -> Result:
    """Restart an engine that was good on these very caches and with this command: only a new process tells whose fault it is."""
    what = f"while it served, {_WHAT[s.verify]}"
    after = s.cleared(
        Phase.AWAITING_LAUNCHER, restarted=True, identity="", restore="", died=f"{what}, so it is restarted as it was."
    )
    return after, (e.RestartEngine(s.attempt, what),)


def _retry_cold(s: Snapshot) -> Result:
    reason = f"{_WHAT[s.verify].capitalize()}: {s.verify_sentence}"
    condemned = (e.Quarantine(s.generation, reason),) if s.generation and s.restore in FROM_STORE else ()
    after = s.cleared(
        Phase.AWAITING_LAUNCHER,
        cold_next=True,
        cold_retried=True,
        blamed=s.generation if condemned else "",
        generation="",
        identity="",
        restore="",
        died=f"{_WHAT[s.verify]}, so it is restarted with empty caches.",
    )
    why = f"{_WHAT[s.verify]}; retrying with empty caches"
    return after, (*condemned, e.RestartEngine(s.attempt, why))


def _fall_back(s: Snapshot) -> Result:
    number = s.next_fallback
    change = f"`{s.fallbacks[number - 1]}`"
    after = s.cleared(
        Phase.AWAITING_LAUNCHER,
        fallback=number,
        tried=number,
        failed_starts=0,
        trusted=False,
        cold_retried=False,
        fallback_why=s.verify_sentence,
        generation="",
        identity="",
        restore="",
        died=f"{_WHAT[s.verify]}, so it is restarted with fallback {number} of {len(s.fallbacks)}, {change}.",
    )
    return after, (e.RestartEngine(s.attempt, f"{_WHAT[s.verify]}; falling back to {change}"),)
