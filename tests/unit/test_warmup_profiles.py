"""What profiles may say, and how wrong ones are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.errors import ProfileError
from sidecar.warmup.choice import choose_profile
from sidecar.warmup.features import FEATURES, fields_of
from sidecar.warmup.planner import profile_warnings
from sidecar.warmup.profiles import Profile, list_profiles, load_file, load_profile, profiles_directory
from sidecar.warmup.sizes import Limits, Sweep, integer_class, missing_classes, resolve, resolve_all
from tests.unit.warmup_engine import FACTS, profile

LIMITS = Limits(max_model_len=4096, max_num_batched_tokens=1000, max_num_seqs=64, vocab_size=32000)
GOOD = "description: for tests\nsteps:\n  - kind: prefill\n    tokens: [1, 16, 17]\n"


def _problem(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ProfileError) as caught:
        load_profile(str(path))
    return str(caught.value)


@pytest.mark.parametrize(
    ("size", "number"),
    [
        (512, 512),
        ("max_model_len", 4096),
        ("max_num_batched_tokens+1", 1001),
        ("max_num_batched_tokens / 2", 500),
        ("max_num_batched_tokens*3/4-1", 749),
        ("max_num_seqs/128", 1),
        ("max_num_seqs-100", 1),
    ],
)
def test_a_size_is_a_number_or_an_expression_over_limits(size, number):
    assert resolve(size, LIMITS) == number


def test_a_sweep_visits_multiples_and_their_neighbours_between_its_ends():
    sweep = Sweep.model_validate(
        {"from": 16, "to": "max_num_batched_tokens", "points": 5, "multiple_of": 16, "offsets": [0, 1]}
    )
    found = resolve_all([sweep], LIMITS)
    assert found[:2] == (16, 17)
    assert found[-2:] == (992, 993)
    assert len(found) == 10
    assert {integer_class(size) for size in found} == {"divisible by 16", "other"}


def test_integer_classes_that_nothing_falls_into_are_named():
    assert missing_classes([1, 32, 7]) == ()
    assert missing_classes([16, 32]) == ("1", "other")


def test_a_profile_that_misses_an_integer_class_is_warned_about():
    steps = [{"kind": "prefill", "tokens": [1, 16, 17]}, {"kind": "decode", "batch": [16, 32]}]
    (warning,) = profile_warnings(profile(*steps))
    assert "decode batch sizes" in warning
    assert "1, other" in warning


def test_an_unknown_key_is_refused_with_its_place_and_a_suggestion(tmp_path):
    said = _problem(tmp_path, GOOD + "    output_token: 3\n")
    assert f"{tmp_path}/mine.yaml:5:5: " in said
    assert "did you mean `output_tokens`?" in said


def test_an_unknown_kind_of_step_is_refused_with_a_suggestion(tmp_path):
    said = _problem(tmp_path, "description: x\nsteps:\n  - kind: prefil\n    tokens: [1]\n")
    assert "mine.yaml:3:5: " in said
    assert "did you mean prefill?" in said


def test_an_unknown_feature_is_refused_with_a_suggestion(tmp_path):
    said = _problem(tmp_path, "description: x\nsteps:\n  - kind: sampling\n    features: [top_p, topk]\n")
    assert "mine.yaml:4:23: " in said
    assert "did you mean top_k?" in said


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("version: 2\n", "mine.yaml:5:1: version: this file is of version 2, and this program knows versions up to 1"),
        ("version: one\n", "version: 'one' is not one of 1"),
        ("match: {role: [prefil]}\n", "'prefil' is not one of 'both', 'prefill' or 'decode'; did you mean prefill?"),
        ("match: {task: [embedd]}\n", "did you mean embed?"),
        ("match: {engine_version: '>0.1,about 3'}\n", "'about 3' is no bound of a version"),
        ("match: {modle: [x]}\n", "did you mean `model`?"),
        ("policy: {killers: never}\n", "'never' is not one of 'leave_out' or 'send_again'"),
        ("polcy: {}\n", "did you mean `policy`?"),
        ("search: {gapp: 1}\n", "did you mean `gap`?"),
    ],
)
def test_a_section_that_says_something_wrong_is_refused_with_a_hint(tmp_path, text, part):
    assert part in _problem(tmp_path, GOOD + text)


def test_every_problem_of_a_profile_is_told_at_once(tmp_path):
    said = _problem(tmp_path, "steps:\n  - kind: decode\n    batch: [0, max_seqs]\n").splitlines()
    assert len(said) == 3
    assert any("`description` is missing" in line for line in said)
    assert any(":3:13: " in line and "1 or more" in line for line in said)
    assert any(":3:16: " in line and "is not a size" in line for line in said)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("steps: [1, 2", "mine.yaml:1:"),
        (GOOD + "description: again\n", "mine.yaml:5:1: `description` is given twice"),
        (b"description: \xff\n", "not UTF-8"),
        ("- a\n- b\n", "a profile is a mapping"),
        ("", "a profile is a mapping"),
        ("description: x\nsteps: []\n", "mine.yaml:2:"),
        ("description: x\nsteps:\n  - tokens: [1]\n", "needs a `kind`"),
        ("description: x\nsteps:\n  - kind: structured\n", "`json_schema`, `regex` or both"),
        ("a: &a [*a]\n", "mine.yaml"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_a_sentence(tmp_path, text, part):
    assert part in _problem(tmp_path, text)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/stdin"])
def test_what_is_no_plain_file_is_never_read(path):
    with pytest.raises(ProfileError, match=r"not a plain file|can't be read"):
        load_file(Path(path))


def test_a_pipe_does_not_hold_the_reader(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ProfileError, match="not a plain file"):
        load_file(tmp_path / "pipe.yaml")


def test_a_file_beyond_all_measure_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "large.yaml"
    with path.open("wb") as stream:
        stream.truncate(1 << 33)
    with pytest.raises(ProfileError, match="larger than"):
        load_file(path)


def test_anchors_that_stand_for_billions_of_values_are_refused(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]" for number in range(1, 10)]
    assert "more than 100000 values" in _problem(tmp_path, "\n".join(lines))


def test_nesting_without_an_end_is_refused(tmp_path):
    assert "mine.yaml" in _problem(tmp_path, "[" * 100_000)


def test_two_steps_of_one_name_are_refused(tmp_path):
    step = "  - kind: prefill\n    tokens: [1]\n"
    assert "two steps are called 'prefill'" in _problem(tmp_path, "description: x\nsteps:\n" + step + step)


def test_a_profile_that_is_not_there_is_refused_with_a_suggestion(tmp_path):
    (tmp_path / "sm90.yaml").write_text(GOOD)
    with pytest.raises(ProfileError, match="Did you mean sm90"):
        load_profile("sm9", tmp_path)
    with pytest.raises(ProfileError, match="can't be read"):
        load_profile(str(tmp_path / "absent.yaml"))


def test_a_broken_profile_does_not_hide_the_others(tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text("steps: 3\n")
    good, broken = list_profiles(tmp_path)
    assert good.profile is not None
    assert good.profile.name == "a"
    assert broken.profile is None
    assert "b.yaml" in broken.problem


@pytest.mark.parametrize(
    ("sm", "name", "part"),
    [
        ("sm90", "sm90", "made for sm90"),
        ("cpu", "cpu", "made for cpu"),
        ("sm100", "sm100", "made for sm100"),
        ("sm87", "sm86", "sm86 is the nearest lower"),
        ("sm110", "sm103", "sm103 is the nearest lower"),
        ("sm75", "cpu", "none for sm75 or below"),
        ("", "cpu", "WARMUP_SM"),
    ],
)
def test_the_nearest_lower_sm_version_is_chosen_and_cpu_where_there_is_none(sm, name, part):
    choice = choose_profile(sm, FACTS)
    assert choice.profile.name == name
    assert part in choice.sentence


def test_no_usable_profile_is_an_error_that_says_what_is_wrong(tmp_path):
    (tmp_path / "sm90.yaml").write_text("steps: 3\n")
    with pytest.raises(ProfileError, match=r"sm90\.yaml:1"):
        choose_profile("sm90", None, tmp_path)


def test_the_shipped_profiles_are_found():
    assert {each.name for each in list_profiles(profiles_directory())} >= {"cpu", "sm90"}


def test_profiles_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        profile({"kind": "prefill", "tokens": [1]}).description = "other"  # type: ignore[misc]


def test_every_feature_has_fields():
    assert all(fields_of(feature) for feature in FEATURES)
    assert (
        "temperature" in Profile.model_json_schema()["$defs"]["SamplingStep"]["properties"]["features"]["items"]["enum"]
    )
