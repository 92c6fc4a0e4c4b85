"""Which profile is taken for an engine: conditions, how specific they are, and why the others are not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sidecar.engines.protocol import EngineFacts
from sidecar.errors import ProfileError
from sidecar.warmup.choice import choose_among, choose_profile
from sidecar.warmup.matching import ORDER, Match, conditions, specificity
from sidecar.warmup.profiles import list_profiles
from tests.unit.warmup_engine import FACTS

SHIPPED = list_profiles()
BODY = "description: for tests\nsteps:\n  - kind: prefill\n    tokens: [1, 16, 17]\n"


def _profiles(folder: Path, **matches: str) -> Path:
    for name, match in matches.items():
        (folder / f"{name}.yaml").write_text(f"match: {{{match}}}\n{BODY}")
    return folder


def _verdicts(match: dict[str, Any], facts: EngineFacts) -> dict[str, str]:
    return {each.name: each.verdict for each in conditions(Match.model_validate(match), facts)}


@pytest.mark.parametrize(
    ("match", "facts", "verdict"),
    [
        ({"engine": ["vllm"]}, {}, "met"),
        ({"engine": ["sglang"]}, {}, "not met"),
        ({"kv_cache_dtype": ["fp8*"]}, {"kv_cache_dtype": "fp8_e4m3"}, "met"),
        ({"kv_cache_dtype": ["fp8*"]}, {"kv_cache_dtype": "auto"}, "not met"),
        ({"kv_cache_dtype": ["fp8*"]}, {}, "unknown"),
        ({"quantization": ["nvfp4"]}, {"quantization": "modelopt", "weights": "nvfp4"}, "met"),
        ({"quantization": ["modelopt*"]}, {"quantization": "modelopt_fp4"}, "met"),
        ({"quantization": ["none"]}, {"quantization": "none"}, "met"),
        ({"role": ["prefill"]}, {"role": "prefill"}, "met"),
        ({"role": ["prefill"]}, {"role": "both"}, "not met"),
        ({"role": ["prefill"]}, {}, "unknown"),
        ({"task": ["embed"]}, {"tasks": ("embed", "score")}, "met"),
        ({"task": ["embed"]}, {"tasks": ("generate",)}, "not met"),
        ({"model": ["*qwen3-8b*"]}, {"root": "/models/Qwen3-8B-FP8"}, "met"),
        ({"model": ["Llama*"]}, {"model": "Qwen3"}, "not met"),
    ],
)
def test_a_condition_is_met_not_met_or_unknown(match, facts, verdict):
    assert list(_verdicts(match, replace(FACTS, **facts)).values()) == [verdict]


@pytest.mark.parametrize(
    ("wanted", "version", "verdict"),
    [
        (">=0.11,<0.30", "0.25.1", "met"),
        (">=0.11,<0.30", "0.30.0", "not met"),
        (">=0.11,<0.30", "0.9.2", "not met"),
        (">=0.25.1", "0.25.1.dev3+gabc", "met"),
        ("==0.25", "0.25.0", "met"),
        ("!=0.25.1", "0.25.1", "not met"),
        (">=0.11", "main", "not met"),
        (">=0.11", None, "unknown"),
    ],
)
def test_a_range_of_versions_compares_numbers(wanted, version, verdict):
    assert _verdicts({"engine_version": wanted}, replace(FACTS, version=version)) == {"engine_version": verdict}


def test_each_condition_weighs_more_than_all_less_specific_ones_together():
    values = {"engine_version": ">=0"}
    weights = [specificity(Match.model_validate({name: values.get(name, ["decode" if name == "role" else "embed"])}))
               for name in ORDER]  # fmt: skip
    assert all(weight > sum(weights[:place]) for place, weight in enumerate(weights))


def test_the_most_specific_profile_wins(tmp_path):
    folder = _profiles(
        tmp_path,
        plain="sm: [sm90]",
        fp8="sm: [sm90], kv_cache_dtype: [fp8*]",
        mine="sm: [sm90], model: ['my-*']",
        other="sm: [sm90], kv_cache_dtype: [nvfp4]",
    )
    fp8 = replace(FACTS, kv_cache_dtype="fp8_e4m3")
    assert choose_profile("sm90", FACTS, folder).profile.name == "plain"
    assert choose_profile("sm90", fp8, folder).profile.name == "fp8"
    assert choose_profile("sm90", replace(fp8, model="my-model"), folder).profile.name == "mine"


def test_two_equally_specific_profiles_are_an_error_that_names_both_files(tmp_path):
    folder = _profiles(tmp_path, one="sm: [sm90], model: ['a*']", two="sm: [sm90], model: ['*b']")
    with pytest.raises(ProfileError) as caught:
        choose_profile("sm90", replace(FACTS, model="ab"), folder)
    assert str(folder / "one.yaml") in str(caught.value)
    assert str(folder / "two.yaml") in str(caught.value)
    assert "WARMUP_PROFILE" in str(caught.value)
    assert choose_profile("sm90", replace(FACTS, model="ax"), folder).profile.name == "one"


def test_a_profile_that_is_only_extended_is_never_chosen(tmp_path):
    folder = _profiles(tmp_path, lone="sm: [sm80]")
    (folder / "part.yaml").write_text("only_extended: true\nmatch: {sm: [sm90]}\n" + BODY)
    choice = choose_profile("sm90", FACTS, folder)
    assert choice.profile.name == "lone"
    assert "others to extend" in {each.name: each.sentence for each in choice.considered}["part"]


def test_every_profile_is_considered_with_the_reason_against_it(tmp_path):
    folder = _profiles(
        tmp_path, plain="sm: [sm90]", fp8="sm: [sm90], kv_cache_dtype: [fp8*]", cpu="sm: [cpu]", old="role: [decode]"
    )
    (folder / "broken.yaml").write_text("steps: 3\n")
    choice = choose_profile("sm90", replace(FACTS, kv_cache_dtype="auto"), folder)
    said = {each.name: each.sentence for each in choice.considered}
    assert "made for sm90" in choice.sentence
    assert "kv_cache_dtype must be fp8*, and is auto" in said["fp8"]
    assert "role must be decode, and the engine doesn't tell it" in said["old"]
    assert "For cpu" in said["cpu"]
    assert "broken.yaml:1" in said["broken"]
    assert {each.name for each in choice.considered if each.fits} == {"plain", "cpu"}


def test_the_reason_names_what_made_a_profile_the_more_specific_one():
    choice = choose_profile("sm90", replace(FACTS, kv_cache_dtype="fp8_e5m2"))
    assert choice.profile.name == "sm90-fp8-kv"
    assert choice.sentence == "Profile sm90-fp8-kv, made for sm90 where kv_cache_dtype is fp8*."


def test_without_an_engine_to_ask_no_condition_about_it_is_taken_for_met():
    assert choose_profile("sm90").profile.name == "sm90"


@pytest.mark.parametrize("sm", "sm80 sm86 sm89 sm90 sm100 sm103 sm120 sm121 sm87 sm130 cpu unknown".split())
def test_no_two_shipped_profiles_fit_an_engine_equally_well(sm):
    for kv, weights, role in product(
        (None, "auto", "fp8", "fp8_e5m2", "nvfp4"), (None, "none", "fp8", "nvfp4"), (None, "both", "prefill", "decode")
    ):
        facts = replace(FACTS, kv_cache_dtype=kv, quantization=weights, weights=weights, role=role)
        assert choose_among(SHIPPED, sm.replace("unknown", ""), facts).profile.name


@pytest.mark.parametrize(
    ("sm", "facts", "name"),
    [
        ("sm80", {"kv_cache_dtype": "fp8"}, "sm80-fp8-kv"),
        ("sm86", {"kv_cache_dtype": "fp8"}, "sm80-fp8-kv"),
        ("sm89", {"kv_cache_dtype": "fp8"}, "sm89-fp8-kv"),
        ("sm90", {"quantization": "none", "kv_cache_dtype": "auto"}, "sm90-bf16"),
        ("sm90", {"quantization": "none", "kv_cache_dtype": "fp8"}, "sm90-fp8-kv"),
        ("sm90", {"role": "prefill", "kv_cache_dtype": "fp8"}, "sm90-prefill"),
        ("sm90", {"role": "decode"}, "sm90-decode"),
        ("sm103", {"weights": "nvfp4", "kv_cache_dtype": "fp8"}, "sm100-nvfp4"),
        ("sm103", {"role": "decode"}, "sm100-decode"),
        ("sm121", {"weights": "nvfp4"}, "sm120-nvfp4"),
    ],
)
def test_shipped_variants_are_taken_where_they_belong(sm, facts, name):
    assert choose_among(SHIPPED, sm, replace(FACTS, **facts)).profile.name == name
