"""With which fallback an engine starts: the pod's own choice, else what the store remembers for the command as it was asked for.

That one is needed, and which is next, is decided by the state machine; the launcher applies it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar import lifecycle
from sidecar.caches.client import BootsRequest, RecordRequest
from sidecar.caches.fingerprint import fingerprint
from sidecar.config.fallbacks import Change
from sidecar.kube.events import FALLBACK
from sidecar.lifecycle import Mode
from sidecar.supervisor.pod import Pod

#: Reading and writing one small file of the store; a store that takes longer hangs. Seconds.
LOOK_S, RECORD_S = 5.0, 30.0
UNKNOWN = "An earlier pod's output was bad without it."


@dataclass(frozen=True)
class Chosen:
    """The fallback for one start: its number (0: none), and why, where it was remembered from an earlier pod."""

    number: int = 0
    why: str = ""


async def choose(pod: Pod, command: lifecycle.Restore) -> Chosen:
    """Choose the fallback for a start, and make the facts of the command that will really run the pod's facts."""
    pod.original_facts = pod.facts
    chosen = Chosen(command.fallback)
    if not command.fallback:
        chosen = await _remembered(pod, command.tried)
    number = _possible(pod, chosen.number)
    use(pod, command.attempt, number)
    if not number:
        return Chosen()
    text = _changes(pod)[number - 1].text
    why = chosen.why if number == chosen.number else ""
    source = f" It is remembered from an earlier pod: {why}" if why else ""
    pod.board.tell(f"The engine starts with fallback {number} of {len(_changes(pod))}, `{text}`.{source}", "warning")
    return Chosen(number, why)


def use(pod: Pod, attempt: str, number: int) -> None:
    """Let this attempt run with a fallback (0: with none), in facts, metrics and status."""
    _note(pod, attempt, number, _changes(pod)[number - 1].text if number else "")
    pod.facts = facts_for(pod, pod.original_facts or pod.facts, attempt)


def recognise(pod: Pod, facts: Mapping[str, Any], attempt: str, text: str) -> None:
    """Learn with which fallback an engine runs that another process of this sidecar let start."""
    if text and attempt != pod.fallback_attempt:
        pod.original_facts = facts
        _note(pod, attempt, number_of(pod, text), text)


def _note(pod: Pod, attempt: str, number: int, text: str) -> None:
    pod.fallback, pod.fallback_attempt, pod.fallback_text = number, attempt, text
    pod.metrics.fallback(number, text)
    shown = {"number": number, "of": len(_changes(pod)), "change": text} if text else None
    pod.board.engine = {**pod.board.engine, "fallback": shown}


def facts_for(pod: Pod, facts: Mapping[str, Any], attempt: str) -> Mapping[str, Any]:
    """Give the facts of the command that really starts: those of the launcher, with what the fallback changes."""
    plain = {name: value for name, value in facts.items() if name != "fallbacks"}
    if not pod.fallback_text or attempt != pod.fallback_attempt:
        return facts
    changed = _variants(facts).get(pod.fallback_text, {}).get("facts")
    return {**plain, **changed} if isinstance(changed, Mapping) else facts


def change_of(pod: Pod) -> Mapping[str, Any] | None:
    """Give the change for the launcher, None: none."""
    return _changes(pod)[pod.fallback - 1].to_json() if pod.fallback else None


def began(pod: Pod, command: lifecycle.Restore, why: str) -> None:
    """Count and announce that an engine starts with a fallback, now that its launcher knows."""
    if not pod.fallback:
        return
    pod.metrics.count_fallback()
    text = _changes(pod)[pod.fallback - 1].text
    reason = f" Remembered from an earlier pod: {why}" if why else ""
    pod.announce(FALLBACK, f"The engine starts with fallback {command.fallback or pod.fallback}, `{text}`.{reason}")


def number_of(pod: Pod, text: str) -> int:
    """Give the number of a fallback by its text; 0: it is not configured."""
    return next((number for number, each in enumerate(_changes(pod), 1) if each.text == text), 0)


async def remember(pod: Pod, command: lifecycle.Remember) -> None:
    """Write into the store that engines asked for like this one are good with the fallback; a read-only store is told."""
    text = _changes(pod)[command.fallback - 1].text
    if not pod.store or pod.settings.store_mode == "read-only":
        what = "the store is read-only" if pod.store else "there is no store"
        pod.board.tell(
            f"Fallback `{text}` is remembered for this pod's life only, because {what}: the next pod fails its check first.",
            "warning",
        )
        return
    record = {
        "change": text,
        "reason": command.why,
        "at": round(pod.board.wall(), 3),
        "attempt": pod.fallback_attempt,
        "boot": pod.boot,
        "pod": pod.name,
    }
    request = RecordRequest(
        store=pod.store,
        scope="exact",
        key=_original_key(pod),
        generation="",
        kind="fallback",
        name=hashlib.sha256(text.encode()).hexdigest()[:16],
        record=record,
    )
    if trouble := await pod.caches.record(request, RECORD_S):
        pod.board.tell(f"The fallback can't be remembered, so the next pod fails its check first: {trouble}", "warning")
        return
    pod.board.tell(
        f"Fallback `{text}` is remembered for key {_original_key(pod)[:12]}: later pods start with it at once, until "
        "`warmup-sidecar golden lift`.",
        "warning",
    )


async def _remembered(pod: Pod, tried: int) -> Chosen:
    """Look up what earlier pods came to; of several the newest, and none that is not configured now or that this pod tried.

    Not the last of the list: it may have been put into another order since, and an older one was not good any more.
    """
    if not _changes(pod) or not pod.store or pod.mode is Mode.BESIDE or not pod.live_cache:
        return Chosen()
    request = BootsRequest(store=pod.store, scope="exact", key=_original_key(pod), what="fallbacks")
    known: list[tuple[float, Chosen]] = []
    for record in await pod.caches.boots(request, LOOK_S):
        text = str(record.get("change"))
        if 0 < (number := number_of(pod, text)) <= tried:
            pod.board.tell(
                f"The remembered fallback `{text:.200}` is not taken, because this pod gave it, or a later one, up; "
                "`warmup-sidecar golden lift` forgets it.",
                "warning",
            )
        elif number:
            at = record.get("at")
            since = float(at) if isinstance(at, int | float) else 0.0
            known.append((since, Chosen(number, str(record.get("reason") or UNKNOWN))))
        else:
            pod.board.tell(
                f"The remembered fallback `{text:.200}` is not among WARMUP_FALLBACKS any more, so it is ignored; "
                "`warmup-sidecar golden lift` forgets it.",
                "warning",
            )
    return max(known, key=lambda each: (each[0], each[1].number), default=(0.0, Chosen()))[1]


def _possible(pod: Pod, number: int) -> int:
    """Give the first fallback from this one on that the launcher can apply to this command; 0: none."""
    without = _problems(pod)
    return next((each for each in range(number, len(_changes(pod)) + 1) if each not in without), 0) if number else 0


def impossible(pod: Pod) -> frozenset[int]:
    """Give the fallbacks that the launcher can't apply to the command at hand, and tell why, once for each start."""
    found = _problems(pod)
    for number, why in found.items():
        pod.board.tell(f"Fallback {number}, `{_changes(pod)[number - 1].text}`, can't be applied: {why}.", "error")
    return frozenset(found)


def _problems(pod: Pod) -> dict[int, str]:
    """Give why fallbacks can't be applied, by number."""
    variants, found = _variants(pod.facts), dict[int, str]()
    for number, change in enumerate(_changes(pod), 1):
        one = variants.get(change.text)
        if one is None:
            found[number] = "the launcher read other settings; it does at the engine's next start"
        elif not isinstance(one.get("facts"), Mapping):
            found[number] = str(one.get("problem"))
    return found


def _variants(facts: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    found = facts.get("fallbacks")
    entries = found if isinstance(found, list) else []
    return {str(one.get("text")): one for one in entries if isinstance(one, Mapping)}


def _changes(pod: Pod) -> tuple[Change, ...]:
    return pod.settings.fallback_changes


def _original_key(pod: Pod) -> str:
    """Give the exact key of the command as it was asked for: a fallback's own key is another."""
    return fingerprint(pod.original_facts or pod.facts, pod.live_cache).exact_key
