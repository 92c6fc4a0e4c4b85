"""What `extends` means: what is inherited, what is laid over it, and where faults are said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.errors import ProfileError
from sidecar.warmup.profiles import Profile, list_profiles, load_file, load_profile
from sidecar.warmup.steps import DecodeStep, PrefillStep

PARENT = """
description: the parent
match: {sm: [sm90], engine: [vllm]}
assume: {max_model_len: 1000, max_num_seqs: 7}
converge: {random_draws: 5, max_rounds: 3}
steps:
  - kind: prefill
    name: sweep
    tokens: [1, 16, 17]
    output_tokens: 2
  - kind: decode
    batch: [1, 16, 3]
"""


def _write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def _child(folder: Path, text: str, parent: str = PARENT) -> Profile:
    _write(folder, parent=parent, child="description: the child\nextends: parent\n" + text)
    return load_file(folder / "child.yaml")


def _problem(folder: Path, text: str, parent: str = PARENT) -> str:
    with pytest.raises(ProfileError) as caught:
        _child(folder, text, parent)
    return str(caught.value)


def test_what_a_child_does_not_say_is_the_parents(tmp_path):
    child = _child(tmp_path, "")
    assert (child.name, child.description) == ("child", "the child")
    assert [step.title for step in child.steps] == ["sweep", "decode"]
    assert child.match.sm == ("sm90",)
    assert child.assume.max_num_seqs == 7


def test_sections_are_merged_key_by_key_and_values_are_taken_whole(tmp_path):
    child = _child(tmp_path, "match: {sm: [sm80]}\nconverge: {random_draws: 9}\n")
    assert child.match.sm == ("sm80",)
    assert child.match.engine == ("vllm",)
    assert (child.converge.random_draws, child.converge.max_rounds) == (9, 3)


def test_a_step_of_the_same_name_is_changed_in_its_place_and_needs_no_kind(tmp_path):
    child = _child(tmp_path, "steps:\n  - name: sweep\n    tokens: [5]\n  - kind: chat\n")
    assert [step.title for step in child.steps] == ["sweep", "decode", "chat"]
    sweep = child.steps[0]
    assert isinstance(sweep, PrefillStep)
    assert (sweep.tokens, sweep.output_tokens) == ((5,), 2)


def test_a_step_without_a_name_goes_by_its_kind(tmp_path):
    child = _child(tmp_path, "steps:\n  - kind: decode\n    output_tokens: 99\n")
    assert [step.title for step in child.steps] == ["sweep", "decode"]
    decode = child.steps[1]
    assert isinstance(decode, DecodeStep)
    assert (decode.batch, decode.output_tokens) == ((1, 16, 3), 99)


def test_a_step_of_another_kind_under_the_same_name_takes_nothing_from_the_parents(tmp_path):
    child = _child(tmp_path, "steps:\n  - {kind: decode, name: sweep, batch: [2]}\n")
    assert isinstance(child.steps[0], DecodeStep)


def test_steps_named_in_without_are_left_out(tmp_path):
    assert [step.title for step in _child(tmp_path, "without: [sweep]\n").steps] == ["decode"]


def test_grandparents_are_inherited_from_too(tmp_path):
    _write(tmp_path, grandchild="description: x\nextends: child\nbudget: {seconds: 5}\n")
    _child(tmp_path, "assume: {max_num_seqs: 8}\n")
    grandchild = load_file(tmp_path / "grandchild.yaml")
    assert (grandchild.assume.max_model_len, grandchild.assume.max_num_seqs) == (1000, 8)
    assert grandchild.budget.seconds == 5


def test_a_profile_beside_it_counts_before_a_shipped_one_and_a_path_works(tmp_path):
    _write(tmp_path, cpu=PARENT, mine="description: x\nextends: cpu\n", by_path="description: x\nextends: ./cpu.yaml\n")
    assert len(load_file(tmp_path / "mine.yaml").steps) == 2
    assert len(load_file(tmp_path / "by_path.yaml").steps) == 2


def test_a_shipped_profile_can_be_extended_also_under_its_own_name(tmp_path):
    _write(tmp_path, cpu="description: mine\nextends: cpu\nassume: {max_num_seqs: 3}\n")
    mine = load_profile("cpu", tmp_path)
    assert len(mine.steps) == len(load_profile("cpu").steps)
    assert (mine.description, mine.assume.max_num_seqs) == ("mine", 3)


def test_a_fault_in_the_parent_is_said_to_be_in_the_parents_file(tmp_path):
    said = _problem(tmp_path, "", PARENT.replace("output_tokens: 2", "output_token: 2"))
    assert f"{tmp_path}/parent.yaml:10:5: " in said
    assert "did you mean `output_tokens`?" in said


def test_a_fault_in_a_changed_step_is_said_to_be_in_the_childs_file(tmp_path):
    said = _problem(tmp_path, "steps:\n  - name: sweep\n    token: [5]\n")
    assert f"{tmp_path}/child.yaml:5:5: " in said
    assert "did you mean `tokens`?" in said


def test_a_change_to_a_step_that_the_parent_lacks_is_refused_with_a_suggestion(tmp_path):
    said = _problem(tmp_path, "steps:\n  - name: sweeep\n    tokens: [5]\n")
    assert "child.yaml:4:5: parent has no step 'sweeep'" in said
    assert "did you mean 'sweep'?" in said


def test_leaving_out_a_step_that_is_not_there_is_refused_with_a_suggestion(tmp_path):
    said = _problem(tmp_path, "without: [decoed]\n")
    assert "child.yaml:3:11: without: there is no step 'decoed'" in said
    assert "did you mean 'decode'?" in said


def test_without_needs_something_to_leave_out_of(tmp_path):
    _write(tmp_path, lone="description: x\nwithout: [a]\nsteps: [{kind: chat}]\n")
    with pytest.raises(ProfileError, match=r"lone\.yaml:2:10: `without` needs `extends`"):
        load_file(tmp_path / "lone.yaml")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("extends: parnet\n", "mine.yaml:1:10: there is no profile 'parnet' beside mine.yaml"),
        ("extends: parnet\n", "did you mean parent?"),
        ("extends: ./nowhere.yaml\n", "nowhere.yaml can't be read"),
        ("extends: mine\n", "mine.yaml:1:10: mine extends itself"),
        ("extends: [a, b]\n", "mine.yaml:1:10: `extends` names one profile"),
        ("extend: parent\nsteps: [{kind: chat}]\n", "did you mean `extends`?"),
    ],
)
def test_a_parent_that_can_not_be_had_is_an_error_with_its_place(tmp_path, text, part):
    _write(tmp_path, parent=PARENT, mine=text + "description: x\n")
    with pytest.raises(ProfileError) as caught:
        load_file(tmp_path / "mine.yaml")
    assert part in str(caught.value)


def test_profiles_that_extend_each_other_in_a_circle_are_refused_by_name(tmp_path):
    _write(
        tmp_path, a="description: a\nextends: b\n", b="description: b\nextends: c\n", c="description: c\nextends: a\n"
    )
    with pytest.raises(ProfileError, match=r"c\.yaml:2:10: .*circle: a → b → c → a"):
        load_file(tmp_path / "a.yaml")


def test_a_chain_without_an_end_in_sight_is_refused(tmp_path):
    for number in range(20):
        _write(tmp_path, **{f"p{number}": f"description: x\nextends: p{number + 1}\n"})
    with pytest.raises(ProfileError, match="more than 8 profiles extend one another"):
        load_file(tmp_path / "p0.yaml")


def test_one_step_changed_twice_is_refused(tmp_path):
    said = _problem(tmp_path, "steps:\n  - name: sweep\n    tokens: [5]\n  - name: sweep\n    tokens: [6]\n")
    assert "child.yaml:6:5: two steps are called 'sweep'" in said


def test_a_broken_parent_does_not_hide_profiles_that_do_not_extend_it(tmp_path):
    _write(tmp_path, parent="steps: 3\n", child="description: x\nextends: parent\n", lone=PARENT)
    found = {each.name: bool(each.profile) for each in list_profiles(tmp_path)}
    assert found == {"child": False, "lone": True, "parent": False}
