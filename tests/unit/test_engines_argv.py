"""Claims about what an engine's command line gives away, and what it must not."""

from __future__ import annotations

import pytest

from sidecar.engines.argv import FLAGS, hints_from_argv

SERVE = ["vllm", "serve", "m"]


def values(command: str, **environment: str) -> dict[str, object]:
    found = hints_from_argv(command.split(), environment)
    return {name: hint.value for name, hint in found.items() if name != "engine"}


def test_flags_with_a_space_an_equal_sign_and_underscores_are_the_same():
    expected = {"root": "m", "max_num_seqs": 64}
    assert values("vllm serve m --max-num-seqs 64") == expected
    assert values("vllm serve m --max-num-seqs=64") == expected
    assert values("vllm serve m --max_num_seqs 64") == expected
    assert values("vllm serve m --max_num_seqs=64") == expected


def test_every_limit_the_planner_needs_is_found_with_its_source():
    command = (
        "vllm serve /models/q --max-model-len 32768 --max-num-batched-tokens 8192 --kv-cache-dtype fp8 "
        "--quantization fp8 --port 8200 --served-model-name q q-alias --block-size 32"
    )
    hints = hints_from_argv(command.split(), {})
    assert {name: hint.value for name, hint in hints.items()} == {
        "root": "/models/q",
        "max_model_len": 32768,
        "max_num_batched_tokens": 8192,
        "kv_cache_dtype": "fp8",
        "quantization": "fp8",
        "port": 8200,
        "model": "q",
        "block_size": 32,
        "engine": "vllm",
    }
    assert hints["max_model_len"].source == "argv --max-model-len"


@pytest.mark.parametrize(
    ("text", "number"), [("32k", 32000), ("32K", 32768), ("1.5k", 1500), ("1M", 1048576), ("4096", 4096)]
)
def test_lengths_with_a_unit_are_read_as_vllm_reads_them(text: str, number: int):
    assert values(f"vllm serve m --max-model-len {text}")["max_model_len"] == number


@pytest.mark.parametrize("text", ["auto", "-1", "many", "", "4_096"])
def test_a_length_that_is_no_number_is_left_out(text: str):
    assert "max_model_len" not in hints_from_argv([*SERVE, "--max-model-len", text], {})


@pytest.mark.parametrize("flag", ["--api-key s3cret", "--api-key=s3cret", "--api_key s3cret s3cret"])
def test_an_api_key_is_known_to_be_set_and_never_kept(flag: str):
    hints = hints_from_argv([*SERVE, *flag.split()], {})
    assert hints["api_key"].value is True
    assert "s3cret" not in repr(hints)


def test_an_api_key_in_the_environment_is_known_to_be_set_and_never_kept():
    hints = hints_from_argv(SERVE, {"VLLM_API_KEY": "s3cret"})
    assert hints["api_key"].value is True
    assert "s3cret" not in repr(hints)


def test_switches_have_a_negative_form_and_the_last_one_counts():
    assert values("vllm serve m --enable-lora --enforce-eager")["enable_lora"] is True
    assert values("vllm serve m --enable-prefix-caching --no-enable-prefix-caching")["enable_prefix_caching"] is False
    assert values("vllm serve m --enable-lora --port 1") == {"root": "m", "enable_lora": True, "port": 1}


def test_a_value_flag_has_no_negative_form():
    assert values("vllm serve m --no-max-num-seqs 4") == {"root": "m"}


def test_adapters_are_found_in_both_spellings():
    argv = [*SERVE, "--lora-modules", "sql=/a/sql", '{"name": "chat", "path": "/a"}', "--port", "1"]
    assert hints_from_argv(argv, {})["adapters"].value == ("sql", "chat")


def test_the_module_form_and_a_shell_around_it_are_understood():
    module = "python3 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs 8"
    assert values(module) == {"root": "m", "max_num_seqs": 8}
    assert hints_from_argv(["/bin/sh", "-c", f"exec {module}  # note"], {})["max_num_seqs"].value == 8
    unclosed = ["bash", "-lc", "vllm serve 'unclosed --max-num-seqs 8"]
    assert hints_from_argv(unclosed, {})["max_num_seqs"].value == 8


def test_roles_of_disaggregated_engines_are_visible():
    argv = [*SERVE, "--kv-transfer-config", '{"kv_role": "kv_producer"}']
    assert hints_from_argv(argv, {})["kv_transfer"].value == {"kv_role": "kv_producer"}


@pytest.mark.parametrize("argv", [[], ["serve"], ["--max-num-seqs"], ["vllm", "serve", "--port"], ["sh", "-c"]])
def test_a_command_that_ends_early_gives_what_it_has(argv: list[str]):
    assert hints_from_argv(argv, {}).keys() <= {"engine", "port"}


def test_flags_are_declared_the_way_they_are_looked_up():
    assert all("_" not in name for name in FLAGS)


@pytest.mark.parametrize(
    ("words", "environment", "seconds", "source"),
    [
        ("", {}, None, None),
        ("", {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800"}, 1800, "environment VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
        ("-tp 2", {}, 600, "default of NCCL's watchdog"),
        ("-tp 2 --distributed-timeout-seconds 1200", {}, 1200, "argv --distributed-timeout-seconds"),
        (
            "-tp 2",
            {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600"},
            3600,
            "environment VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        ),
        ("-tp 1", {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "soon"}, None, None),
    ],
)
def test_how_long_the_engine_bears_with_one_step_is_the_longest_that_is_known(words, environment, seconds, source):
    hint = hints_from_argv(("vllm", "serve", "m", *words.split()), environment).get("step_timeout_s")
    assert (hint and hint.value, hint and hint.source) == (seconds, source)


def test_how_long_kv_blocks_wait_for_a_peer_is_read_from_the_connectors_variable():
    hint = hints_from_argv(("vllm", "serve", "m"), {"VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "30"})["kv_release_s"]
    assert (hint.value, hint.source) == (30, "environment VLLM_NIXL_ABORT_REQUEST_TIMEOUT")
