"""The output check on the status page: each text that differs, what is left out, and sections that make no sense."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from sidecar.web import page
from sidecar.web.golden_panel import FAILED_SHOWN
from tests.fakes import scenes


def failed(name: str = "bread", **more: Any) -> dict[str, Any]:
    difference = [["same", "One needs "], ["gone", "flour"], ["new", "<b>sand</b>"]]
    return {"name": name, "way": "batch", "reason": "Token 3 is another one.", "diff": difference, **more}


def compared(**more: Any) -> dict[str, Any]:
    return {
        "label": "BF16 KV cache",
        "prompts": 32,
        "answers": 48,
        "drift_percent": 12.345,
        "allowed_percent": 10.0,
        "seconds": 4.2,
        "statistics": {"mean_change": -0.12345, "count": "many"},
        "notes": ["Pictures were not asked for."],
        "failed": [failed()],
        **more,
    }


def raw(golden: object) -> str:
    return page.render({**scenes.ready().to_json(), "golden": golden}, now=scenes.EPOCH, refresh=0)


def shown(**more: Any) -> str:
    section = {"outcome": "wrong", "sentence": "1 of 32 prompts went wrong.", "checks": [], "golden": compared(**more)}
    return raw(section)


def test_a_failed_comparison_gives_drift_allowed_drift_and_why_each_prompt_failed() -> None:
    text = html.unescape(shown())
    for said in ("12.35 %", "10 % allowed", "BF16 KV cache", "48 answers", "Token 3 is another one.", "bread", "-0.1235"):
        assert said in text, said
    assert "Pictures were not asked for." in text
    assert "many" not in text


def test_failures_are_counted_by_prompt_and_by_answer() -> None:
    ways = ("solo", "concurrent", "batch", "likelihood")
    each_way = [failed(name, way=way) for name in ("a", "b", "c") for way in ways]
    text = html.unescape(shown(prompts=3, answers=12, failed=each_way))
    assert "3 of 3 prompts, 12 answers" in text
    assert "<dd>3 prompts, 12 answers</dd>" in text
    assert "1 of 32 prompts, 1 answer<" in html.unescape(shown())


def test_a_difference_is_marked_by_element_sign_and_words_and_is_never_markup() -> None:
    text = shown()
    assert re.search(r"<del><span[^>]*>expected: </span>.*flour.*</del>", text)
    assert re.search(r"<ins><span[^>]*>got: </span>", text)
    assert "<b>sand</b>" not in text
    assert "&lt;b&gt;sand&lt;/b&gt;" in text


def test_the_first_prompt_that_failed_is_unfolded_and_beyond_eight_they_are_counted() -> None:
    many = [failed(f"prompt-{number}") for number in range(FAILED_SHOWN + 3)]
    text = shown(failed=many)
    assert text.count('<details open=""') == 1
    assert "3 more answers are in /status." in text
    assert f"prompt-{FAILED_SHOWN - 1}" in text
    assert f"prompt-{FAILED_SHOWN}" not in text


@pytest.mark.parametrize(
    "golden",
    [
        None,
        "text",
        [],
        {"golden": "text"},
        {"checks": 3, "golden": {"failed": "all", "statistics": [], "notes": 7}},
        {"checks": [{"passed": False}, 4], "golden": {"failed": [{"diff": [["gone"], "x", 3, ["new", None]]}]}},
        {"golden": {"drift_percent": float("nan"), "allowed_percent": None, "seconds": "long"}},
    ],
)
def test_a_section_that_makes_no_sense_costs_no_page(golden: object) -> None:
    text = raw(golden)
    assert "Output check" in text
    assert "nan" not in text
