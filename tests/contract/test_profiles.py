"""The shipped profiles load, cover what they must, are explained, and lie where a package finds them."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from sidecar.engines.protocol import EngineFacts
from sidecar.warmup.planner import make_plan, profile_warnings
from sidecar.warmup.profiles import load_file, profiles_directory

CHECKOUT = Path(__file__).parents[2]
SHIPPED = sorted((CHECKOUT / "warmup_profiles").glob("*.yaml"))
#: Every kind of step a first version must warm, on every GPU and CPU.
KINDS = {"prefill", "decode", "mixed", "shared_prefix", "sampling", "logprobs", "structured", "chat"}
HOPPER = EngineFacts(
    engine="vllm",
    version="0.32.0",
    model="m",
    max_model_len=32768,
    max_num_batched_tokens=8192,
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


def test_there_are_profiles_for_cpu_and_hopper():
    assert {path.stem for path in SHIPPED} >= {"cpu", "sm90"}


def test_a_shipped_profile_loads_under_its_own_name_and_sm_version(path):
    profile = load_file(path)
    assert profile.name == path.stem
    assert path.stem in profile.match.sm


def test_a_shipped_profile_covers_every_kind_of_step_and_every_integer_class(path):
    assert {step.kind for step in load_file(path).steps} >= KINDS
    assert profile_warnings(load_file(path)) == ()


def test_every_step_of_a_shipped_profile_is_explained_by_a_comment_above_it(path):
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\s*- kind:", line):
            before = [each.strip() for each in lines[:number] if each.strip()]
            same_kind = re.match(r"\s*- kind: (\w+)", line)
            explained = before[-1].startswith("#") or any(
                each.strip() == f"- kind: {same_kind[1]}"
                for each in lines[max(0, number - 9) : number]
                if same_kind
            )
            assert explained, f"{path.name}:{number + 1}"


def test_the_profiles_that_the_package_finds_are_those_of_the_checkout():
    found = {each.name: each.read_bytes() for each in profiles_directory().glob("*.yaml")}
    assert found == {each.name: each.read_bytes() for each in SHIPPED}


def test_the_hopper_profile_visits_what_stalled_when_it_was_measured():
    """The four stalls of 10 to 25 s that live traffic met on an H200 whose caches were half filled."""
    plan = make_plan(load_file(CHECKOUT / "warmup_profiles" / "sm90.yaml"), HOPPER)
    keys = {burst.key for step in plan.steps for burst in step.bursts}
    assert {"2 x 512", "128 x 256", "256 x 128"} <= keys
    assert any(re.match(r"16 x 8192\+", key) for key in keys)


def test_the_hopper_profile_sweeps_token_counts_up_to_a_full_step_and_beyond():
    plan = make_plan(load_file(CHECKOUT / "warmup_profiles" / "sm90.yaml"), HOPPER)
    lengths = sorted(
        {burst.longest_prompt for step in plan.steps if step.kind == "prefill" for burst in step.bursts}
    )
    within = [each for each in lengths if each <= 8192]
    assert len(within) >= 80
    assert {8192, 8193} <= set(lengths)
    assert lengths[-1] > 32_000
    assert max(after / before for before, after in pairwise(within[20:])) < 1.25
