"""The shipped profiles load, cover what they must, are explained, and lie where a package finds them."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
import yaml

from sidecar.engines.protocol import EngineFacts
from sidecar.warmup.matching import Match
from sidecar.warmup.planner import make_plan, profile_warnings
from sidecar.warmup.profiles import load_file, profiles_directory
from sidecar.warmup.schema import SHIPPED as SHIPPED_SCHEMA
from sidecar.warmup.schema import profile_schema, schema_text

CHECKOUT = Path(__file__).parents[2]
SHIPPED = sorted((CHECKOUT / "warmup_profiles").glob("*.yaml"))
#: Every kind of step that a profile must warm, on every GPU and CPU; those that don't apply are left out by the plan.
KINDS = {
    "prefill", "decode", "mixed", "shared_prefix", "sampling", "logprobs", "structured", "chat",
    "adapters", "speculative", "data_parallel", "embeddings", "score", "rerank", "transcription", "image", "audio",
}  # fmt: skip
#: What an engine that only reads prompts has no use for.
GENERATION = {"decode", "mixed", "speculative"}
SM_VERSIONS = ("cpu", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121")
VARIANTS = {
    "fp8-kv": "kv_cache_dtype",
    "bf16": "quantization",
    "nvfp4": "quantization",
    "prefill": "role",
    "decode": "role",
}
HOPPER_STEP = 8192
HOPPER = EngineFacts(
    engine="vllm",
    version="0.32.0",
    model="m",
    max_model_len=32768,
    max_num_batched_tokens=HOPPER_STEP,
    max_num_seqs=256,
    vocab_size=151936,
    block_size=16,
    kv_blocks=60000,
)


@pytest.fixture(params=SHIPPED, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    """Give each shipped profile in turn."""
    found: Path = request.param
    return found


def test_there_is_a_profile_for_every_sm_version_and_every_variant():
    names = {path.stem for path in SHIPPED}
    assert names >= set(SM_VERSIONS)
    assert {name.partition("-")[2] for name in names if "-" in name} == set(VARIANTS)


def test_a_shipped_profile_loads_under_its_own_name_and_sm_version(path):
    profile = load_file(path)
    sm, _, variant = path.stem.partition("-")
    assert profile.name == path.stem
    assert profile.version == 1
    if profile.only_extended:
        assert profile.match.sm == ()
        return
    assert sm in profile.match.sm
    # What its name says is what it asks of an engine, beside being vLLM.
    asked = {name for name in Match.model_fields if getattr(profile.match, name)} - {"sm", "engine"}
    assert asked == ({VARIANTS[variant]} if variant else set()) | ({"kv_cache_dtype"} if variant == "bf16" else set())


def test_a_shipped_profile_covers_every_kind_of_step_and_every_integer_class(path):
    profile = load_file(path)
    wanted = KINDS - GENERATION if "prefill" in profile.match.role else KINDS
    assert {step.kind for step in profile.steps} >= wanted
    if "prefill" not in profile.match.role:
        assert profile_warnings(profile) == ()


def test_a_profile_for_gpus_reads_beyond_one_step_and_near_the_models_length_once(path):
    profile = load_file(path)
    plan = make_plan(profile, HOPPER)
    alone = [burst.longest_prompt for step in plan.steps for burst in step.bursts if burst.requests == 1]
    if profile.match.sm == ("cpu",):
        return
    assert any(HOPPER_STEP < length < 2 * HOPPER_STEP for length in alone)
    near = [length for length in alone if length > 0.95 * (HOPPER.max_model_len or 0)]
    assert len(near) == ("decode" not in profile.match.role)


def test_a_profile_for_gpus_leaves_at_most_two_percent_of_the_mix(path):
    profile = load_file(path)
    if profile.match.sm != ("cpu",):
        assert 3 / profile.converge.random_draws <= 0.02


def test_every_step_of_a_shipped_profile_is_explained_by_a_comment_above_it(path):
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"  - (kind|name):", line):
            before = [each.strip() for each in lines[:number] if each.strip()]
            same_kind = re.match(r"\s*- kind: (\w+)", line)
            explained = before[-1].startswith("#") or any(
                each.strip() == f"- kind: {same_kind[1]}" for each in lines[max(0, number - 9) : number] if same_kind
            )
            assert explained, f"{path.name}:{number + 1}"


def test_a_shipped_profile_says_at_its_top_what_is_different_there_and_what_was_measured(path):
    lines = path.read_text().splitlines()[:25]
    head = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    assert len(head) > 150
    assert re.search(r"measured|read in the source", head, re.IGNORECASE), path.name


def test_a_shipped_profile_for_a_gpu_says_only_what_differs_from_the_one_for_all():
    own = {path.stem: len(path.read_text()) for path in SHIPPED}
    assert all(size < own["gpu"] / 2 for name, size in own.items() if name not in ("gpu", "cpu"))


def test_the_shipped_schema_is_the_one_that_the_models_give():
    assert SHIPPED_SCHEMA.read_text() == schema_text(), (
        "run `warmup-sidecar profiles schema > sidecar/warmup/profile.schema.json`"
    )


def test_a_shipped_profile_is_valid_by_the_schema(path):
    jsonschema.validate(yaml.safe_load(path.read_text()), profile_schema(), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "text",
    [
        "steps: [{kind: chat}]",
        "description: x",
        "{description: x, steps: [{kind: prefil, tokens: [1]}]}",
        "{description: x, steps: [{name: sweep, tokens: [1]}]}",
        "{description: x, steps: [{kind: chat}], without: [chat]}",
        "{description: x, extends: cpu, polcy: {}}",
        "{description: x, steps: [{kind: prefill, tokens: [about 7]}]}",
    ],
)
def test_the_schema_refuses_what_the_models_refuse(text):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), profile_schema(), jsonschema.Draft202012Validator)


def test_the_schema_lets_a_profile_change_a_step_of_the_one_it_extends():
    text = "{description: x, extends: sm90, without: [chat], steps: [{name: prefill sweep, tokens: [1]}]}"
    jsonschema.validate(yaml.safe_load(text), profile_schema(), jsonschema.Draft202012Validator)


def test_the_profiles_that_the_package_finds_are_those_of_the_checkout():
    found = {each.name: each.read_bytes() for each in profiles_directory().glob("*.yaml")}
    assert found == {each.name: each.read_bytes() for each in SHIPPED}


@pytest.mark.parametrize("name", ["sm90", "sm90-fp8-kv", "sm90-prefill", "sm100"])
def test_where_deepgemm_is_at_work_what_stalled_when_it_was_measured_is_visited(name):
    """The four stalls of 10 to 25 s that live traffic met on an H200 whose caches were half filled."""
    plan = make_plan(load_file(CHECKOUT / "warmup_profiles" / f"{name}.yaml"), HOPPER)
    keys = {burst.key for step in plan.steps for burst in step.bursts}
    assert {"2 x 512", "128 x 256", "256 x 128"} <= keys
    assert any(re.match(r"16 x 8192\+", key) for key in keys)


def test_the_hopper_profile_sweeps_token_counts_up_to_a_full_step_and_beyond():
    plan = make_plan(load_file(CHECKOUT / "warmup_profiles" / "sm90.yaml"), HOPPER)
    lengths = sorted({burst.longest_prompt for step in plan.steps if step.kind == "prefill" for burst in step.bursts})
    within = [each for each in lengths if each <= 8192]
    assert len(within) >= 80
    assert {8192, 8193} <= set(lengths)
    assert lengths[-1] > 32_000
    assert max(after / before for before, after in pairwise(within[20:])) < 1.25


def test_what_the_hopper_profile_was_before_it_extended_another_is_still_in_it():
    plan = make_plan(load_file(CHECKOUT / "warmup_profiles" / "sm90.yaml"), HOPPER)
    by_name = {step.name: {burst.concurrency for burst in step.bursts} for step in plan.steps}
    assert by_name["concurrent prefill"] == {2, 3, 8, 16, 17, 32, 128, 256}
    assert by_name["decode batches"] >= {1, 2, 3, 64, 65, 129, 255, 256}
    assert plan.requests >= 4000
