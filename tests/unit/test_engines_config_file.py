"""The file of arguments that an engine's command names: what is read of it, whose word counts, and what is never shown."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.fingerprint import fingerprint
from sidecar.engines.address import disagreements
from sidecar.engines.outside import hints_of, launcher_place
from sidecar.engines.protocol import EngineFacts
from sidecar.engines.server_facts import facts_of_hints
from sidecar.launcher import config_file
from sidecar.launcher.facts import command_facts
from sidecar.supervisor import addressing
from tests.unit.supervised import make_pod, told

TRTLLM = """
# Limits of this pool.
max_batch_size: 64
max_num_tokens: 8192
"max_seq_len": 32768
tensor_parallel_size: 2
kv_cache_config:
  dtype: fp8
  tokens_per_block: 64
  free_gpu_memory_fraction: 0.9
cuda_graph_config:
  enable_padding: true
  batch_sizes:
  - 4
  - 1
  - 2
quant_config:
  quant_algo: NVFP4
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 3
  hub_token: nested_s3cret
enable_autotuner: false
cache_transceiver_config:
  backend: NIXL
hf_token: hf_s3cret
"""


def launched(tmp_path: Path, command: str, text: str | None) -> dict[str, Any]:
    """Give the facts that a launcher writes of a command whose {file} holds a text; None: there is no such file."""
    path = tmp_path / "arguments.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    return command_facts(command.format(file=path).split(), {}, {})


def learnt(facts: dict[str, Any]) -> EngineFacts:
    return facts_of_hints(hints_of([launcher_place(facts)]))


@pytest.mark.parametrize(
    "flag", ["--config {file}", "--extra_llm_api_options={file}", "--extra-llm-api-options {file}"]
)
def test_limits_of_trtllm_are_read_from_its_file_and_count_over_the_command(tmp_path: Path, flag: str):
    facts = learnt(launched(tmp_path, f"trtllm-serve m --max_batch_size 8 --port 8001 {flag}", TRTLLM))
    assert (facts.max_num_seqs, facts.max_num_batched_tokens, facts.max_model_len) == (64, 8192, 32768)
    assert (facts.kv_cache_dtype, facts.block_size, facts.tensor_parallel) == ("fp8", 64, 2)
    assert (facts.quantization, facts.weights) == ("nvfp4", "nvfp4")
    assert (facts.cudagraph_sizes, facts.speculative_tokens) == ((1, 2, 4), 3)
    assert facts.skipped_warmups == ("autotuning",)
    assert facts.sources["max_num_seqs"] == f"{tmp_path}/arguments.yaml, max_batch_size"
    assert facts.sources["kv_cache_dtype"].endswith("arguments.yaml, kv_cache_config.dtype")


@pytest.mark.parametrize(
    "text",
    [TRTLLM, 'kv_cache_config: {dtype: fp8, password: "s3cret"}', '{"kv_cache_config": {"auth_token": "s3cret"}}'],
)
def test_secrets_stay_in_the_file(tmp_path: Path, text: str):
    found = launched(tmp_path, "trtllm-serve m --config {file}", text)
    assert "s3cret" not in json.dumps(found)
    assert "config_problem" not in hints_of([launcher_place(found)])


def test_a_format_that_is_left_to_the_engine_is_no_fact(tmp_path: Path):
    facts = learnt(launched(tmp_path, "trtllm-serve m --config {file}", "kv_cache_config: {dtype: auto}\n"))
    assert facts.kv_cache_dtype is None


def test_a_file_in_json_is_read_too(tmp_path: Path):
    text = json.dumps({"max_batch_size": 16, "kv_cache_config": {"dtype": "nvfp4"}, "api_key": "s3cret"}, indent=1)
    found = launched(tmp_path, "trtllm-serve m --config {file}", text)
    assert (learnt(found).max_num_seqs, learnt(found).kv_cache_dtype) == (16, "nvfp4")
    assert "s3cret" not in json.dumps(found)


VLLM = """
model: ignored
port: 8200
max-num-seqs: 32
max_model_len: 32k
data-parallel-size: 2
no-enable-prefix-caching: true
api-key: s3cret
ssl-certfile: /c.pem
compilation-config:
  cudagraph_capture_sizes: [1, 2]
"""


@pytest.mark.parametrize(
    ("command", "names"),
    [("vllm serve m --config {file}", VLLM), ("python -m sglang.launch_server --model-path m --config {file}", None)],
    ids=["vllm", "sglang"],
)
def test_entries_called_as_flags_are_read_as_those_and_the_command_counts_over_them(
    tmp_path: Path, command: str, names: str | None
):
    text = (
        names
        or "port: 8200\nmax-running-requests: 32\ncontext-length: 32000\ndp-size: 2\napi-key: s3cret\nssl-certfile: c\n"
    )
    facts = launched(tmp_path, command, text)
    hints = hints_of([launcher_place(facts)])
    known = learnt(facts)
    assert (known.max_num_seqs, known.max_model_len, known.dp_ranks) == (32, 32000, 2)
    assert known.sources["max_model_len"].startswith(f"{tmp_path}/arguments.yaml, ")
    assert (hints["port"].value, hints["tls"].value, hints["api_key"].value) == (8200, True, True)
    assert "s3cret" not in json.dumps(facts)
    flag = "--max-num-seqs 4" if names else "--max-running-requests 4"
    assert learnt(launched(tmp_path, f"{command} {flag} --port 9", text)).max_num_seqs == 4


@pytest.mark.parametrize(
    "entry",
    [
        'kv-transfer-config: \'{"kv_connector": "P2pNcclConnector", "kv_role": "kv_consumer", "kv_ip": "10.9.8.7"}\'',
        "kv_transfer_config:\n  kv_connector: P2pNcclConnector\n  kv_role: kv_consumer\n  kv_ip: 10.9.8.7",
    ],
    ids=["json", "yaml"],
)
def test_the_role_in_the_file_is_known_and_nothing_else_of_that_entry(tmp_path: Path, entry: str):
    found = launched(tmp_path, "vllm serve m --config {file}", f"port: 8000\n{entry}\n")
    facts = learnt(found)
    assert (facts.role, facts.kv_connectors) == ("decode", ("P2pNcclConnector",))
    assert "10.9.8.7" not in json.dumps(found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "it is not there"),
        ("max_batch_size: [64\nmax_num_tokens: 3\n", "line "),
        ("max_batch_size: \a\n", "special characters"),
        ("max_batch_size: 1" + " " * (1 << 20), "larger than"),
        ("kv_cache_config:\n" + "  a: 1\n" * 5000, "larger than"),
    ],
    ids=["absent", "no YAML", "no text", "huge", "long"],
)
def test_a_file_that_can_not_be_read_is_told_and_the_rest_of_the_command_counts(
    tmp_path: Path, text: str | None, why: str
):
    found = launched(tmp_path, "trtllm-serve m --max_batch_size 8 --config {file}", text)
    assert learnt(found).max_num_seqs == 8
    pod = make_pod(tmp_path, engine_url="http://127.0.0.1:8000")
    pod.facts = found
    addressing.compare(pod)
    assert "arguments.yaml can't be read" in told(pod)
    assert why in told(pod)
    assert "Correct the file" in told(pod)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "unknown: 3\n", "max_batch_size:\n", "max_batch_size: many\n", "- a\n"]
)
def test_a_file_without_anything_of_interest_is_no_trouble(tmp_path: Path, text: str):
    hints = hints_of([launcher_place(launched(tmp_path, "trtllm-serve m --config {file}", text))])
    assert "config_problem" not in hints
    assert "max_num_seqs" not in hints


@pytest.mark.parametrize("argv_file", [{}, {"path": "x"}, {"path": "x", "text": 3}, {"path": "x", "text": "- 1"}, "x"])
def test_facts_of_a_file_that_are_not_as_they_should_be_break_nothing(argv_file: Any):
    assert facts_of_hints(
        hints_of([launcher_place({"argv": ["vllm", "serve", "m"], "environment": {}, "argv_file": argv_file})])
    )


def test_a_line_that_nobody_wrote_is_left_out_and_costs_no_time(tmp_path: Path):
    text = "max_batch_size: 4\nkv_cache_config:\n  note: " + "a" * 500_000 + "\n  tokens_per_block: 64\n"
    found = launched(tmp_path, "trtllm-serve m --config {file}", text)
    assert (learnt(found).max_num_seqs, learnt(found).block_size) == (4, 64)
    assert "aaaa" not in json.dumps(found)


def test_the_content_of_trtllms_file_is_a_part_of_exact_keys(tmp_path: Path):
    command = "trtllm-serve m --extra_llm_api_options {file}"
    first = fingerprint(launched(tmp_path, command, TRTLLM), "/live")
    second = fingerprint(launched(tmp_path, command, TRTLLM.replace("64", "32")), "/live")
    assert first.exact_key != second.exact_key
    assert first.exact_key == fingerprint(launched(tmp_path, command, TRTLLM), "/live").exact_key


@pytest.mark.parametrize(
    "entry",
    [
        'speculative_config: {"model":"m","api_key":"s3cret"}',
        "speculative_config: {'hub_token':'s3cret'}",
        'speculative_config: {"api\\u005fkey": "s3cret"}',
        'speculative_config: {\n  "hub_token"\n  : "s3cret"}',
        "speculative_config:\n  hub_token: |\n    s3cret\n  max_draft_len: 3",
        "speculative_config:\n  hub_token:\n    s3cret",
        "speculative_config:\n  api_keys:\n  - s3cret",
        "speculative_config:\n  ? hub_token\n  : s3cret",
        "speculative_config:\n  - max_draft_len: 3\n    password: s3cret",
        f"speculative_config:\n  hub_token: {'a' * 5000}\n    s3cret",
        "model: https://user:s3cret@host/m",
        "model: m # s3cret",
        "model: m\n# s3cret",
        "api-key:\n- s3cret",
    ],
)
def test_secrets_stay_in_the_file_however_they_are_written_and_the_other_entries_are_read(tmp_path: Path, entry: str):
    found = launched(tmp_path, "trtllm-serve m --config {file}", f"max_batch_size: 64\n{entry}\nmax_seq_len: 4096\n")
    assert "s3cret" not in json.dumps(found)
    assert (learnt(found).max_num_seqs, learnt(found).max_model_len) == (64, 4096)


def test_words_of_4000_letters_are_looked_through_once_each():
    entry = ["speculative_config:", *["  " + "a" * 4000] * 3]
    started = time.process_time()
    assert config_file._without_secrets(entry) == entry
    assert time.process_time() - started < 2


@pytest.mark.parametrize("command", ["vllm serve m --config $CONFIG", "cd /etc && vllm serve m --config nowhere.yaml"])
def test_a_path_that_only_the_shell_knows_is_no_trouble_and_leaves_the_address_open(command: str):
    hints = hints_of([launcher_place(command_facts(["sh", "-c", command], {}, {}))])
    assert "config_problem" not in hints
    assert disagreements("http://127.0.0.1:9000", hints, False) == ()
    plain = hints_of([launcher_place(command_facts(["vllm", "serve", "m", "--config", "nowhere.yaml"], {}, {}))])
    assert "nowhere.yaml can't be read" in plain["config_problem"].value


def test_the_file_of_a_program_that_is_no_known_engine_means_nothing(tmp_path: Path):
    for text in ("port: 9000\n", "[toml]\nport = 9000\n\tmodel: x\n"):
        hints = hints_of([launcher_place(launched(tmp_path, "python serve.py --config {file}", text))])
        assert not hints.keys() & {"config_problem", "port"}


@pytest.mark.parametrize(
    "value", ["!!bool maybe", "!!timestamp soon", "!!int ''", "!!float x", "2001-99-99", "9" * 5000]
)
def test_a_value_that_is_not_of_its_kind_is_told_and_nothing_falls(value: str):
    facts = {"argv": ["vllm", "serve", "m"], "environment": {}}
    hints = hints_of([launcher_place({**facts, "argv_file": {"path": "/c.yaml", "text": f"port: {value}\n"}})])
    assert "/c.yaml can't be read" in hints["config_problem"].value
