"""A golden check against a scripted engine: what passes, what fails and why, and what can't be judged."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from sidecar.engines.protocol import Completion, CompletionRequest, EngineStats
from sidecar.errors import EngineError, GoldenError
from sidecar.golden import GoldenProgress, GoldenSet, PromptSet, load, save
from tests.unit.golden_scene import PASSAGE, Scene, prompts, scene


async def test_an_engine_passes_its_own_recording_and_drifts_by_nothing():
    async with scene() as here:
        result = await here.check(await here.record())
    assert result.outcome == "passed", result.sentence
    assert result.drift_percent == pytest.approx(0.0, abs=0.01)
    assert result.prompts == 12
    assert result.failed == ()


async def test_near_ties_that_flip_on_a_prefix_hit_and_in_a_batch_do_not_fail():
    async with scene() as here:
        golden = await here.record(prompts(24))
        here.fake.script.fault = "near_ties"
        result = await here.check(golden)
    assert result.outcome == "passed", result.sentence
    assert int(result.statistics["near_ties"] or 0) > 0


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("nan", "12 of 12 prompts went wrong"),
        ("nan_null", "not a number"),
        ("empty", "no text came"),
        ("null", "no text came"),
        ("repeat", "12 of 12 prompts went wrong"),
        ("other_weights", "12 of 12 prompts went wrong"),
        ("drift", "recorded"),
    ],
)
async def test_what_is_wrong_with_every_answer_fails_and_is_named(fault: str, says: str):
    async with scene() as here:
        golden = await here.record()
        here.fake.script.fault = fault
        result = await here.check(golden)
    assert result.outcome == "failed", result.sentence
    assert says in result.sentence
    assert result.failed


async def test_one_answer_wrong_only_behind_a_cached_prefix_fails_and_points_at_shared_kv_caches():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.fault = "prefix"
        result = await here.check(golden)
    assert result.outcome == "failed", result.sentence
    assert {each.way for each in result.failed} == {"concurrent"}
    assert "prefix caching" in result.sentence


async def test_answers_wrong_only_in_a_batch_fail_and_point_at_graphs():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.fault = "batch"
        result = await here.check(golden)
    assert result.outcome == "failed", result.sentence
    assert {each.way for each in result.failed} == {"batch"}
    assert "CUDA graphs" in result.sentence


async def test_the_same_tokens_are_demanded_only_where_batch_invariance_is_promised():
    async with scene(batch_invariant=True) as here:
        golden = await here.record(prompts(24))
        here.fake.script.fault = "exact"
        promised = await here.check(golden)
        facts = dataclasses.replace(await here.facts(), batch_invariant=None)
        unpromised = await here.check(golden, facts=facts)
    assert promised.outcome == "failed"
    assert "promises" in promised.sentence
    assert unpromised.outcome == "passed", unpromised.sentence


async def test_a_recording_of_another_model_is_refused_and_not_called_drift(tmp_path: Path):
    async with scene() as here:
        golden = await here.record()
        facts = dataclasses.replace(await here.facts(), model="other", root="/models/other")
        before = here.fake.counters.texts
        refused = await here.check(dataclasses.replace(golden, path=tmp_path / "g.yaml"), facts=facts)
        of_many = await here.check(dataclasses.replace(golden, path=tmp_path), facts=facts)
    assert (refused.outcome, refused.drift_percent) == ("error", None)
    assert "the engine serves other" in refused.sentence
    assert "`models`" in refused.sentence
    assert of_many.outcome == "skipped"
    assert here.fake.counters.texts == before


async def test_a_recording_made_with_another_tokenizer_is_refused():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.fault = "other_tokenizer"
        result = await here.check(golden)
    assert result.outcome == "error"
    assert "tokenizer" in result.sentence


async def test_an_engine_that_reads_nothing_back_is_judged_by_what_it_generates():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.fault = "no_reading"
        result = await here.check(golden, read_all=True)
    assert result.outcome == "passed", result.sentence
    assert any("prompt_logprobs" in note for note in result.notes)
    assert result.drift_percent is not None


async def test_an_engine_without_any_details_is_compared_by_text():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.fault = "no_details"
        result = await here.check(golden)
    assert result.outcome == "passed", result.sentence


async def test_an_engine_that_knows_openai_fields_alone_can_still_be_checked():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.extensions = False
        result = await here.check(golden)
    assert result.outcome == "passed", result.sentence
    assert any("cache salts" in note for note in result.notes)


async def test_nothing_is_sent_to_a_sleeping_engine():
    async with scene() as here:
        golden = await here.record()
        before = here.fake.counters.texts
        awake = await here.facts()
        here.fake.script.asleep = True
        known = await here.check(golden)
        unknown = await here.check(golden, facts=awake)
        told = await here.check(golden, facts=awake, asleep=lambda: True)
    assert {each.outcome for each in (known, unknown, told)} == {"skipped"}
    assert "asleep" in unknown.sentence
    assert here.fake.counters.texts == before


async def test_an_engine_that_has_gone_is_told_from_one_that_fails():
    async with scene() as here:
        golden = await here.record()
        facts = await here.facts()
        await here.fake.kill()
        result = await here.check(golden, facts=facts)
        silent = await here.check(golden, facts=facts, asleep=lambda: False)
    assert result.outcome == silent.outcome == "engine_gone"


async def test_an_engine_that_does_not_answer_in_time_is_no_failure_of_its_output():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.generation = "hang"
        result = await here.check(golden, deadline_s=0.3)
    assert result.outcome == "error"
    assert "slow or busy" in result.sentence or "in time" in result.sentence


async def test_an_engine_that_answers_with_errors_can_not_be_judged():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.generation = "500"
        result = await here.check(golden)
    assert (result.outcome, result.failed) == ("error", ())
    assert "HTTP 500" in result.sentence


async def test_log_probabilities_that_can_not_be_written_for_some_prompts_show_in_the_text_of_these():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.fault = "nan_late"
        result = await here.check(golden)
    assert result.outcome == "failed", result.sentence
    assert {each.name for each in result.failed} == {"s0", "s1", "s2", "s3"}
    assert set(result.failed[0].got) == {"!"}


NIXL = ("NixlConnector",)


@pytest.mark.parametrize(
    "facts", [{"tasks": ("embed",)}, {"role": "prefill"}, {"role": "prefill", "kv_connectors": NIXL}]
)
async def test_an_engine_that_makes_no_text_is_skipped(facts: dict[str, object]):
    async with scene() as here:
        golden = await here.record()
        before = here.fake.counters.texts
        result = await here.check(golden, facts=dataclasses.replace(await here.facts(), **facts))
    assert result.outcome == "skipped"
    assert here.fake.counters.texts == before


async def test_every_check_begins_with_an_empty_cache_and_only_passages_are_shared():
    async with scene() as here:
        golden = await here.record()
        here.fake.requests.clear()
        await here.check(golden)
        await here.check(golden)
    salts = [each["cache_salt"] for each in here.fake.requests]
    shared = [each for each in salts if "-passage-" in each]
    alone = [each for each in salts if "-passage-" not in each]
    assert len(set(alone)) == len(alone)
    assert len(set(shared)) == 2
    assert len(shared) == 2 * 5


async def test_a_batch_has_a_size_that_a_graph_is_captured_for():
    async with scene() as here:
        golden = await here.record()
        facts = dataclasses.replace(await here.facts(), cudagraph_sizes=(1, 2, 4, 10, 64))
        here.fake.requests.clear()
        result = await here.check(golden, facts=facts)
    batch = [each for each in here.fake.requests if "-batch-" in each["cache_salt"]]
    assert result.outcome == "passed", result.sentence
    assert len(batch) == 10


async def test_chat_prompts_are_asked_only_where_there_is_a_template():
    chat = PromptSet.model_validate(
        {
            "prompts": [
                {"name": "text", "text": "One two"},
                {"name": "chat", "messages": [{"role": "user", "content": "Hi"}]},
            ]
        }
    )
    async with scene() as here:
        golden = await here.record(chat)
        both = await here.check(golden)
        here.fake.script.chat_template = False
        one = await here.check(golden)
    assert (both.outcome, both.prompts) == ("passed", 2)
    assert (one.outcome, one.prompts) == ("passed", 1)
    assert any("no chat template" in note for note in one.notes)


async def test_an_expression_that_the_trusted_engine_met_must_be_met_again():
    async with scene() as here:
        plain = await here.record(prompts(2))
        word = plain.files[0].prompts[0].answer.text.split()[0]
        chosen = prompts(2).model_dump()
        chosen["prompts"][0]["expect"], chosen["prompts"][1]["expect"] = word, "never said"
        golden = await here.record(PromptSet.model_validate(chosen))
        file = golden.files[0]
        assert [each.answer.met for each in file.prompts[:2]] == [True, False]
        other = file.prompts[0].model_copy(update={"expect": "something else"})
        changed = dataclasses.replace(golden, files=(file.model_copy(update={"prompts": (other, *file.prompts[1:])}),))
        result = await here.check(changed)
    assert result.outcome == "failed"
    assert "does not match 'something else'" in result.sentence


async def test_an_engine_that_differs_from_itself_is_not_recorded():
    async with scene(fault="batch") as here:
        with pytest.raises(GoldenError, match="can't be trusted"):
            await here.record()


async def test_an_engine_that_says_nothing_but_one_character_is_not_recorded():
    async with scene(fault="nan") as here:
        with pytest.raises(GoldenError, match="degenerate"):
            await here.record()


async def test_a_recording_read_back_from_its_file_judges_the_same(tmp_path: Path):
    async with scene() as here:
        golden = await here.record()
        save(golden, tmp_path / "golden.yaml")
        again = load(tmp_path / "golden.yaml")
        assert again.files == golden.files
        passed = await here.check(again)
        here.fake.script.fault = "other_weights"
        failed = await here.check(again)
    assert (passed.outcome, failed.outcome) == ("passed", "failed")


async def test_several_recordings_of_one_model_are_all_checked(tmp_path: Path):
    async with scene() as here:
        golden = await here.record(prompts(2))
        result = await here.check(GoldenSet(tmp_path, golden.files * 2))
    assert (result.outcome, result.prompts) == ("passed", 12)
    assert "2 recordings" in result.sentence


async def test_progress_is_told_answer_by_answer():
    told: list[GoldenProgress] = []
    async with scene() as here:
        golden = await here.record()
        result = await here.check(golden, progress=told.append)
    assert [each.way for each in told] == sorted(
        (each.way for each in told), key=["solo", "concurrent", "batch", "likelihood"].index
    )
    assert told[-1].done <= told[-1].total
    assert result.answers == len(told)


async def test_answers_given_token_for_token_are_not_read_back_and_their_likelihood_is_judged_all_the_same():
    told: list[GoldenProgress] = []
    async with scene() as here:
        golden = await here.record()
        short = await here.check(golden, progress=told.append)
        whole = await here.check(golden, read_all=True)
    tokens = sum(len(each.answer.ids) for each in golden.files[0].prompts)
    assert "likelihood" not in {each.way for each in told}
    assert told[-1].done == told[-1].total
    assert short.statistics["tokens"] == whole.statistics["tokens"] == tokens
    assert short.answers == whole.answers - 12


async def test_prompts_behind_passages_are_sent_together_and_one_of_them_in_a_batch():
    async with scene() as here:
        golden = await here.record()
        here.fake.requests.clear()
        result = await here.check(golden)
    salts = [str(each["cache_salt"]) for each in here.fake.requests if "cache_salt" in each]
    shared = [each for each in golden.files[0].prompts if each.passage]
    passages = {each.passage for each in shared}
    assert len(shared) > len(passages) >= 1
    assert sum("-passage-" in each for each in salts) == len(shared) + len(passages)
    sent = {each.name for each in shared if any(f"-batch-{each.name}-" in salt for salt in salts)}
    assert len(sent) == 1
    assert result.statistics["concurrent_prompts"] == len(shared)


async def test_only_answers_that_parted_are_read_back():
    told: list[GoldenProgress] = []
    async with scene() as here:
        golden = await here.record(prompts(24))
        here.fake.script.fault = "near_ties"
        result = await here.check(golden, progress=told.append)
    read = sum(each.way == "likelihood" for each in told)
    assert 0 < read < len(golden.files[0].prompts), result.statistics
    assert result.statistics["tokens"] == sum(len(each.answer.ids) for each in golden.files[0].prompts)


async def test_a_recording_is_read_back_as_a_whole_when_it_is_checked_against_itself():
    told: list[GoldenProgress] = []
    async with scene() as here:
        await here.record(progress=told.append)
    assert sum(each.way == "likelihood" for each in told) == 2 * 12


def behind(count: int, passage: str) -> list[dict[str, object]]:
    """Make so many prompts behind one passage."""
    return [
        {"name": f"{passage}{at}", "text": f"Question {at}:", "passage": passage, "max_tokens": 8}
        for at in range(count)
    ]


async def sent_together(here: Scene, golden: GoldenSet) -> list[str]:
    """Check, and give for each group of requests that were sent together behind passages the passages of its requests."""
    complete, groups, running = here.engine.complete, list[str](), 0

    async def noted(request: CompletionRequest) -> Completion:
        nonlocal running
        _, found, passage = str(request.cache_salt).rpartition("-passage-")
        if not found or request.max_tokens == 1:
            return await complete(request)
        groups.extend([""] if running == 0 else [])
        groups[-1] += passage
        running += 1
        try:
            return await complete(request)
        finally:
            running -= 1

    here.engine.complete = noted  # type: ignore[method-assign]
    result = await here.check(golden)
    assert result.outcome == "passed", result.sentence
    return groups


async def test_prompts_that_all_have_one_passage_are_still_sent_many_at_once():
    async with scene() as here:
        golden = await here.record(PromptSet.model_validate({"passages": {"a": PASSAGE}, "prompts": behind(12, "a")}))
        assert await sent_together(here, golden) == ["a" * 12]


async def test_prompts_of_a_passage_that_has_many_are_sent_without_those_of_others():
    texts = {each: f"{each} {PASSAGE}" for each in "abc"}
    asked = [*behind(9, "a"), *behind(3, "b"), *behind(2, "c")]
    async with scene() as here:
        golden = await here.record(PromptSet.model_validate({"passages": texts, "prompts": asked}))
        assert await sent_together(here, golden) == ["bbbcc", "a" * 9]


async def test_of_prompts_behind_passages_the_shortest_goes_into_a_batch():
    texts = {"a": f"{PASSAGE} {PASSAGE}", "b": PASSAGE}
    async with scene() as here:
        golden = await here.record(
            PromptSet.model_validate({"passages": texts, "prompts": [*behind(3, "a"), *behind(3, "b")]})
        )
        here.fake.requests.clear()
        await here.check(golden)
    salts = [str(each["cache_salt"]) for each in here.fake.requests if "-batch-" in str(each.get("cache_salt"))]
    assert salts
    assert {salt.partition("-batch-")[2].rpartition("-")[0] for salt in salts} == {"b0"}


async def test_prompts_that_each_have_a_passage_of_their_own_are_all_asked():
    texts = {f"t{at}": f"{at} {PASSAGE}" for at in range(12)}
    asked = [{"name": each, "text": "Go on:", "passage": each, "expect": ".", "max_tokens": 12} for each in texts]
    async with scene() as here:
        golden = await here.record(PromptSet.model_validate({"passages": texts, "prompts": asked}))
        here.fake.script.fault = "no_reading"
        result = await here.check(golden)
    assert (result.outcome, result.prompts, result.statistics["batch_prompts"]) == ("passed", 12, 16), result.sentence


def unlike_in_a_batch(here: Scene, of: str) -> None:
    """Let the engine give the tokens of prompts whose names begin so another likelihood in a batch; the tokens stay."""
    complete = here.engine.complete

    async def asked(request: CompletionRequest) -> Completion:
        got = await complete(request)
        if f"-batch-{of}" not in str(request.cache_salt):
            return got
        return dataclasses.replace(got, logprobs=tuple(each - 0.7 for each in got.logprobs or ()))

    here.engine.complete = asked  # type: ignore[method-assign]


async def test_limits_leave_room_for_a_prompt_whose_likelihood_varies_in_a_batch_by_itself():
    async with scene() as here:
        unlike_in_a_batch(here, "p7-")
        golden = await here.record(prompts(60))
        result = await here.check(golden)
    assert result.outcome == "passed", result.sentence
    assert golden.files[0].limits.worst_prompt > 0.7


async def test_an_engine_whose_likelihoods_in_a_batch_are_others_for_all_prompts_is_not_recorded():
    async with scene() as here:
        unlike_in_a_batch(here, "")
        with pytest.raises(GoldenError, match="differs from itself"):
            await here.record()


async def test_a_check_that_is_cancelled_leaves_no_request_behind():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.generation = "hang"
        task = asyncio.create_task(here.check(golden))
        while not here.fake.counters.running:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(30):
            while here.fake.counters.running:
                await asyncio.sleep(0.01)


def few(count: int, **more: object) -> PromptSet:
    """Make so few prompts that their answers say little."""
    found = [{"name": f"p{at}", "text": f"Tell me about number {at} and", **more} for at in range(count)]
    return PromptSet.model_validate({"prompts": found})


@pytest.mark.parametrize("count", [1, 3])
async def test_other_weights_fail_a_few_prompts_of_an_engine_that_tells_no_tokens(count: int):
    async with scene(extensions=False) as here:
        golden = await here.record(few(count))
        same = await here.check(golden)
        here.fake.script.fault = "other_weights"
        result = await here.check(golden)
    assert same.outcome == "passed", same.sentence
    assert result.outcome == "failed", result.sentence
    assert "only 0%" in result.sentence
    assert "0 of the 8 first tokens" in result.failed[0].reason


@pytest.mark.parametrize("script", [{"extensions": False}, {"fault": "no_details"}, {}])
async def test_one_prompt_with_one_token_can_be_recorded_and_the_file_says_what_is_not_known(script: dict[str, object]):
    async with scene(**script) as here:
        golden = await here.record(few(1, max_tokens=1, expect=r"\w"))
        passed = await here.check(golden)
        here.fake.script.fault = "other_weights"
        failed = await here.check(golden)
    assert golden.files[0].recorded.noise_percent == 0.0
    assert golden.files[0].limits.drift_percent == 10.0
    assert any("varies by itself" in each for each in golden.files[0].left_out)
    assert (passed.outcome, failed.outcome) == ("passed", "failed"), (passed.sentence, failed.sentence)


async def test_nothing_more_is_sent_once_the_engine_sleeps_whatever_was_last_seen_of_it():
    async with scene() as here:
        golden = await here.record()

        def sleep(_: GoldenProgress) -> None:
            here.fake.script.asleep = True

        result = await here.check(golden, progress=sleep, asleep=lambda: False)
    assert (result.outcome, result.cause) == ("skipped", "asleep")
    assert here.fake.counters.while_asleep == 0


async def test_an_error_of_an_engine_that_fell_asleep_meanwhile_is_its_sleep():
    async with scene() as here:
        golden = await here.record()
        facts = await here.facts()
        here.fake.script.generation = "500"
        complete = here.engine.complete

        async def asked_while_falling_asleep(request: CompletionRequest) -> Completion:
            here.fake.script.asleep = True
            return await complete(request)

        here.engine.complete = asked_while_falling_asleep  # type: ignore[method-assign]
        result = await here.check(golden, facts=facts)
    assert (result.outcome, result.cause) == ("skipped", "asleep")


async def test_wrong_answers_of_an_engine_that_fell_asleep_meanwhile_are_not_held_against_it():
    async with scene() as here:
        golden = await here.record()
        here.fake.script.fault = "other_weights"

        def sleep(progress: GoldenProgress) -> None:
            here.fake.script.asleep = progress.done == progress.total

        result = await here.check(golden, progress=sleep)
    assert (result.outcome, result.cause) == ("skipped", "asleep")


async def test_where_metrics_can_not_be_read_the_word_of_whoever_watches_counts():
    async with scene() as here:
        golden = await here.record()
        facts = await here.facts()

        async def stats() -> EngineStats:
            raise EngineError("no metrics for now")

        here.engine.stats = stats  # type: ignore[method-assign]
        awake = await here.check(golden, facts=facts, asleep=lambda: False)
        asleep = await here.check(golden, facts=facts, asleep=lambda: True)
        unknown = await here.check(golden, facts=facts)
    assert (awake.outcome, asleep.cause, unknown.outcome) == ("passed", "asleep", "error")


@pytest.mark.parametrize(
    ("script", "cause"),
    [({"generation": "500"}, "engine"), ({"generation": "hang"}, "time"), ({"fault": "other_tokenizer"}, "recording")],
)
async def test_what_kept_a_check_from_judging_is_told(script: dict[str, str], cause: str):
    async with scene() as here:
        golden = await here.record()
        for name, value in script.items():
            setattr(here.fake.script, name, value)
        result = await here.check(golden, deadline_s=2.0 if cause == "time" else 60.0)
    assert (result.outcome, result.cause) == ("error", cause), result.sentence


@pytest.mark.parametrize("fault", ["repeat", "nan_null", "empty"])
async def test_an_engine_whose_answers_are_mostly_degenerate_is_not_recorded(fault: str):
    async with scene(fault=fault) as here:
        with pytest.raises(GoldenError, match="12 of 12 answers are degenerate"):
            await here.record()


async def test_a_few_degenerate_answers_are_recorded_and_written_without_what_is_no_number(tmp_path: Path):
    async with scene(fault="nan_late") as here:
        golden = await here.record(prompts(8))
    odd = [each for each in golden.files[0].prompts if each.answer.odd]
    assert [each.name for each in odd] == ["s0", "s1", "s2", "s3"]
    save(golden, tmp_path / "golden.yaml")
    assert load(tmp_path / "golden.yaml").files == golden.files


async def test_an_answer_read_back_without_its_tokens_is_written_as_one_that_can_not_be_read_back(tmp_path: Path):
    async with scene() as here:
        complete = here.engine.complete

        async def without_its_tokens(request: CompletionRequest) -> Completion:
            got = await complete(request)
            return dataclasses.replace(got, prompt_logprobs=({},) * len(got.prompt_logprobs or ()))

        here.engine.complete = without_its_tokens  # type: ignore[method-assign]
        golden = await here.record()
    save(golden, tmp_path / "golden.yaml")
    assert {each.answer.scored for each in load(tmp_path / "golden.yaml").files[0].prompts} == {()}


async def test_fewer_than_half_of_the_recorded_prompts_prove_nothing():
    chat = [{"name": f"c{at}", "messages": [{"role": "user", "content": f"Hi {at}"}]} for at in range(3)]
    both = PromptSet.model_validate({"prompts": [*few(2).model_dump()["prompts"], *chat]})
    async with scene() as here:
        golden = await here.record(both)
        whole = await here.check(golden)
        here.fake.script.chat_template = False
        result = await here.check(golden)
        here.fake.script.fault = "other_weights"
        failed = await here.check(golden)
    assert (whole.outcome, result.outcome, failed.outcome) == ("passed", "skipped", "failed")
    assert "only 2 of the 5 recorded prompts could be asked" in result.sentence
