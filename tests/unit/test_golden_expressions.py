"""Expressions that a person wrote: those of `re` are understood, and none can hold the daemon."""

from __future__ import annotations

import pytest

from sidecar.errors import GoldenError
from sidecar.golden.expressions import compiled, is_found
from sidecar.golden.files import Answer, AnsweredPrompt
from sidecar.golden.judging import _unmet
from sidecar.golden.prompts import Prompt
from sidecar.golden.recording import _is_met

#: Backtracks without end where the last letter is another.
ENDLESS = "^(a|aa)+$"


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("Paris", "It is Paris.", True),
        ("^Paris", "It is Paris.", False),
        (r"(?i)\bparis\b", "PARIS!", True),
        (r"(?s)a.*z", "a\nz", True),
        (r"^\d{1,3}(?:,\d{3})*$", "1,234,567", True),
        (r"[[a]", "[", True),
    ],
)
def test_expressions_are_those_of_the_standard_library(pattern: str, text: str, found: bool) -> None:
    assert compiled(pattern) == pattern
    assert is_found(pattern, text) is found


def test_an_expression_that_backtracks_without_end_is_given_up_with_what_to_do() -> None:
    with pytest.raises(TimeoutError, match=r"takes over 0\.1 s on an answer.*write it simpler"):
        is_found(ENDLESS, "a" * 60 + "b")


def test_an_answer_whose_expression_takes_too_long_is_wrong_and_says_why() -> None:
    prompt = AnsweredPrompt(name="p", text="hi", expect=ENDLESS, answer=Answer(text="aaa", met=True))
    assert "takes over" in _unmet(prompt, "a" * 60 + "b")
    assert "does not match" in _unmet(prompt, "b")
    assert _unmet(prompt, "aa") == ""


def test_a_recording_with_such_an_expression_is_refused_by_the_prompts_name() -> None:
    with pytest.raises(GoldenError, match=r"Prompt 'p': .* takes over"):
        _is_met(Prompt(name="p", text="hi", expect=ENDLESS), "a" * 60 + "b")
