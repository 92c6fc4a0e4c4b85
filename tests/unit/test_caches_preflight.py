"""What facts foretell before the engine starts: each place that can't be written, each compiler that is not there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.preflight import FIRST_CUDA, needs_cache, sentences
from sidecar.gpu import sm
from sidecar.launcher import mounts, preflight
from sidecar.launcher.preflight import is_writable, written_places
from tests.fakes.live_cache import facts

WHOLE: dict[str, Any] = {"nvcc": "13.0.88", "cxx": "g++ 13"}


def said(**changes: Any) -> str:
    """Join what is said of these facts."""
    return " ".join(sentences(facts(**{"toolchain": WHOLE, **changes})))


def test_nothing_is_said_where_all_is_well() -> None:
    places = [
        {"what": "HOME", "path": "/root", "writable": True},
        {"what": "shared memory", "path": "/dev/shm", "writable": True, "size": 100, "free": 90},
    ]
    assert said(places=places) == ""


@pytest.mark.parametrize(
    ("what", "advice"),
    [
        ("HOME", "give the engine's user a HOME"),
        ("VLLM_CONFIG_ROOT", "VLLM_NO_USAGE_STATS=1"),
        ("TMPDIR", "emptyDir at /tmp"),
        ("flashinfer_cubin", "FLASHINFER_CUBIN_DIR"),
        ("TRITON_CACHE_DIR", "that variable is left out"),
    ],
)
def test_a_place_that_cant_be_written_is_named_with_the_user_and_what_to_do(what: str, advice: str) -> None:
    found = said(places=[{"what": what, "path": "/there", "writable": False}], uid=1000800000)
    assert f"/there ({what}) can't be written by uid 1000800000" in found
    assert advice in found


def test_shared_memory_full_of_left_overs_is_told() -> None:
    place = {"what": "shared memory", "path": "/dev/shm", "writable": True, "size": 64_000_000, "free": 2_000_000}
    assert "2 of 64 MB left" in said(places=[place])


def test_shared_memory_at_its_end_is_seen_on_a_real_memory_backed_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "test", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root with CAP_SYS_ADMIN can mount a tmpfs")
    try:
        monkeypatch.setattr("sidecar.launcher.preflight.SHARED_MEMORY", str(tmp_path))
        assert said(places=written_places({}, {}, [])[-1:]) == ""
        (tmp_path / "left-by-a-crash").write_bytes(bytes(2 * 2**20))
        assert f"{tmp_path} has 0 of 2 MB left" in said(places=written_places({}, {}, [])[-1:])
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("toolchain", "missing"),
    [
        ({"nvcc": None, "cxx": None}, "no C++ compiler and no nvcc"),
        ({"nvcc": "13.0", "cxx": None}, "no C++ compiler:"),
        (WHOLE, ""),
    ],
)
def test_an_image_without_compilers_can_only_run_what_is_restored(toolchain: dict[str, Any], missing: str) -> None:
    found = needs_cache(facts(toolchain=toolchain))
    assert missing in found
    assert bool(found) is bool(missing)
    assert needs_cache(facts(toolchain={}, gpus=[])) == ""


def test_a_toolkit_too_old_for_the_gpu_is_told() -> None:
    gpus = [{"name": "NVIDIA RTX 5090", "index": 0, "sm": "sm120"}]
    assert "needs CUDA 12.8 or newer" in said(gpus=gpus, toolchain={"nvcc": "12.6.20", "cxx": "g++"})
    assert said(gpus=gpus, toolchain={"nvcc": "12.8.61", "cxx": "g++"}) == ""


def test_every_sm_version_in_the_table_of_toolkits_is_a_known_one() -> None:
    assert set(FIRST_CUDA) <= {one.name for one in sm.TABLE}


@pytest.mark.parametrize("odd", [{}, {"places": 3, "toolchain": 7, "gpus": "x"}, {"places": [None, 4], "gpus": [3]}])
def test_facts_of_unexpected_shape_say_nothing(odd: dict[str, Any]) -> None:
    assert sentences(odd) == []


def test_every_place_the_engine_writes_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "site/flashinfer_cubin/cubins").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    environment = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "DG_JIT_CACHE_DIR": f"{tmp_path}/file/below"}
    caches = {"TRITON_CACHE_DIR": f"{tmp_path}/live/triton", "CUDA_CACHE_MAXSIZE": "4", "DG_JIT_CACHE_DIR": "/live/dg"}
    found = {one["what"]: one for one in written_places(environment, caches, ["/absent", str(tmp_path / "site")])}
    assert {what: one["writable"] for what, one in found.items() if what != "shared memory"} == {
        "HOME": True, "cache": True, "VLLM_CONFIG_ROOT": True, "TMPDIR": True, "TRITON_CACHE_DIR": True,
        "DG_JIT_CACHE_DIR": False, "flashinfer_cubin": True,
    }  # fmt: skip
    assert found["DG_JIT_CACHE_DIR"]["path"] == f"{tmp_path}/file/below"


def test_a_cache_that_the_user_put_on_a_network_filesystem_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pvc").mkdir()
    (tmp_path / "mountinfo").write_text(
        f"22 1 253:0 / / rw - ext4 /dev/a rw\n23 22 0:40 / {tmp_path}/pvc rw - nfs4 server:/export rw\n"
    )
    look = mounts.network_filesystem
    monkeypatch.setattr(preflight, "network_filesystem", lambda path: look(path, str(tmp_path / "mountinfo")))
    caches = {
        name: f"{tmp_path}/pvc/live/{name}" for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR")
    }
    environment = {
        "HOME": f"{tmp_path}/pvc",
        "VLLM_CACHE_ROOT": f"{tmp_path}/pvc/vllm",
        "TRITON_CACHE_DIR": f"{tmp_path}/triton",
        "DG_JIT_CACHE_DIR": f"{caches['DG_JIT_CACHE_DIR']}/",
    }
    found = {one["what"]: one.get("network") for one in written_places(environment, caches, [])}
    # Of the live cache's own filesystem the sidecar tells, and at HOME no family lies.
    assert {what: network for what, network in found.items() if network} == {"VLLM_CACHE_ROOT": "nfs4"}
    sentence = said(places=written_places(environment, caches, []))
    assert f"{tmp_path}/pvc/vllm (VLLM_CACHE_ROOT) lies on nfs4" in sentence
    assert "Remove the variable" in sentence


def test_a_directory_of_somebody_else_cant_be_written(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    tmp_path.chmod(0o755)
    child = os.fork()
    if not child:
        os.setuid(64331)
        os._exit(int(is_writable(str(tmp_path / "new"))))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_writable(str(tmp_path / "new"))


@pytest.mark.parametrize(
    ("variable", "value", "family"),
    [
        ("VLLM_DISABLE_COMPILE_CACHE", "1", "vllm_compile"),
        ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "true", "inductor and vllm_compile"),
        ("TRITON_ALWAYS_COMPILE", "1", "triton"),
        ("CUDA_CACHE_DISABLE", "1", "nv"),
        ("CUTE_DSL_DISABLE_FILE_CACHING", "True", "cute_dsl"),
        ("QUACK_CACHE_ENABLED", "0", "quack"),
    ],
)
def test_a_cache_that_the_users_environment_turns_off_is_told(variable: str, value: str, family: str) -> None:
    found = said(environment={variable: value})
    assert found.startswith(f"{variable} is set to {value} in the engine's container, which turns that cache off")
    assert f"what {family} would hold" in found
    assert said(environment={variable: "" if variable == "QUACK_CACHE_ENABLED" else "0"}) == ""


ROOT = [{"what": "VLLM_CACHE_ROOT", "path": "/live/vllm", "writable": True}]


@pytest.mark.parametrize(
    "words",
    [
        ["-cc", '{"level": 3, "cache_dir": "/mine"}'],
        ['--compilation_config={"cache_dir": "/mine"}'],
        ["-cc.cache_dir=/mine"],
        ["--compilation-config.cache_dir", "/mine"],
        ["-cc", '{"cache_dir": "/other"}', "-cc", '{"cache_dir": "/mine"}'],
    ],
)
def test_a_compile_cache_that_an_argument_puts_elsewhere_is_told(words: list[str]) -> None:
    found = said(argv=["vllm", "serve", "m", *words], places=ROOT)
    assert (
        "--compilation-config has /mine for its cache_dir, so the engine looks there: what vllm_compile would" in found
    )


def test_a_place_of_the_compile_cache_that_a_later_option_takes_back_is_no_news() -> None:
    assert said(argv=["vllm", "serve", "m", "-cc", '{"cache_dir": "/mine"}', "-cc", '{"level": 3}']) == ""


def test_a_compile_cache_that_an_argument_puts_below_its_place_is_no_news() -> None:
    words = ["-cc.cache_dir", "/live/vllm/torch_compile_cache/mine"]
    assert said(argv=["vllm", "serve", "m", *words], places=ROOT) == ""
    assert "cache_dir" in said(argv=["vllm", "serve", "m", *words])
