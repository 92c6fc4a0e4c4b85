"""What output is called degenerate, and what is only odd."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from sidecar.engines.protocol import Completion, CompletionRequest, EngineStats
from sidecar.errors import EngineError
from sidecar.warmup.degenerate import same_everywhere, text_wrong, what_is_wrong, what_is_wrong_sampled
from sidecar.warmup.verify import BUSY_S, IN_TURN, canary, verify
from tests.unit.warmup_engine import FACTS, StandInEngine, failed, now

pytestmark = pytest.mark.looptime

GOOD = Completion(ok=True, status=200, ttft_s=0.1, total_s=0.2, text="they waved at the boat and went home", tokens=9)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no text came"),
        ("!!!!!!!!!!!!!!!!", "the character '!' 16 times"),
        (" the" * 32, "repeats 'the'"),
        ("The harbour was calm" + " and so" * 30, "over and over"),
        ("\ufffd" * 20, "unreadable"),
        ("\x00\x01" * 20, "unreadable"),
        ("\u200b\u200c\u200d\ufeff" * 8, "unreadable"),
        ("  \n \n   ", "white space"),
    ],
)
def test_text_that_cannot_be_right_is_degenerate(text, part):
    assert part in text_wrong(text, 32)


@pytest.mark.parametrize(
    "text",
    [
        "they waved at the boat and went home",
        "def f(x):\n    return x\n\n\ndef g(x):\n    return f(x)\n",
        "Yes.",
        "ha ha ha",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
        "桥在春天关闭了，因为木梁腐朽了。",
        "🙂🙃 \ufffd\ufffd ok then, more",
    ],
)
def test_text_that_is_merely_odd_is_not(text):
    assert text_wrong(text, 12) == ""


@pytest.mark.parametrize(
    "text",
    [
        "1000000000000000",
        "0.3333333333333333",
        "0.142857142857142857142857142857",
        "0x0000000000000000",
        "0000000000000000000000000000000000000000",
        "A" * 64,
        "=" * 40,
        "Contents . . . . . . . . . . . . . . . . . . . . .",
        "Name: ______________________________",
        "0 0 0 0\n0 0 0 0\n0 0 0 0\n0 0 0 0\n",
        "            }\n        }\n    }\n}\n" * 2,
        "apple apple apple apple apple apple apple apple",
        "哈哈哈哈哈哈哈哈哈",
        "55555555555",
        "😂😂😂😂😂😂😂😂😂😂",
        "Hahahahahahaha",
    ],
)
def test_repeats_that_an_answer_ended_by_itself_were_meant(text):
    answer = replace(GOOD, text=text, token_ids=(7,) * 20, finish_reason="stop")
    assert what_is_wrong(answer) == what_is_wrong_sampled(answer) == ""
    assert what_is_wrong(replace(answer, finish_reason="length")) != ""


def test_an_answer_that_ended_without_a_word_or_with_noise_is_degenerate_all_the_same():
    assert "no text came" in what_is_wrong(replace(GOOD, text="", finish_reason="stop"))
    assert "unreadable" in what_is_wrong(replace(GOOD, text="\ufffd" * 20, finish_reason="stop"))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (" the The THE the The the The the The the THE the The the The", "15 of 15 words are 'the'"),
        ("the, the. the the! the, the the. the the, the! the the.", "words are 'the'"),
        (" ".join(f"{number}. the" for number in range(1, 17)), "16 of 16 words are 'the'"),
        ("foo bar foo bar foo bar bar foo bar foo bar foo foo bar foo bar foo bar", "18 of 18 words are the same two"),
        ("ok!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!.", "32 of 35 characters are '!'"),
        ("the quick brown fox jumps over it " * 3, "over and over"),
        ("The river ran under the old stone bridge." + " so it" * 12, "over and over"),
    ],
)
def test_repeats_with_variations_are_degenerate_where_prose_was_continued_and_nowhere_else(text, part):
    answer = replace(GOOD, text=text, finish_reason="length")
    assert part in what_is_wrong_sampled(answer)
    assert what_is_wrong(answer) == ""


def test_two_tokens_in_turn_are_degenerate():
    answer = replace(GOOD, token_ids=(5, 9) * 16, finish_reason="length")
    assert "32 of 32 tokens are the same two" in what_is_wrong_sampled(answer)


@pytest.mark.parametrize("words", [4, 16, 4096])
def test_a_tiny_vocabulary_with_random_weights_is_not_degenerate(words):
    """Twice in a row, as it is asked: one draw of four words may look like anything."""
    rng = random.Random(words)
    pieces = [" " + "".join(rng.choice("abcdefgh") for _ in range(4)) for _ in range(words)]

    def draw() -> Completion:
        return replace(GOOD, text="".join(rng.choice(pieces) for _ in range(32)), finish_reason="length")

    assert not any(what_is_wrong_sampled(draw()) and what_is_wrong_sampled(draw()) for _ in range(2000))


def test_random_weights_are_not_degenerate():
    """Tokens drawn evenly from a byte-level vocabulary of 4096, of which one in 16 is a lone byte."""
    rng = random.Random(1)
    pieces = [chr(rng.randrange(97, 123)) * 1 + chr(rng.randrange(32, 123)) for _ in range(3840)] + ["\ufffd"] * 256
    for _ in range(2000):
        assert text_wrong("".join(rng.choice(pieces) for _ in range(32)), 32) == ""


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"logprobs": (-1.0, math.nan, -2.0)}, "not a number"),
        ({"logprobs": (-9999.0,) * 10}, "all 10 log-probabilities are -9999"),
        ({"logprobs": (-1.0, 0.5)}, "above 0"),
        ({"token_ids": (0,) * 12}, "12 of 12 tokens are the token 0"),
    ],
)
def test_numbers_that_cannot_be_right_are_degenerate(fields, part):
    assert part in what_is_wrong(replace(GOOD, **fields))


def test_plausible_numbers_pass():
    assert what_is_wrong(replace(GOOD, logprobs=(-0.1, 0.0, -8.5), token_ids=tuple(range(12)))) == ""
    # Of a model that is certain of every token.
    assert what_is_wrong(replace(GOOD, logprobs=(0.0,) * 12)) == ""


def test_one_answer_to_all_prompts_is_degenerate():
    assert "2 different prompts got the same answer" in same_everywhere(["always the same", "always the same"])
    assert same_everywhere(["always the same", "never the same"]) == ""


async def test_a_good_engine_passes_alone_and_together():
    engine = StandInEngine()
    result = await verify(engine, FACTS, salt="s1")
    assert result.outcome == "passed"
    assert len(result.checks) == 7
    assert engine.busiest == 4
    assert {request.temperature for request in engine.requests} == {1.0}
    assert {request.cache_salt for request in engine.requests} == {"s1"}
    assert len({request.extra["seed"] for request in engine.requests}) == 6
    assert all(isinstance(request.prompt, str) for request in engine.requests)


def _says(text: str) -> StandInEngine:
    engine = StandInEngine()
    engine.text = lambda _: text
    return engine


@pytest.mark.parametrize("text", ["!" * 32, "", " the" * 32, "\ufffd" * 32, "the same good sentence for everybody"])
async def test_a_broken_engine_is_called_degenerate(text):
    result = await verify(_says(text), FACTS)
    assert result.outcome == "degenerate"
    assert "The output is degenerate" in result.sentence


async def test_damage_that_only_concurrent_requests_show_is_found():
    engine = StandInEngine()
    good = engine.text
    engine.text = lambda request: "!" * 32 if engine.in_flight > 1 else good(request)
    # Asked again one at a time, such an engine answers well; so concurrent answers are asked for again
    # together.
    assert (await verify(engine, FACTS)).outcome == "degenerate"


async def test_one_odd_answer_is_asked_for_again_with_another_seed():
    engine = StandInEngine()
    good = engine.text
    engine.text = lambda request: "." * 32 if request.extra["seed"] == 12 else good(request)
    assert (await verify(engine, FACTS)).outcome == "passed"
    assert any(request.extra["seed"] == 1012 for request in engine.requests)


async def test_a_model_that_fills_up_with_its_last_token_is_asked_without_that():
    """`ignore_eos` has a good model go on after it has said all, with the token that it wanted to end with."""
    engine = StandInEngine()

    def fills_up(request: CompletionRequest) -> Completion:
        ids = (11, 12, 13) if "ignore_eos" not in request.extra else (11, 12, 13) + (2,) * (request.max_tokens - 3)
        reason = "length" if "ignore_eos" in request.extra else "stop"
        text = f"In spring {request.extra.get('seed')}."
        return Completion(True, 200, 0.1, 0.1, text=text, tokens=len(ids), token_ids=ids, finish_reason=reason)

    engine.answer = fills_up
    assert (await verify(engine, FACTS)).outcome == "passed"
    assert (await canary(engine, FACTS)).outcome == "passed"


async def test_prompts_of_a_short_model_that_are_the_same_when_cut_may_have_the_same_answer():
    engine = StandInEngine()
    engine.text = lambda request: f"what follows {request.prompt} is certain"
    assert (await verify(engine, replace(FACTS, max_model_len=64))).outcome == "passed"


async def test_an_engine_that_fails_is_not_called_degenerate():
    engine = StandInEngine()
    engine.answer = lambda _: failed("broken", "HTTP 500 to /v1/completions: boom", 500)
    result = await verify(engine, FACTS)
    assert result.outcome == "failed"
    assert "boom" in result.sentence
    assert len(engine.requests) == 1


async def test_an_engine_that_dies_meanwhile_is_gone():
    engine = StandInEngine()
    engine.answer = lambda _: failed("reset", "reset", None) if engine.in_flight > 1 else None
    assert (await verify(engine, FACTS)).outcome == "engine_gone"


async def test_an_engine_without_log_probabilities_is_asked_without():
    def refuses(request: CompletionRequest) -> Any:
        return failed("unsupported", "HTTP 400: logprobs", 400) if "logprobs" in request.extra else None

    engine = StandInEngine()
    engine.answer = refuses
    assert (await verify(engine, FACTS)).outcome == "passed"


async def test_an_engine_that_refuses_seeds_is_checked_without_and_not_skipped():
    engine = StandInEngine()
    refused = failed("unsupported", "HTTP 400: unknown field seed", 400)
    engine.answer = lambda request: refused if "seed" in request.extra else None
    engine.text = lambda _: "!" * 32
    assert (await verify(engine, FACTS)).outcome == "degenerate"
    assert (await canary(engine, FACTS)).outcome == "degenerate"


@pytest.mark.parametrize(("status", "kind"), [(429, "timed_out"), (503, "broken")])
async def test_an_engine_that_takes_two_requests_at_once_passes_the_check(status, kind):
    engine = StandInEngine()
    engine.answer = lambda _: failed(kind, "queue full", status) if engine.in_flight > 2 else None
    assert (await verify(engine, FACTS)).outcome == "passed"


async def test_an_engine_that_is_full_for_ever_is_given_up_within_seconds():
    engine, began = StandInEngine(), now()
    engine.answer = lambda _: failed("timed_out", "HTTP 429: queue full", 429)
    result = await verify(engine, FACTS)
    assert (result.outcome, result.refuses) == ("failed", False)
    assert "queue full" in result.sentence
    assert 5 < now() - began <= BUSY_S


async def test_an_engine_that_falls_asleep_while_it_is_full_is_not_asked_again():
    engine = StandInEngine()

    def falls_asleep(_request: CompletionRequest) -> Completion:
        engine.stats = asleep
        return failed("broken", "HTTP 503", 503)

    engine.answer = falls_asleep
    result = await canary(engine, FACTS)
    assert (result.outcome, len(engine.requests)) == ("failed", 1)
    assert "asleep" in result.sentence


async def test_a_sample_of_a_serving_engine_that_is_full_is_one_request():
    engine = StandInEngine()
    engine.answer = lambda _: failed("timed_out", "HTTP 429: queue full", 429)
    await canary(engine, FACTS, patience_s=0.0)
    assert len(engine.requests) == 1


async def test_prompts_fit_a_short_model():
    engine = StandInEngine()
    await verify(engine, replace(FACTS, max_model_len=64))
    assert all(2 * len(request.prompt or "") + request.max_tokens <= 64 for request in engine.requests)


async def test_the_canary_is_one_request():
    engine = StandInEngine()
    result = await canary(engine, FACTS)
    assert (result.outcome, len(engine.requests)) == ("passed", 1)
    assert "logprobs" not in engine.requests[0].extra


@pytest.mark.parametrize(("text", "outcome"), [("!" * 12, "degenerate"), ("", "degenerate")])
async def test_the_canary_notices_a_broken_engine(text, outcome):
    assert (await canary(_says(text), FACTS)).outcome == outcome


async def test_an_engine_without_a_safe_payload_is_not_asked_for_its_output():
    engine = StandInEngine()
    facts = replace(FACTS, role="decode")
    for result in (await verify(engine, facts), await canary(engine, facts)):
        assert result.outcome == "skipped"
        assert "no safe local payload" in result.sentence
    assert engine.requests == []


@pytest.mark.parametrize(
    ("tasks", "kind"), [(("embed",), "embed"), (("score",), "score"), (("transcription",), "transcription")]
)
async def test_an_engine_that_generates_no_text_is_asked_for_what_it_does(tasks, kind):
    engine = StandInEngine()
    engine.answer = lambda _: Completion(ok=True, status=200, ttft_s=None, total_s=0.1)
    result = await verify(engine, replace(FACTS, tasks=tasks))
    assert result.outcome == "passed"
    assert [request.work.kind for request in engine.requests if request.work] == [kind]


@pytest.mark.parametrize(
    ("kind", "outcome"), [("broken", "failed"), ("reset", "engine_gone"), ("unsupported", "skipped")]
)
async def test_other_work_that_is_not_answered_is_told(kind, outcome):
    engine = StandInEngine()
    engine.answer = lambda _: failed(kind, "HTTP 5xx: numba", None)
    result = await verify(engine, replace(FACTS, tasks=("transcription",)))
    assert result.outcome == outcome
    assert "numba" in result.sentence


async def test_an_engine_that_takes_no_text_at_all_is_not_called_broken():
    engine = StandInEngine()
    engine.answer = lambda _: failed("unsupported", "HTTP 404: no such endpoint", 404)
    result = await verify(engine, FACTS)
    assert result.outcome == "skipped"
    assert "no such endpoint" in result.sentence


async def test_the_slowest_check_waits_for_no_more_answers_in_turn_than_it_says():
    engine, began = StandInEngine(token_s=0.0), now()
    engine.stall = lambda _: 100.0
    engine.text = lambda _: "!" * 40
    assert (await verify(engine, FACTS, 120.0)).outcome == "degenerate"
    assert now() - began == pytest.approx(IN_TURN * 100.0, rel=0.01)


@pytest.mark.parametrize("check", [verify, canary])
async def test_nothing_is_sent_to_an_engine_that_sleeps(check):
    engine = StandInEngine()
    engine.stats = asleep
    result = await check(engine, FACTS)
    assert (result.outcome, engine.requests) == ("failed", [])
    assert "asleep" in result.sentence


async def test_no_more_is_sent_once_an_engine_sleeps_and_its_last_errors_are_its_sleep():
    engine = StandInEngine()

    def falls_asleep(_request: CompletionRequest) -> Completion:
        engine.stats = asleep
        return failed("broken", "HTTP 500", 500)

    engine.answer = falls_asleep
    result = await verify(engine, FACTS)
    assert len(engine.requests) == 1
    assert "asleep" in result.sentence


async def test_an_engine_whose_metrics_can_not_be_read_is_checked_all_the_same():
    engine = StandInEngine()

    async def unreadable() -> EngineStats:
        raise EngineError("no metrics for now")

    engine.stats = unreadable
    assert (await verify(engine, FACTS)).outcome == "passed"


async def test_an_embedding_engine_that_sleeps_is_sent_nothing():
    engine = StandInEngine()
    engine.stats = asleep
    result = await verify(engine, replace(FACTS, tasks=("embed",)))
    assert (result.outcome, engine.requests) == ("failed", [])


async def asleep() -> EngineStats:
    """Give the metrics of an engine that sleeps."""
    return EngineStats(asleep=True)
