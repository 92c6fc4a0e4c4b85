"""Is an entry whole: what compilers leave half done, what a vendor's list denies, what another CUDA was needed for."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from sidecar.caches import elf, validity
from sidecar.caches.families import BY_NAME
from sidecar.caches.scan import scan_tree
from tests.fakes import live_cache as fake

CUBINS = ".cache/flashinfer/cubins/fmha"


def broken(live: Path, name: str, cuda_majors: tuple[str, ...] = ()) -> dict[str, str]:
    """Ask for what is broken in a family of a live cache."""
    family = BY_NAME[name]
    root = live / family.directory
    sizes = {path: entry.size for path, entry in scan_tree(root).items()}
    return validity.broken(family, sizes, root, root, cuda_majors)


def listed_cubins(live: Path) -> Path:
    """Lay down two cubins with their vendor's list of digests."""
    folder = live / "flashinfer" / CUBINS
    for name in ("a.cubin", "b.cubin"):
        fake.put(folder / name, name)
    lines = [f"{hashlib.sha256(name.encode()).hexdigest()}  {name}" for name in ("a.cubin", "b.cubin", "absent.cubin")]
    fake.put(folder / "checksums.txt", "\n".join([*lines, "no digest", ""]))
    return folder


def test_whole_entries_of_every_family_are_left_in_peace(tmp_path: Path) -> None:
    fake.fill(tmp_path)
    shutil.rmtree(tmp_path / "triton/tmp.pid_1_ab")
    listed_cubins(tmp_path)
    assert {name: found for name in BY_NAME if (found := broken(tmp_path, name, ("13",)))} == {}


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("__grp__k.json", "", "empty"),
        ("__grp__k.json", '{"child_paths": ', "json"),
        ("k.json", "{", "json"),
        ("__grp__k.json", '{"child_paths": {"k.cubin": "/elsewhere/k.cubin"}}', "elsewhere"),
        ("k.cubin", "", "empty"),
    ],
)
def test_a_triton_entry_with_broken_files_is_not_used(tmp_path: Path, file: str, content: str, why: str) -> None:
    fake.put(fake.triton_kernel(tmp_path, "KEY") / file, content)
    fake.triton_kernel(tmp_path, "GOOD")
    assert broken(tmp_path, "triton") == {"KEY": why}


def test_a_triton_group_without_one_of_its_children_is_not_used(tmp_path: Path) -> None:
    (fake.triton_kernel(tmp_path, "KEY") / "k.cubin").unlink()
    assert broken(tmp_path, "triton") == {"KEY": "incomplete"}


def test_a_deep_gemm_entry_without_its_cubin_is_not_used(tmp_path: Path) -> None:
    (fake.deep_gemm_kernel(tmp_path, "a") / "kernel.cubin").unlink()
    fake.deep_gemm_kernel(tmp_path, "b", cubin=b"")
    assert broken(tmp_path, "deep_gemm") == {"cache/kernel.a": "incomplete", "cache/kernel.b": "empty"}


def test_a_module_that_ninja_did_not_finish_is_not_used(tmp_path: Path) -> None:
    folder = fake.flashinfer_module(tmp_path, "m")
    fake.put(folder / ".ninja_log", "# ninja log v6\n1\t2\t3\tm.cuda.o\tab\n")
    [(name, why)] = broken(tmp_path, "flashinfer").items()
    assert (name.endswith("m"), why) == (True, "incomplete")


def _built_together(live: Path) -> Path:
    """Leave two modules of which one log for both names the first alone as finished."""
    for name in ("done", "linking"):
        folder = fake.flashinfer_module(live, name)
        (folder / ".ninja_log").unlink()
    return fake.put(folder.parent / ".ninja_log", f"# ninja log v6\n1\t2\t3\t{folder.parent}/done/done.so\tcd\n")


def test_a_module_that_is_not_finished_by_the_log_of_all_is_not_used(tmp_path: Path) -> None:
    log = _built_together(tmp_path)
    [(name, why)] = broken(tmp_path, "flashinfer").items()
    assert (name.endswith("linking"), why) == (True, "incomplete")
    log.unlink()
    assert broken(tmp_path, "flashinfer") == {}, "nothing says that it is not finished"


def test_modules_from_a_store_need_not_be_in_the_log_of_all(tmp_path: Path) -> None:
    log = _built_together(tmp_path)
    root = tmp_path / "flashinfer"
    sizes = {path: entry.size for path, entry in scan_tree(root).items()}
    assert str(log.relative_to(root)) in sizes
    assert validity.broken(BY_NAME["flashinfer"], sizes, root, tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("flashinfer_autotune", "0.7.2/90a/ab12/autotune_configs_dp0_rank0.json"),
        ("flashinfer_tuning", "moe_ep_knob_cache.json"),
        ("vllm_modelinfos", "vllm-model_executor-models-qwen3.json"),
        ("trtllm_autotuner", "tactics.json"),
        ("b12x", "ab/abcdef.json"),
        ("flashinfer", ".cache/flashinfer/0.7.2/90a/cached_ops/m_90a_cute_dsl/meta.json"),
        ("inductor", f"triton/0/{'K' * 52}/k.json"),
    ],
)
def test_a_table_that_was_cut_while_it_was_written_is_not_used(tmp_path: Path, name: str, path: str) -> None:
    place = tmp_path / BY_NAME[name].directory / path
    fake.put(place, '{"one": [1, 2]}')
    assert broken(tmp_path, name) == {}
    fake.put(place, '{"one": [1,')
    assert list(broken(tmp_path, name).values()) == ["json"]


def test_a_table_too_large_to_be_held_is_left_to_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validity, "JSON_LIMIT", 8)
    fake.put(tmp_path / "vllm/modelinfos/m.json", '{"one": [1, 2]}')
    assert broken(tmp_path, "vllm_modelinfos") == {}


def test_a_cubin_that_its_vendors_list_denies_is_dropped_alone(tmp_path: Path) -> None:
    folder = listed_cubins(tmp_path)
    fake.put(folder / "b.cubin", "b.cubiN")
    assert broken(tmp_path, "flashinfer") == {f"{CUBINS}/b.cubin": "checksum"}


def test_a_cubin_is_compared_with_its_list_whoever_asks_about_it_alone(tmp_path: Path) -> None:
    folder = listed_cubins(tmp_path)
    fake.put(folder / "sub/c.cubin", "other bytes")
    fake.put(folder / "checksums.txt", f"{hashlib.sha256(b'c').hexdigest()} *sub/c.cubin\n")
    root, path = tmp_path / "flashinfer", f"{CUBINS}/sub/c.cubin"
    assert validity.broken(BY_NAME["flashinfer"], {path: 11}, root, root) == {path: "checksum"}
    (folder / "checksums.txt").unlink()
    assert validity.broken(BY_NAME["flashinfer"], {path: 11}, root, root) == {}


def library(folder: Path, needs: str) -> Path:
    """Build a real shared object that needs a library of this name."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "f.c").write_text("int f(void) { return 1; }\n")
    (folder / "g.c").write_text("int f(void); int g(void) { return f(); }\n")
    needed, made = folder / "libneeded.so", folder / "made.so"
    for source, target, more in (("f.c", needed, (f"-Wl,-soname,{needs}",)), ("g.c", made, (str(needed),))):
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(folder / source), *more], check=True)
    return made


def test_what_a_shared_object_needs_is_read_from_its_header(tmp_path: Path) -> None:
    assert "libcudart.so.13" in elf.needed(str(library(tmp_path, "libcudart.so.13")))


@pytest.mark.parametrize("needs", ["libcudart.so.13", "libnvrtc.so.13", "libcublasLt.so.13"])
def test_a_library_of_another_cuda_is_not_used_and_one_of_the_images_is(tmp_path: Path, needs: str) -> None:
    built = library(tmp_path / "build", needs)
    fake.flashinfer_module(tmp_path, "sampler")
    place = tmp_path / "flashinfer/.cache/flashinfer/0.7.2/90a/cached_ops/sampler/sampler.so"
    fake.put(place, built.read_bytes())
    assert set(broken(tmp_path, "flashinfer", ("12",)).values()) == {"cuda"}
    assert broken(tmp_path, "flashinfer", ("12", "13")) == {}
    assert broken(tmp_path, "flashinfer") == {}


def test_a_damaged_shared_object_is_no_trouble(tmp_path: Path) -> None:
    whole = library(tmp_path, "libcudart.so.13").read_bytes()
    cut = tmp_path / "cut.so"
    for length in (0, 3, 20, 64, 100, 700, len(whole) // 2):
        cut.write_bytes(whole[:length])
        assert isinstance(elf.needed(str(cut)), tuple)
    for at in range(4, 400, 3):
        cut.write_bytes(whole[:at] + b"\xff" * 8 + whole[at + 8 :])
        assert isinstance(elf.needed(str(cut)), tuple)
    assert elf.needed(str(tmp_path / "absent.so")) == elf.needed(str(tmp_path)) == ()
