"""Claims about the facts that make a key."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.caches import normalise
from sidecar.caches.fingerprint import FACTS, compare, fingerprint, key_of
from tests.fakes.live_cache import facts

LIVE = "/var/cache/engine"
BASE = fingerprint(facts(), LIVE)


def argv(*words: str) -> dict[str, Any]:
    return facts(argv=["vllm", "serve", "/models/q", "--max-model-len", "2048", *words])


def env(**given: str) -> dict[str, Any]:
    return facts(environment={"VLLM_USE_AOT_COMPILE": "0", **given})


@pytest.mark.parametrize(
    "same",
    [
        facts(argv=["/opt/venv/bin/vllm", "serve", "/models/q", "--max-model-len=2048", "--port=9000"]),
        facts(argv=["vllm", "serve", "--port", "9000", "/models/q", "--max_model_len", "2048"]),
        argv("--host", "0.0.0.0", "--api-key", "one", "two", "--served-model-name", "a", "b"),
        argv("--uvicorn-log-level", "debug", "--disable-log-stats"),
        env(VLLM_HOST_IP="10.9.9.9", VLLM_API_KEY="secret", VLLM_LOGGING_LEVEL="DEBUG"),
        env(VLLM_SERVICE_HOST="10.96.0.7", VLLM_PORT="tcp://10.96.0.7:8000", VLLM_PORT_8000_TCP_ADDR="10.96.0.7"),
        env(VLLM_NIXL_SIDE_CHANNEL_HOST="10.1.2.3", NVIDIA_VISIBLE_DEVICES="GPU-8a1f"),
        env(VLLM_CACHE_ROOT="/elsewhere", TRITON_CACHE_DIR="/t"),
        facts(uid=1000, gid=1000, cwd="/srv", attempt="2-2-bbbbbbbb"),
    ],
)
def test_what_is_harmless_makes_no_other_key(same: dict[str, Any]) -> None:
    assert compare(BASE.exact, fingerprint(same, LIVE).exact) == []
    assert fingerprint(same, LIVE).exact_key == BASE.exact_key


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (argv("--max-num-batched-tokens", "4096"), "argv.--max-num-batched-tokens"),
        (argv("--speculative-config", '{"num_speculative_tokens": 9}'), "argv.--speculative-config"),
        (argv("--enforce-eager"), "argv.--enforce-eager"),
        (facts(argv=["vllm", "serve", "--port", "8000", "/models/other", "--max-model-len", "2048"]), "argv.command"),
        (env(VLLM_SOMETHING_NEW="1"), "environment.VLLM_SOMETHING_NEW"),
        (env(VLLM_ATTENTION_BACKEND="FLASHINFER"), "environment.VLLM_ATTENTION_BACKEND"),
        (facts(home="/home/vllm"), "home"),
        (facts(cpu={"arch": "x86_64", "flags": "ffff"}), "cpu_flags"),
        (facts(driver={"version": "580.999"}), "driver"),
        (facts(gpus=[{"name": "NVIDIA H200", "index": 1}]), "gpus.1"),
        (facts(world={"node_rank": 1}), "world.node_rank"),
    ],
)
def test_a_fact_of_the_model_changes_the_exact_key_alone(other: dict[str, Any], named: str) -> None:
    found = fingerprint(other, LIVE)
    assert found.exact_key != BASE.exact_key
    assert found.toolchain_key == BASE.toolchain_key
    assert named in {one.fact for one in compare(found.exact, BASE.exact)}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (facts(packages={"vllm": {"version": "0.33.0", "record": "cd" * 32}}), "packages.vllm"),
        (facts(python={"version": "3.12.3", "prefix": "/opt/venv", "abi": "cpython-312"}), "prefix"),
        (facts(toolchain={"nvcc": "12.9", "cuda_home": "/usr/local/cuda"}), "nvcc"),
        (facts(image={"digest": "sha256:abc"}), "image"),
        (facts(libc="glibc 2.31"), "libc"),
        (facts(gpus=[{"name": "NVIDIA H100", "index": 0}]), "gpu_kinds"),
        (facts(driver={"version": "590.1"}), "driver_major"),
        (env(TORCH_CUDA_ARCH_LIST="9.0a"), "compilers.TORCH_CUDA_ARCH_LIST"),
    ],
)
def test_a_fact_of_the_toolchain_changes_both_keys(other: dict[str, Any], named: str) -> None:
    found = fingerprint(other, LIVE)
    assert found.exact_key != BASE.exact_key
    assert found.toolchain_key != BASE.toolchain_key
    assert named in {one.fact for one in compare(found.toolchain, BASE.toolchain)}


def test_another_live_cache_path_changes_both_keys() -> None:
    found = fingerprint(facts(), "/mnt/cache")
    assert found.exact_key != BASE.exact_key
    assert found.toolchain_key != BASE.toolchain_key


def test_gpus_of_one_sm_version_share_the_toolchain_key_where_it_is_known() -> None:
    h100 = fingerprint(facts(gpus=[{"name": "NVIDIA H100", "index": 0, "sm": "9.0"}]), LIVE)
    h200 = fingerprint(facts(gpus=[{"name": "NVIDIA H200", "index": 0, "sm": "9.0"}]), LIVE)
    assert h100.toolchain_key == h200.toolchain_key
    assert h100.exact_key != h200.exact_key


def test_secrets_are_never_stored_by_value() -> None:
    found = fingerprint(
        facts(
            argv=["vllm", "serve", "m", "--kv-transfer-config", '{"password": "hunter2"}'],
            environment={"VLLM_MY_TOKEN": "hunter2", "VLLM_S3_SECRET": "sha256:0123"},
        ),
        LIVE,
    )
    assert "hunter2" not in str(found)
    assert found.exact["environment.VLLM_S3_SECRET"] == "sha256:0123"


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"argv": "vllm", "environment": [], "packages": 3, "gpus": {"a": 1}, "world": [], "python": None},
        {"gpus": [7]},
    ],
)
def test_facts_of_unexpected_shape_count_as_away(odd: dict[str, Any]) -> None:
    assert len(fingerprint(odd, LIVE).exact_key) == 32


def test_a_stored_facts_file_can_be_checked_against_its_key() -> None:
    assert key_of("exact", BASE.exact) == BASE.exact_key
    assert key_of("toolchain", BASE.exact) != BASE.exact_key


def test_every_fact_says_why_it_matters_and_has_a_name_of_its_own() -> None:
    assert all(fact.why.endswith(".") for fact in FACTS)
    assert len({fact.name for fact in FACTS}) == len(FACTS)


def test_the_number_of_devices_counts_and_not_which_they_are() -> None:
    assert normalise.environment({"CUDA_VISIBLE_DEVICES": "0,1"}) == normalise.environment(
        {"CUDA_VISIBLE_DEVICES": "6,7"}
    )
    assert normalise.environment({"CUDA_VISIBLE_DEVICES": "0"}) != normalise.environment(
        {"CUDA_VISIBLE_DEVICES": "6,7"}
    )


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["vllm", "serve", "m"], 1),
        (["vllm", "serve", "m", "-tp", "4"], 4),
        (["vllm", "serve", "m", "--tensor_parallel_size=2", "--data-parallel-size", "3"], 6),
        (["vllm", "serve", "m", "-tp", "many"], 1),
    ],
)
def test_the_world_size_is_the_product_of_the_parallel_sizes(words: list[str], size: int) -> None:
    assert normalise.world_size(words) == size
