"""How fallbacks are written: every form is understood, and what can't be understood costs a sentence and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config import load
from sidecar.config.fallbacks import MOST, changes


def test_every_form_of_a_change_is_read() -> None:
    text = '--kv-cache-dtype auto --x; A_B=1 !C; !--eager !--q *; --config \'{"a": "b; c"}\'; --y=-1'
    found = changes(text)
    assert [change.text for change in found] == [
        "--kv-cache-dtype auto --x",
        "A_B=1 !C",
        "!--eager !--q *",
        '--config \'{"a": "b; c"}\'',
        "--y=-1",
    ]
    assert found[0].options == (("--kv-cache-dtype", "auto"), ("--x",))
    assert (found[1].environment, found[1].unset) == ((("A_B", "1"),), ("C",))
    assert found[2].removed == (("--eager",), ("--q", "*"))
    assert found[3].options == (("--config", '{"a": "b; c"}'),)
    assert changes(" ; ; ") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("auto", "is no change"),
        ("--a 'b", "quotes don't match"),
        ("PATH=/x", "can't be changed by a fallback"),
        ("!LD_PRELOAD", "can't be changed by a fallback"),
        ("!lower", "removes nothing"),
        ("--api-key abc", "must not hold a secret"),
        ("HF_TOKEN=abc", "must not hold a secret"),
        ("--a 1; --a 1", "named twice"),
        ("!--x * --x auto", "`--x` is both set and removed"),
        ("VLLM_X=1 !VLLM_X", "`VLLM_X` is both set and removed"),
        (";".join(f"--a {number}" for number in range(MOST + 1)), "are the most"),
    ],
)
def test_a_list_that_cant_be_used_is_a_sentence_and_no_fallback(text: str, said: str) -> None:
    found = load({"WARMUP_FALLBACKS": text, "WARMUP_ON_GOLDEN_FAILED": "fallback,hold"})
    assert said in str(found.problems[0])
    assert "abc" not in str(found.problems[0])
    assert found.settings.fallback_changes == ()


def test_in_a_file_the_list_may_be_a_list(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("on_golden_failed: fallback\nfallbacks:\n  - --kv-cache-dtype auto\n  - VLLM_X=0\n")
    found = load({"WARMUP_CONFIG": str(path)})
    assert found.problems == ()
    assert [change.text for change in found.settings.fallback_changes] == ["--kv-cache-dtype auto", "VLLM_X=0"]


def test_fallbacks_that_no_policy_asks_for_are_not_tried_and_that_is_said() -> None:
    found = load({"WARMUP_FALLBACKS": "--a 1"})
    assert found.settings.fallback_changes == ()
    assert "WARMUP_FALLBACKS has no effect" in str(found.problems[0])
    assert load({"WARMUP_FALLBACKS": "--a 1", "WARMUP_ON_GOLDEN_FAILED": "fallback"}).problems == ()


@pytest.mark.parametrize("policies", ["serve,fallback", "hold,retry-cold", "retry-cold,hold,serve"])
def test_a_policy_after_one_that_ends_the_list_is_refused(policies: str) -> None:
    found = load({"WARMUP_ON_GOLDEN_FAILED": policies})
    assert "is ever tried: it must be the last" in str(found.problems[0])
    assert found.settings.golden_policies == ("retry-cold", "hold")


def test_a_golden_file_is_a_setting_of_this_version() -> None:
    found = load({"WARMUP_GOLDEN": "/etc/golden.yaml"})
    assert (found.problems, found.settings.golden) == ((), Path("/etc/golden.yaml"))
