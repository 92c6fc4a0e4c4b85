"""Claims about reading streamed completions, byte by byte."""

from __future__ import annotations

import json
import math

import pytest

from sidecar.engines.stream import Answer, EventLines, kind_of, message_of, snippet, text_of

STREAM = b': ping\r\n\r\ndata: {"choices":[{"index":0,"text":"a"}]}\r\n\r\nevent: x\ndata:[DONE]\n\n'


def event(**choice: object) -> bytes:
    return json.dumps({"choices": [{"index": 0, **choice}]}).encode()


def answer(*payloads: bytes, echo: bool = False) -> Answer:
    made = Answer()
    for at, payload in enumerate(payloads):
        made.take(payload, float(at), echo=echo)
    return made


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"error": {"message": "The request queue is full.", "code": 503}}, 503),
        ({"object": "error", "message": "Too many requests.", "code": 429}, 429),
        ({"error": {"message": "EngineCore encountered an issue.", "code": 500}}, 200),
        ({"error": "gone", "code": 503}, 503),
        ({"error": {"message": "odd", "code": [503]}}, 200),
    ],
)
def test_a_full_queue_that_a_stream_can_only_tell_inside_has_the_status_of_one(told: dict[str, object], status: int):
    made = Answer(status=200)
    made.take(json.dumps(told).encode(), 0.0)
    assert (made.error_kind, made.status) == ("broken", status)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_the_network_cuts_them(size: int):
    lines = EventLines()
    found = [each for at in range(0, len(STREAM), size) for each in lines.feed(STREAM[at : at + size])]
    assert found == [b'{"choices":[{"index":0,"text":"a"}]}', b"[DONE]"]


def test_lines_may_end_with_a_carriage_return_alone():
    assert list(EventLines().feed(b"data: 1\rdata: 2\r")) == [b"1", b"2"]


def test_a_last_event_without_a_line_end_is_kept():
    lines = EventLines()
    assert list(lines.feed(b"data: [DO")) == []
    assert list(lines.feed(b"NE]")) == []
    assert lines.rest() == b"[DONE]"
    assert lines.rest() == b""


def test_a_line_without_end_is_given_up_before_it_fills_the_memory():
    lines = EventLines(limit=100)
    list(lines.feed(b"data: " + b"x" * 90))
    with pytest.raises(ValueError, match="more than 100 bytes"):
        list(lines.feed(b"x" * 20))


def test_a_long_line_below_the_limit_is_read():
    assert [len(each) for each in EventLines().feed(b"data: " + b"x" * 1_000_000 + b"\n")] == [1_000_000]


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "t"},
        {"delta": {"content": "t"}},
        {"delta": {"reasoning_content": "t"}},
        {"delta": {"reasoning": "t"}},
        {"delta": {"content": None, "refusal": "t"}},
        {"delta": {"tool_calls": [{"function": {"arguments": "t"}}]}},
        {"delta": {"tool_calls": [{"function": {"name": "t", "arguments": None}}]}},
        {"message": {"content": "t"}},
    ],
)
def test_text_counts_in_whatever_channel_it_comes(choice: dict[str, object]):
    assert text_of(choice) == "t"


def test_the_role_of_a_chat_is_not_its_first_text():
    got = answer(event(delta={"role": "assistant", "content": ""}), event(delta={"content": "hi"}))
    assert got.times == [1.0]


def test_a_token_without_text_counts_when_its_id_is_there():
    got = answer(event(text="", token_ids=[17]), event(text="é", token_ids=[18, 19]))
    assert got.times == [0.0, 1.0]
    assert got.token_ids == [17, 18, 19]


def test_only_the_first_of_several_choices_is_kept_as_text():
    got = answer(event(text="a"), json.dumps({"choices": [{"index": 1, "text": "b"}]}).encode())
    assert got.texts == ["a"]
    assert got.times == [0.0, 1.0]


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "core died", "code": 500}},
        {"error": {"message": "core died", "code": 400}},
        {"object": "error", "message": "core died", "code": 400},
        {"error": "core died"},
    ],
)
def test_an_error_inside_a_200_stream_is_an_error_whatever_its_code(body: dict[str, object]):
    got = answer(event(text="a"), json.dumps(body).encode(), b"[DONE]")
    assert got.error_kind == "broken"
    assert got.error is not None
    assert "core died" in got.error


@pytest.mark.parametrize("payload", [b"\xff\xfe", b"<html>", b"[1]", b"{}", b"[" * 100_000])
def test_what_is_no_event_is_said_to_be_none(payload: bytes):
    got = answer(payload)
    assert got.error_kind == "not_json"
    assert got.error
    assert len(got.error) < 400


def test_text_that_is_not_utf_8_is_called_so():
    assert "UTF-8" in str(answer(b'{"choices": "\xff"}').error)


def test_the_first_thing_that_went_wrong_is_kept():
    got = answer(b"<html>", json.dumps({"error": "later"}).encode())
    assert got.error is not None
    assert "html" in got.error


def test_usage_comes_from_the_engine():
    got = answer(b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}')
    assert (got.prompt_tokens, got.tokens) == (9, 4)


def test_log_probabilities_are_read_in_both_shapes_and_null_is_not_a_number():
    completions = answer(event(text="a", logprobs={"token_logprobs": [-1.0, None]}))
    chat = answer(event(delta={"content": "a"}, logprobs={"content": [{"logprob": -2.0}]}))
    assert completions.logprobs is not None
    assert completions.logprobs[0] == -1.0
    assert math.isnan(completions.logprobs[1])
    assert chat.logprobs == [-2.0]


def test_the_first_token_of_an_echoed_prompt_has_no_log_probability():
    got = answer(event(text="a", logprobs={"token_logprobs": [None, -1.0]}), echo=True)
    assert got.logprobs == [-1.0]


def test_a_json_nan_is_not_a_number():
    got = answer(b'{"choices":[{"index":0,"text":"a","logprobs":{"token_logprobs":[NaN]}}]}')
    assert got.logprobs is not None
    assert math.isnan(got.logprobs[0])


def test_the_callback_runs_once_at_the_first_text():
    calls: list[int] = []
    made = Answer(first_text=lambda: calls.append(1))
    for payload in (event(delta={"role": "assistant"}), event(text="a"), event(text="b")):
        made.take(payload, 0.0)
    assert calls == [1]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "unsupported"),
        (404, "unsupported"),
        (422, "unsupported"),
        (401, "unauthorized"),
        (403, "unauthorized"),
        (429, "timed_out"),
        (500, "broken"),
        (503, "broken"),
        (302, "broken"),
    ],
)
def test_statuses_are_classified(status: int, kind: str):
    assert kind_of(status) == kind


def test_messages_are_found_in_every_shape_of_error():
    shapes = ({"error": {"message": "m"}}, {"message": "m"}, {"detail": "m"}, {"error": "m"})
    assert {message_of(shape) for shape in shapes} == {"m"}


def test_a_snippet_is_one_printable_line():
    assert snippet(b"a\n\x00b\xff" + b"c" * 5000).startswith("a ?b�c")
    assert len(snippet(b"c" * 5000)) == 301
