"""A poor ratio is explained by the fact that brought it about, and by nothing where none is known."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.effectiveness import Effect, is_explained, measure, sentence
from sidecar.caches.scan import scan_live_cache
from tests.fakes import live_cache as fake

COMPILE = "vllm/torch_compile_cache"
BUILT_S = fake.OLD_NS // 1_000_000_000


def why(live: Path, family: str, laid: Any, facts: dict[str, Any] | None = None, near: Sequence[str] = ()) -> str:
    """Say what explains that a family was of little use."""
    effects = measure(live, laid, [family], facts or {}, near)
    assert effects[family].ratio < 0.5, effects
    assert effects[family].why in sentence(effects)
    assert effects[family].to_json()["why"] == effects[family].why
    return effects[family].why


def rebuild(folder: Path, *names: str) -> None:
    """Write files anew, as ninja does."""
    for name in names:
        (folder / name).write_bytes(b"built anew")


@pytest.fixture
def module(tmp_path: Path) -> tuple[Path, Any]:
    """Give a restored FlashInfer module, and the scan of it."""
    folder = fake.flashinfer_module(tmp_path, "m")
    return folder, scan_live_cache(tmp_path)


def test_a_rebuild_with_another_command_line_is_told_from_one_by_time(module: Any, tmp_path: Path) -> None:
    folder, laid = module
    rebuild(folder, "build.ninja", "m.so", "m.cuda.o", ".ninja_log")
    assert "build.ninja was written anew" in why(tmp_path, "flashinfer", laid)


def test_headers_younger_than_the_objects_explain_a_rebuild(module: Any, tmp_path: Path) -> None:
    folder, laid = module
    rebuild(folder, "m.so", "m.cuda.o", ".ninja_log")
    packages = {"flashinfer-python": {"version": "1", "installed": BUILT_S + 60}, "torch": {"installed": BUILT_S - 60}}
    said = why(tmp_path, "flashinfer", laid, {"packages": packages})
    assert "headers of flashinfer-python were installed after" in said


def test_a_missing_log_of_ninja_explains_a_rebuild(tmp_path: Path) -> None:
    folder = fake.flashinfer_module(tmp_path, "m")
    (folder / ".ninja_log").unlink()
    laid = scan_live_cache(tmp_path)
    rebuild(folder, "m.so", "m.cuda.o", ".ninja_log")
    assert "ninja's log was not among what was restored" in why(tmp_path, "flashinfer", laid)


def test_one_log_of_ninja_for_all_modules_is_a_log(tmp_path: Path) -> None:
    folder = fake.flashinfer_module(tmp_path, "m")
    (folder / ".ninja_log").rename(folder.parent / ".ninja_log")
    laid = scan_live_cache(tmp_path)
    rebuild(folder, "m.so", "m.cuda.o")
    assert "ninja's log was not" not in why(tmp_path, "flashinfer", laid)


def test_a_rebuild_that_nothing_explains_is_only_described(module: Any, tmp_path: Path) -> None:
    folder, laid = module
    rebuild(folder, "m.so", "m.cuda.o")
    packages = {"flashinfer-python": {"installed": BUILT_S - 60}}
    assert "written again in place" in why(tmp_path, "flashinfer", laid, {"packages": packages})


def compiled(live: Path, key: str, factors: dict[str, Any]) -> None:
    """Lay down what vLLM compiles under one key of its own."""
    fake.put(live / COMPILE / key / "rank_0_0/backbone/a.so", key)
    fake.put(live / COMPILE / key / "rank_0_0/backbone/cache_key_factors.json", json.dumps(factors))


def test_the_variable_that_made_another_key_of_vllms_own_is_named_without_its_value(tmp_path: Path) -> None:
    env = {"VLLM_NIXL_SIDE_CHANNEL_PORT": 5557, "VLLM_USE_X": True, "VLLM_SECRET": "hunter2"}
    compiled(tmp_path, "0123456789", {"env": env, "config_hash": "a"})
    laid = scan_live_cache(tmp_path)
    compiled(tmp_path, "abcdef0123", {"env": {**env, "VLLM_SECRET": "other"}, "config_hash": "a"})
    said = why(tmp_path, "vllm_compile", laid)
    assert said.endswith("it compiled into abcdef0123 beside the restored 0123456789; its key differs in VLLM_SECRET")
    assert "hunter2" not in said


def test_an_artifact_under_another_key_is_told_where_the_factors_are_not_known(tmp_path: Path) -> None:
    fake.put(tmp_path / COMPILE / "torch_aot_compile/aa/rank_0_0/model", "old")
    laid = scan_live_cache(tmp_path)
    fake.put(tmp_path / COMPILE / "torch_aot_compile/bb/rank_0_0/model", "new")
    fake.put(tmp_path / COMPILE / "torch_aot_compile/cc/rank_0_0/model", "new")
    said = why(tmp_path, "vllm_compile", laid)
    assert "compiled into torch_aot_compile/bb, torch_aot_compile/cc beside the restored torch_aot_compile/aa" in said


def test_a_variable_of_the_users_explains_an_untouched_family(tmp_path: Path) -> None:
    fake.triton_kernel(tmp_path, "A")
    laid = scan_live_cache(tmp_path)
    fake.put(tmp_path / "triton/B/k.cubin", "new")
    (tmp_path / "triton/A/k.cubin").unlink()
    facts = {"overrides": {"TRITON_CACHE_DIR": "/mine"}}
    assert why(tmp_path, "triton", laid, facts) == (
        "TRITON_CACHE_DIR is set to /mine in the engine's container, so the engine looks there"
    )


def test_more_kernels_than_the_publisher_had_are_told_from_a_copy_that_nobody_read(tmp_path: Path) -> None:
    fake.deep_gemm_kernel(tmp_path, "a")
    laid = scan_live_cache(tmp_path)
    (tmp_path / "deep_gemm/cache/kernel.a/kernel.cubin").read_bytes()
    for name in "bcd":
        fake.deep_gemm_kernel(tmp_path, name)
        os.utime(tmp_path / f"deep_gemm/cache/kernel.{name}/kernel.cubin")
    assert why(tmp_path, "deep_gemm", laid).startswith("3 kernels more were needed")


def test_kernels_of_another_model_are_explained_by_what_differs_from_its_engine(tmp_path: Path) -> None:
    fake.deep_gemm_kernel(tmp_path, "theirs")
    laid = scan_live_cache(tmp_path)
    fake.deep_gemm_kernel(tmp_path, "ours")
    fake.deep_gemm_kernel(tmp_path, "ours too")
    near = ("argv.--model is /b here and /a there", "argv.--max-num-seqs is not given there")
    said = why(tmp_path, "deep_gemm", laid, near=near)
    assert "the nearest known key differs in argv.--model is /b here and /a there and 1 more" in said
    assert "'s own key" not in said


def test_what_is_expected_is_told_apart_by_what_was_found_and_not_by_how_it_is_worded() -> None:
    other = Effect(1, 0, 0, 3, "another engine published it, as all who read this may believe", expected=False)
    assert not is_explained({"triton": other})
    assert is_explained({"triton": replace(other, why="in words of another language", expected=True)})


def test_a_fault_is_not_explained_by_another_engine_though_the_kernels_are_that_ones(module: Any, tmp_path: Path) -> None:
    folder, laid = module
    fake.deep_gemm_kernel(tmp_path, "theirs")
    laid = scan_live_cache(tmp_path)
    fake.deep_gemm_kernel(tmp_path, "ours")
    fake.deep_gemm_kernel(tmp_path, "ours too")
    near = ("argv.--model is /b here and /a there",)
    assert is_explained(measure(tmp_path, laid, ["deep_gemm", "flashinfer"], {}, near))
    rebuild(folder, "build.ninja", "m.so", "m.cuda.o", ".ninja_log")
    assert not is_explained(measure(tmp_path, laid, ["deep_gemm", "flashinfer"], {}, near))
    assert not is_explained(measure(tmp_path, laid, ["deep_gemm"], {}))


def test_a_cache_that_the_environment_turns_off_explains_that_nothing_was_used(tmp_path: Path) -> None:
    fake.put(tmp_path / COMPILE / "0123456789/rank_0_0/backbone/a.cubin", "kernel")
    laid = scan_live_cache(tmp_path)
    fake.put(tmp_path / COMPILE / "9876543210/rank_0_0/backbone/a.cubin", "kernel")
    fake.put(tmp_path / COMPILE / "9876543210/rank_0_0/backbone/b.cubin", "kernel")
    facts = {"environment": {"VLLM_DISABLE_COMPILE_CACHE": "1"}}
    assert why(tmp_path, "vllm_compile", laid, facts).startswith("VLLM_DISABLE_COMPILE_CACHE is set to 1")
