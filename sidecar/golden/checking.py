"""One golden check from its beginning to its result: may this engine be asked, is it the recorded model, what differs.

How requests are sent is in `asking.py`, what their answers are worth in `judging.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from sidecar.engines.protocol import Engine, EngineFacts
from sidecar.errors import EngineAsleep, EngineError, EngineGone, EngineUnauthorized, GoldenError
from sidecar.golden import identity
from sidecar.golden.asking import ASLEEP, Asker, Told, batch_size, sharing
from sidecar.golden.files import AnsweredPrompt, GoldenFile, GoldenSet
from sidecar.golden.judging import Compared, compare, mean_size, read_back, said_again, to_read
from sidecar.golden.limits import Limits
from sidecar.golden.prompts import why_not
from sidecar.golden.report import Cause, GoldenOutcome, GoldenProgress, GoldenResult
from sidecar.golden.verdict import judge
from sidecar.warmup.planner import work_of
from sidecar.warmup.roles import unchecked

#: Of the recorded prompts so many must be asked for a proof; pictures, chats or long prompts may not fit an engine.
LEAST_ASKED = 0.5
#: What counts when several recordings were checked, the worst first.
_WORST: Sequence[GoldenOutcome] = ("engine_gone", "failed", "error", "skipped", "passed")


async def check(
    engine: Engine,
    facts: EngineFacts,
    golden: GoldenSet,
    *,
    salt: str,
    deadline_s: float,
    progress: Callable[[GoldenProgress], None] | None = None,
    asleep: Callable[[], bool] | None = None,
    read_all: bool = False,
) -> GoldenResult:
    """Ask an engine the recorded prompts and compare; never raises for what the engine does.

    Recorded answers are read back unless the engine has just given them, or nearly all of them, token for token, with how
    likely each token was. `read_all` reads them back all the same, and the larger of both changes counts: limits that are
    made of it leave room for either.

    `salt` must differ between checks, so that each begins with an empty prefix cache. `deadline_s` covers the whole
    check, in seconds. The engine's metrics are read before each group of requests, so that nothing is sent to an engine
    that went to sleep; `asleep` is asked where they can't be read. Cancelling it cancels all its requests.
    """
    started = asyncio.get_running_loop().time()
    if reason := why_unasked(facts):
        told = f"The output is not compared with what was recorded: {reason}"
        return GoldenResult("skipped", told, cause="asleep" if reason == ASLEEP else "")
    mine = [each for each in golden.files if identity.same_model(each, facts)]
    if not mine:
        return _of_another_model(golden, facts)
    results = []
    for at, file in enumerate(mine):
        left = deadline_s - (asyncio.get_running_loop().time() - started)
        asker = Asker(engine, facts, f"{salt}-{at}", max(0.001, left), file.passages, progress, asleep)
        results.append(await _check_one(asker, file, read_all))
        if results[-1].outcome == "engine_gone" or results[-1].cause == "asleep":
            break
    result = results[0] if len(results) == 1 else _combined(results)
    return replace(result, seconds=asyncio.get_running_loop().time() - started)


def why_unasked(facts: EngineFacts) -> str:
    """Say in a sentence why an engine can't be sent golden prompts; empty where it can."""
    if refused := unchecked(facts):
        return refused
    if facts.role == "prefill":
        return "The engine reads prompts for others to answer, so it makes no text to compare."
    if work_of(facts.tasks) is not None:
        return f"The engine makes no text (its tasks: {', '.join(facts.tasks)})."
    return ASLEEP if facts.asleep else ""


async def _check_one(asker: Asker, file: GoldenFile, read_all: bool) -> GoldenResult:
    limits = identity.limits_for(file, asker.facts)
    plain = GoldenResult("error", "", allowed_percent=limits.drift_percent, label=file.label)
    try:
        compared = await _compared(asker, file, limits, read_all)
    except EngineGone as error:
        return replace(plain, outcome="engine_gone", sentence=str(error))
    except (EngineError, GoldenError) as error:
        return await _unjudged(replace(plain, answers=asker.answers, notes=tuple(asker.notes)), asker, error)
    found = _judged(plain, asker, file, limits, compared)
    if found.outcome == "failed" and await asker.fell_asleep():
        return replace(plain, outcome="skipped", sentence=ASLEEP, cause="asleep")
    return found


async def _unjudged(plain: GoldenResult, asker: Asker, error: EngineError | GoldenError) -> GoldenResult:
    """Say why nothing could be compared. What an engine answers once it sleeps is not held against anything."""
    if isinstance(error, EngineAsleep) or (isinstance(error, EngineError) and await asker.fell_asleep()):
        return replace(plain, outcome="skipped", sentence=ASLEEP, cause="asleep")
    cause: Cause = "recording" if isinstance(error, GoldenError) else "time" if asker.late else "engine"
    if isinstance(error, EngineUnauthorized):
        cause = "key"
    return replace(plain, sentence=f"The output can't be compared with what was recorded: {error}", cause=cause)


def _judged(
    plain: GoldenResult, asker: Asker, file: GoldenFile, limits: Limits, compared: Sequence[Compared]
) -> GoldenResult:
    verdict = judge(compared, limits)
    names = {each.name for each in compared}
    found = replace(
        plain,
        drift_percent=verdict.drift_percent,
        prompts=len(names),
        answers=asker.answers,
        failed=verdict.failed,
        statistics=verdict.statistics,
        notes=tuple(asker.notes),
    )
    what = f"{len(names)} prompts in {asker.answers} answers"
    other = identity.differences(file.recorded, asker.facts)
    if not names:
        return replace(found, outcome="skipped", sentence="None of the recorded prompts can be asked of this engine.")
    if verdict.why:
        return replace(found, outcome="failed", sentence=f"The output is not what was recorded: {verdict.why}.{other}")
    few = len(names) < LEAST_ASKED * len(file.prompts)
    if verdict.unsure or few:
        why = (
            verdict.unsure
            or f"only {len(names)} of the {len(file.prompts)} recorded prompts could be asked of this engine"
        )
        return replace(
            found, outcome="skipped", sentence=f"The output is not proven by what was recorded: {why}.{other}"
        )
    drift = f", drift {verdict.drift_percent:.1f} %" if verdict.drift_percent is not None else ""
    return replace(found, outcome="passed", sentence=f"The output is what was recorded ({what}{drift}).{other}")


async def _compared(asker: Asker, file: GoldenFile, limits: Limits, read_all: bool) -> list[Compared]:
    facts = asker.facts
    prompts = []
    for prompt in file.prompts:
        if reason := why_not(prompt, facts):
            asker.notes.append(f"'{prompt.name}' was left out: {reason}.")
        else:
            prompts.append(prompt)
    size = batch_size(facts, limits.batch, for_batches(prompts))
    asker.total = _total(prompts, size, limits.solo)
    await asker.begin()
    identity.must_be_same_tokenizer(file, asker.sentence_ids)
    told = await send_all(asker, prompts, size, limits)
    told, left_out = _read_alike(told)
    asker.notes += left_out
    exact = identity.exact(file.recorded, facts)
    by_name = {each.name: each for each in prompts}
    loops = any(each.answer.odd for each in file.prompts)

    def compare_all() -> list[Compared]:
        return [
            compare(by_name[one.prompt.name], one.way, one.completion, limits, exact=exact, loops=loops) for one in told
        ]

    # A person's expression may take its time on each answer.
    compared = await asyncio.to_thread(compare_all)
    likely = said_again(prompts, compared, limits)
    unread = to_read(prompts, compared, {} if read_all else likely, limits)
    asker.total += len(unread)
    scored = await asker.read_back(unread)
    texts = {each.name: each.got for each in reversed(compared)}
    for name, values in scored.items():
        read = read_back(by_name[name], values, limits, texts.get(name, ""))
        likely[name] = replace(read, changes=max(read.changes, likely.get(name, read).changes, key=mean_size))
    return [*compared, *likely.values()]


async def send_all(asker: Asker, prompts: Sequence[AnsweredPrompt], size: int, limits: Limits) -> list[Told]:
    """Send prompts in every way: some alone, those with a passage together behind it, the others in batches of `size`."""
    found = await asker.alone(spread(prompts, limits.solo))
    # Where most have a passage few go into batches, so that `size` would be too small for what many at once do.
    found += await asker.behind_a_prefix(prompts, batch_size(asker.facts, limits.batch, prompts))
    return found + await asker.in_batches(for_batches(prompts), size)


def for_batches(prompts: Sequence[AnsweredPrompt]) -> list[AnsweredPrompt]:
    """Choose what goes into batches: of prompts that are sent together behind passages only the shortest.

    A batch reads each passage anew. What has a passage of its own is sent together with no other, so that it goes in, too.
    """
    together = [each for group in sharing(prompts) for each in group]
    kept = min(together, key=lambda each: len(each.answer.prompt_ids), default=None)
    left_out = {each.name for each in together if each is not kept}
    return [each for each in prompts if each.name not in left_out]


def spread(prompts: Sequence[AnsweredPrompt], count: int) -> list[AnsweredPrompt]:
    """Choose so many prompts, evenly over all of them; 0 chooses all."""
    if count == 0 or count >= len(prompts):
        return list(prompts)
    return [prompts[at * len(prompts) // count] for at in range(count)]


def _total(prompts: Sequence[AnsweredPrompt], size: int, solo: int) -> int:
    """Count the answers a check will ask for, about; how many are read back is known later."""
    shared, batch = sum(bool(each.passage) for each in prompts), len(for_batches(prompts))
    return len(spread(prompts, solo)) + shared + -(-batch // max(1, size)) * size


def _read_alike(told: Sequence[Told]) -> tuple[list[Told], list[str]]:
    """Leave answers out whose prompt the engine read as other tokens. Raises GoldenError where that is plain text.

    Chat templates may put today's date into a prompt, so that is no fault there.
    """
    kept, notes = [], dict[str, None]()
    for each in told:
        assert isinstance(each.prompt, AnsweredPrompt)
        ids, recorded = each.completion.prompt_token_ids, each.prompt.answer.prompt_ids
        if not ids or not recorded or ids == recorded:
            kept.append(each)
        elif each.prompt.messages:
            notes[f"'{each.prompt.name}' was left out: the chat template now makes other tokens of it."] = None
        else:
            raise GoldenError(
                f"the engine reads the prompt '{each.prompt.name}' as other tokens than when it was recorded; record again "
                "with this tokenizer."
            )
    return kept, list(notes)


def _of_another_model(golden: GoldenSet, facts: EngineFacts) -> GoldenResult:
    names = ", ".join(dict.fromkeys(name for file in golden.files for name in file.models))
    told = f"{golden.path} was recorded from {names}, and the engine serves {facts.model}"
    if golden.path.is_dir():
        return GoldenResult("skipped", f"The output is not compared: {told}.")
    more = "If it is the same model under another name, add that name to `models` in the file; else record again."
    return GoldenResult(
        "error", f"The output can't be compared with what was recorded: {told}. {more}", cause="recording"
    )


def _combined(results: Sequence[GoldenResult]) -> GoldenResult:
    """Put the results of several recordings together: the worst outcome and its sentence, everything that failed."""
    worst = min(results, key=lambda each: (_WORST.index(each.outcome), each.cause != "asleep"))
    drifts = [each.drift_percent for each in results if each.drift_percent is not None]
    return replace(
        worst,
        drift_percent=max(drifts, default=None),
        prompts=sum(each.prompts for each in results),
        answers=sum(each.answers for each in results),
        failed=tuple(one for each in results for one in each.failed),
        notes=tuple(dict.fromkeys(note for each in results for note in each.notes)),
        sentence=f"{worst.sentence} ({len(results)} recordings were checked.)",
    )
