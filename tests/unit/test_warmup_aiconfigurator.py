"""Profiles and bench targets out of results of the real AIConfigurator, and of results that are damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sidecar.bench.targets import Targets, read_targets
from sidecar.engines.protocol import EngineFacts
from sidecar.errors import ProfileError
from sidecar.warmup.aiconfigurator import read_plan
from sidecar.warmup.planned_profile import profile_text, targets_text
from sidecar.warmup.planner import make_plan
from sidecar.warmup.profiles import Profile, load_file, load_profile

RESULTS = Path(__file__).resolve().parents[1] / "fakes" / "aiconfigurator"
VLLM = EngineFacts(engine="vllm", version="0.24.0", model="Qwen/Qwen3-32B-FP8", tasks=("generate",), chat=True)


def made(tmp_path: Path, result: str, experiment: str = "agg", role: str = "", rank: int = 1) -> Profile:
    text = profile_text(read_plan(RESULTS / result, experiment, rank, role))
    (tmp_path / "made.yaml").write_text(text, encoding="utf-8")
    return load_file(tmp_path / "made.yaml")


def sizes(profile: Profile, name: str) -> dict[str, object]:
    [step] = [each for each in profile.steps if each.title == name]
    return step.model_dump()


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RESULTS / "vllm", tmp_path / "result"))


def test_steps_and_mix_are_at_the_planned_lengths_and_batch(tmp_path: Path) -> None:
    profile = made(tmp_path, "vllm")
    prompts = sizes(profile, "planned prompts")
    assert (prompts["tokens"], prompts["concurrency"]) == ((4000, 4001), (1, 12))
    beside = sizes(profile, "planned prompt beside decodes")
    assert (beside["decodes"], beside["prefill_tokens"], beside["decode_prompt_tokens"]) == (11, (4000,), 4000)
    decodes = sizes(profile, "planned decodes")
    assert (decodes["batch"], decodes["prompt_tokens"]) == ((6, 12), (4000, 4500))
    assert (profile.mix.prompt_tokens.start, profile.mix.prompt_tokens.to) == (2000, 6000)
    assert (profile.mix.concurrency.start, profile.mix.concurrency.to) == (1, 12)


def test_the_shipped_profile_for_that_gpu_and_kv_cache_is_extended(tmp_path: Path) -> None:
    profile, base = made(tmp_path, "vllm"), load_profile("sm90-fp8-kv")
    assert {step.title for step in base.steps} < {step.title for step in profile.steps}
    assert (profile.match.sm, profile.match.kv_cache_dtype) == (("sm90",), base.match.kv_cache_dtype)
    assert profile.mix.output_tokens == base.mix.output_tokens
    assert (profile.match.engine, profile.match.model) == (("vllm",), ("Qwen/Qwen3-32B-FP8",))


@pytest.mark.parametrize(
    ("result", "experiment", "role", "extended", "limits"),
    [
        (
            "vllm",
            "agg",
            "",
            "sm90-fp8-kv",
            {"max_model_len": 6000, "max_num_batched_tokens": 6012, "max_num_seqs": 512},
        ),
        ("vllm", "disagg", "prefill", "sm90-prefill", {"max_num_batched_tokens": 5500, "max_num_seqs": 1}),
        ("vllm", "disagg", "decode", "sm90-decode", {"max_num_batched_tokens": 512, "max_num_seqs": 512}),
        ("trtllm", "agg", "", "sm90-fp8-kv", {"max_num_batched_tokens": 4544, "max_num_seqs": 32}),
        ("trtllm", "disagg", "decode", "sm90-decode", {"max_num_batched_tokens": 64, "max_num_seqs": 64}),
        ("sglang", "agg", "", "sm90-fp8-kv", {"max_num_seqs": 512}),
        ("auto", "agg", "", "sm90-bf16", {"max_model_len": 3700, "max_num_batched_tokens": 4012, "max_num_seqs": 512}),
        ("llm-d", "disagg", "prefill", "sm90-prefill", {"max_num_batched_tokens": 3500, "max_num_seqs": 1}),
        ("llm-d", "disagg", "decode", "sm90-decode", {"max_num_batched_tokens": 512, "max_num_seqs": 512}),
    ],
)
def test_limits_are_those_of_the_generated_engine(
    result: str, experiment: str, role: str, extended: str, limits: dict[str, int]
) -> None:
    found = yaml.safe_load(profile_text(read_plan(RESULTS / result, experiment, 1, role)))
    assert (found["extends"], found["assume"]) == (extended, limits)
    assert found["match"]["engine"] == [result if result in ("trtllm", "sglang") else "vllm"]


def test_each_engine_of_a_divided_plan_gets_its_part_of_the_steps(tmp_path: Path) -> None:
    prefill = {step.title for step in made(tmp_path, "vllm", "disagg", "prefill").steps}
    decode = {step.title for step in made(tmp_path, "vllm", "disagg", "decode").steps}
    assert {"planned prompts"} == {name for name in prefill if name.startswith("planned")}
    assert {"planned decodes"} == {name for name in decode if name.startswith("planned")}


def test_the_planned_requests_are_sent_to_an_engine_of_these_limits(tmp_path: Path) -> None:
    plan = make_plan(made(tmp_path, "vllm"), VLLM)
    [step] = [each for each in plan.steps if each.name == "planned decodes"]
    assert sorted({(burst.concurrency, burst.longest_prompt) for burst in step.bursts}) == [
        (6, 4000), (6, 4500), (12, 4000), (12, 4500),
    ]  # fmt: skip
    assert not [each for each in plan.clipped if "planned" in each]


def test_every_number_of_the_plan_says_where_it_is_from() -> None:
    lines = profile_text(read_plan(RESULTS / "vllm", "agg")).splitlines()
    planned = ("4000", "4500", "6000", "6012", "512", "12", "11", "2000")
    numbers = [
        line for line in lines if not line.lstrip().startswith("#") and any(f"{each}" in line for each in planned)
    ]
    assert len(numbers) >= 9
    assert all("agg/best_config_topn.csv, row 1" in line or "agg/top1/" in line for line in numbers)


def test_the_targets_are_what_was_asked_for_and_the_load_what_was_planned(tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text(targets_text(read_plan(RESULTS / "vllm", "agg")), encoding="utf-8")
    found = read_targets(tmp_path / "targets.yaml")
    assert (found.prompt_tokens, found.output_tokens, found.concurrency) == (4000, 500, 12)
    assert (found.ttft_ms, found.tpot_ms, found.request_latency_ms) == (600, 25, None)
    assert (found.predicted.ttft_ms, found.predicted.output_tokens_per_s) == (315.483, 478.424)


def test_a_limit_of_the_whole_request_replaces_the_other_targets() -> None:
    found = Targets.model_validate(yaml.safe_load(targets_text(read_plan(RESULTS / "auto", "agg"))))
    assert (found.ttft_ms, found.tpot_ms, found.request_latency_ms) == (None, None, 5000)


def test_the_best_experiment_is_taken_and_another_configuration_where_asked(result: Path) -> None:
    assert read_plan(result, role="decode").experiment == "disagg"
    shutil.copytree(result / "agg" / "top1", result / "agg" / "top2")
    assert read_plan(result, "agg", 2).concurrency == 6


def test_the_folder_above_and_that_of_an_experiment_will_do(result: Path) -> None:
    assert read_plan(result.parent, "agg").result == "result"
    assert read_plan(result / "agg", "agg").result == "result"


def test_tokens_that_are_planned_to_be_cached_get_a_step_and_a_word_in_the_targets(result: Path) -> None:
    path = result / "agg" / "best_config_topn.csv"
    path.write_text(path.read_text().replace(",4000,500,0,12,", ",4000,500,3000,12,"))
    plan = read_plan(result, "agg")
    steps = yaml.safe_load(profile_text(plan))["steps"]
    [shared] = [each for each in steps if each["kind"] == "shared_prefix"]
    assert (shared["prefix_tokens"], shared["suffix_tokens"]) == ([3000], [1000])
    assert "new to every cache" in targets_text(plan)


def test_what_a_model_is_called_can_not_become_yaml(result: Path) -> None:
    path = result / "agg" / "best_config_topn.csv"
    name = '"x]: {a: b} # ""c"""'
    path.write_text(path.read_text().replace("Qwen/Qwen3-32B-FP8", name))
    found = yaml.safe_load(profile_text(read_plan(result, "agg")))
    assert found["match"]["model"] == ['x]: {a: b} # "c"']


def _without(name: str) -> Callable[[Path], None]:
    def remove(result: Path) -> None:
        path = result / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def _changed(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(result: Path) -> None:
        path = result / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def _cut(name: str, size: int) -> Callable[[Path], None]:
    def cut(result: Path) -> None:
        (result / name).write_bytes((result / name).read_bytes()[:size])

    return cut


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without("agg/best_config_topn.csv"), ("agg/best_config_topn.csv is missing", "run again")),
        (_without("agg/exp_config.yaml"), ("agg/exp_config.yaml is missing", "run again")),
        (_without("agg/top1"), ("agg/top1 is missing", "run again")),
        (_without("agg/top1/generator_config.yaml"), ("generator_config.yaml is missing", "run again")),
        (_without("agg/top1/k8s_deploy.yaml"), ("k8s_deploy.yaml is missing", "--deployment-target")),
        (_cut("agg/best_config_topn.csv", 500), ("best_config_topn.csv is cut short in row 1",)),
        (_cut("agg/exp_config.yaml", 60), ("exp_config.yaml has no", "`tpot`", "AIConfigurator 0.12")),
        (_changed("agg/exp_config.yaml", "serving_mode: agg", "mode: patch"), ("no `serving_mode`", "another version")),
        (_changed("agg/exp_config.yaml", "serving_mode: agg", "serving_mode: afd"), ("'afd'", "agg and disagg")),
        (_changed("agg/exp_config.yaml", "ttft: 600.0", "ttft: -1"), ("`ttft` is -1",)),
        (_changed("agg/best_config_topn.csv", "num_gen_reqs", "gen_reqs"), ("no `num_gen_reqs`", "AIConfigurator 0.12")),
        (_changed("agg/best_config_topn.csv", ",4000,500,", ",4000.5,500,"), ("`isl` is '4000.5'",)),
        (_changed("agg/best_config_topn.csv", ",4000,500,", ",nan,500,"), ("`isl` is 'nan'",)),
        (_changed("agg/best_config_topn.csv", ",vllm,", ",other,"), ("backend 'other'", "vllm, sglang, trtllm")),
        (_changed("agg/best_config_topn.csv", ",h200_sxm,", ",b60,"), ("'b60'", "--sm")),
        (_cut("agg/top1/k8s_deploy.yaml", 11), ("k8s_deploy.yaml has no command line of a worker", "run again")),
        (_cut("agg/top1/k8s_deploy.yaml", 1200), ("k8s_deploy.yaml can't be read", "make it again")),
        (_changed("agg/top1/k8s_deploy.yaml", "kind:", "x: !!bool maybe\nkind:"), ("can't be read", "make it again")),
        (_changed("agg/exp_config.yaml", "ttft: 600.0", "ttft: !!bool maybe"), ("exp_config.yaml is not YAML",)),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_named_with_what_to_do(
    result: Path, damage: Callable[[Path], None], words: tuple[str, ...]
) -> None:
    damage(result)
    with pytest.raises(ProfileError) as raised:
        profile_text(read_plan(result, "agg"))
    for word in words:
        assert word in str(raised.value)


def test_an_experiment_that_found_nothing_is_passed_over_and_told_when_it_was_all(result: Path) -> None:
    table = result / "disagg" / "best_config_topn.csv"
    table.write_text(table.read_text().splitlines()[0] + "\n")
    assert read_plan(result).experiment == "agg"
    table = result / "agg" / "best_config_topn.csv"
    table.write_text("\n")
    with pytest.raises(ProfileError, match=r"no configuration in agg and disagg .*slower targets"):
        read_plan(result)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("disagg",), "--role prefill or --role decode"),
        (("agg", 1, "decode"), "leave --role out"),
        (("agg", 3), "2 configurations, and no number 3"),
        (("other",), "there is agg and disagg"),
    ],
)
def test_a_choice_that_can_not_be_made_says_what_there_is(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        read_plan(RESULTS / "vllm", *arguments)  # type: ignore[arg-type]


def test_folders_that_hold_no_result_or_several_are_told(tmp_path: Path, result: Path) -> None:
    with pytest.raises(ProfileError, match="is no folder"):
        read_plan(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProfileError, match="holds no result of AIConfigurator"):
        read_plan(tmp_path / "empty")
    shutil.copytree(result, tmp_path / "second")
    with pytest.raises(ProfileError, match=r"several results.*result, .*second"):
        read_plan(tmp_path)
