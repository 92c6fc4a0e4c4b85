"""What counts as compiled: new and rebuilt kernels in real directories, and log lines."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.caches import folder_blocks
from sidecar.caches.families import BY_NAME, stored_families
from sidecar.caches.scan import scan_tree
from sidecar.warmup.evidence import EvidenceWatcher
from sidecar.warmup.tree_watch import NOTHING, Files, TreeWatch, joined


def _put(root: Path, path: str, content: bytes = b"x") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """Give a live cache with a kernel in it."""
    _put(tmp_path, "triton/AAAA/kernel.cubin")
    return tmp_path


def _watcher(live: Path, lines: list[str] | None = None) -> EvidenceWatcher:
    return EvidenceWatcher(live, stored_families(), lambda: len(lines or []))


async def test_what_was_there_before_is_no_evidence(live):
    watcher = _watcher(live)
    assert not (await watcher.baseline()).empty
    assert not await watcher.collect()


async def test_new_kernels_are_counted_by_family_and_apart_from_other_files(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/BBBB/kernel.cubin")
    _put(live, "triton/BBBB/kernel.json")
    _put(live, "deep_gemm/cache/kernel.gemm.1/kernel.cu")
    _put(live, "deep_gemm/cache/kernel.gemm.1/kernel.cubin")
    found = await watcher.collect()
    assert found.kernels == {"triton": 1, "deep_gemm": 1}
    assert found.files == {"triton": 1, "deep_gemm": 1}
    assert set(found.names) == {"triton/BBBB/kernel.cubin", "deep_gemm/cache/kernel.gemm.1/kernel.cubin"}
    assert found.compiled == 2


async def test_evidence_is_told_once(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/BBBB/kernel.cubin")
    assert await watcher.collect()
    assert not await watcher.collect()


async def test_a_rebuilt_kernel_is_evidence(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/AAAA/kernel.cubin", b"longer than before")
    assert (await watcher.collect()).kernels == {"triton": 1}


async def test_files_that_are_no_kernels_are_no_evidence(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/AAAA/kernel.json")
    _put(live, "inductor/locks/x.lock")
    found = await watcher.collect()
    assert not found
    assert found.files == {"triton": 1}


async def test_log_lines_about_compiling_are_evidence_where_no_file_can_be_seen(live):
    lines: list[str] = []
    shutil.rmtree(live)
    watcher = _watcher(live, lines)
    lines.append("before the baseline")
    await watcher.baseline()
    lines += ["Triton kernel JIT compilation during inference: a", "the same: b"]
    found = await watcher.collect()
    assert (found.compiled, found.kernels) == (2, {})
    assert not await watcher.collect()


async def test_a_line_without_a_file_beside_files_that_can_be_seen_is_a_kernel_loaded_from_disk(live):
    lines: list[str] = []
    _put(live, "triton/K/k.cubin")
    watcher = _watcher(live, lines)
    await watcher.baseline()
    lines.append("Triton kernel JIT compilation during inference: a")
    found = await watcher.collect()
    assert (found.compiled, found.loaded) == (0, True)


async def test_a_line_and_a_file_of_one_kernel_count_once(live):
    lines: list[str] = []
    watcher = _watcher(live, lines)
    await watcher.baseline()
    lines.append("Triton kernel JIT compilation during inference: a")
    _put(live, "triton/BBBB/kernel.cubin")
    assert (await watcher.collect()).compiled == 1


@pytest.mark.parametrize("missing", [True, False])
async def test_a_live_cache_with_nothing_in_it_is_said_to_be_empty(tmp_path, missing):
    watcher = _watcher(tmp_path / "absent" if missing else tmp_path)
    assert (await watcher.baseline()).empty
    assert (await watcher.collect()).empty


async def test_a_cache_that_cannot_be_read_is_said_so_and_nothing_is_lost(live):
    watcher = _watcher(live)
    await watcher.baseline()
    _put(live, "triton/BBBB/kernel.cubin")
    # A link to itself can't be read by anybody, not even by root.
    (live / "triton").rename(live / "elsewhere")
    (live / "triton").symlink_to(live / "triton")
    assert "can't be read" in (await watcher.collect()).blind
    (live / "triton").unlink()
    (live / "elsewhere").rename(live / "triton")
    assert (await watcher.collect()).kernels == {"triton": 1}


async def test_a_cache_that_does_not_answer_is_said_so_and_what_was_compiled_meanwhile_is_found_later(
    live, monkeypatch
):
    watcher, answers = _watcher(live), threading.Event()
    await watcher.baseline()
    monkeypatch.setattr(watcher._looking, "_deadline_s", 0.05)
    look = TreeWatch.look

    def hang(self: TreeWatch, *, thorough: bool) -> object:
        seen = look(self, thorough=thorough)
        answers.wait(30)
        return seen

    monkeypatch.setattr(TreeWatch, "look", hang)
    _put(live, "triton/BBBB/kernel.cubin")
    for _ in range(2):
        found = await watcher.collect()
        assert not found
        assert f"the live cache {live} can't be looked at (no answer within 0.05 s)" in found.blind
    assert [each.name for each in threading.enumerate()].count("look for kernels") == 1
    _put(live, "triton/CCCC/kernel.cubin")
    answers.set()
    monkeypatch.undo()
    found = await watcher.collect()
    assert not found.blind
    assert set(found.names) == {"triton/BBBB/kernel.cubin", "triton/CCCC/kernel.cubin"}
    assert not await watcher.collect()


def _at(file: Path, seconds: float) -> None:
    os.utime(file, (seconds, seconds))


async def test_a_file_written_before_the_burst_began_belongs_to_the_burst_before(live):
    clock = iter((1000.0, 2000.0))
    watcher = EvidenceWatcher(live, stored_families(), wall_clock=lambda: next(clock))
    await watcher.baseline()
    watcher.mark()
    watcher.mark()
    _at(_put(live, "triton/LATE/kernel.cubin"), 1999.0)
    _at(_put(live, "triton/NEW/kernel.cubin"), 2000.5)
    # A copy that kept its time says nothing of when it came.
    _at(_put(live, "triton/OLD/kernel.cubin"), 10.0)
    found = await watcher.collect()
    assert found.late == ("triton/LATE/kernel.cubin",)
    assert found.identity == {"triton/NEW/kernel.cubin", "triton/OLD/kernel.cubin"}
    assert found.compiled == 3


async def test_kernels_that_nothing_names_have_an_identity_too(live):
    lines: list[str] = []
    shutil.rmtree(live)
    watcher = _watcher(live, lines)
    await watcher.baseline()
    lines.append("Triton kernel JIT compilation during inference: a")
    assert (await watcher.collect()).identity == {"unnamed"}
    assert (await watcher.collect()).identity == frozenset()


def _tree(live: Path) -> TreeWatch:
    watch = TreeWatch(live, stored_families())
    # Two looks: a folder is trusted once it was found unchanged.
    watch.look(thorough=True)
    watch.look(thorough=False)
    return watch


def test_only_folders_that_changed_are_listed(live, monkeypatch):
    for index in range(50):
        _put(live, f"triton/K{index}/kernel.cubin")
    watch = _tree(live)
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or scandir(path))
    _put(live, "triton/K7/kernel.json")
    before, after = watch.look(thorough=False)
    assert [Path(each) for each in listed] == [live / "triton/K7"]
    assert set(after["triton"]) - set(before["triton"]) == {"K7/kernel.json"}


def test_a_file_that_came_in_the_same_tick_as_the_last_look_is_not_lost(live):
    _put(live, "triton/K/a.cubin")
    watch = TreeWatch(live, stored_families())
    watch.look(thorough=True)
    status = (live / "triton/K").stat()
    _put(live, "triton/K/b.cubin")
    os.utime(live / "triton/K", ns=(status.st_atime_ns, status.st_mtime_ns))
    before, after = watch.look(thorough=False)
    assert set(after["triton"]) - set(before["triton"]) == {"K/b.cubin"}


def test_a_file_written_over_in_its_place_is_seen_by_a_thorough_look(live):
    watch = _tree(live)
    (live / "triton/AAAA/kernel.cubin").write_bytes(b"another kernel")
    assert watch.look(thorough=False) == ({}, {})
    before, after = watch.look(thorough=True)
    assert before["triton"] != after["triton"]


def test_a_folder_that_went_takes_its_files_along(live):
    watch = _tree(live)
    shutil.rmtree(live / "triton/AAAA")
    assert watch.look(thorough=False)[0]["triton"].keys() == {"AAAA/kernel.cubin"}
    assert watch.empty


def test_a_folder_that_became_a_link_takes_its_folders_along(live, tmp_path_factory):
    for inner in ("one", "three", "two"):
        _put(live, f"triton/AAAA/{inner}/kernel.cubin")
    watch = _tree(live)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "AAAA"
    (live / "triton/AAAA").rename(elsewhere)
    (live / "triton/AAAA").symlink_to(elsewhere)
    assert watch.look(thorough=False)[0]["triton"].keys() == {
        "AAAA/kernel.cubin",
        *(f"AAAA/{inner}/kernel.cubin" for inner in ("one", "three", "two")),
    }
    assert watch.sizes()["triton"]["files"] == len(scan_tree(live / "triton"))


_STEPS = st.tuples(
    st.sampled_from(["write", "remove", "remove folder", "move"]),
    st.sampled_from(["A", "A-B", "A/B", "A/B/C", "D", "D/E", "F", "G/H/I"]),
    st.booleans(),
)


def _tells(old: Files, new: Files, before: Files, after: Files) -> None:
    """Make sure that all that changed is told, and nothing that was not so."""
    assert {path: entry for path, entry in old.items() if new.get(path) != entry}.items() <= before.items()
    assert {path: entry for path, entry in new.items() if old.get(path) != entry}.items() <= after.items()
    assert before.items() <= old.items()
    assert after.items() <= new.items()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(_STEPS, max_size=5), min_size=1, max_size=5))
def test_looks_tell_what_whole_scans_tell(looks):
    monkey = pytest.MonkeyPatch()
    with tempfile.TemporaryDirectory() as folder, monkey.context() as patch:
        patch.setattr(folder_blocks, "BLOCK", 2)
        live = Path(folder)
        root = live / "triton"
        for at in ("A", "A/B", "D/E", "F", "J", "K", "L"):
            _put(root, f"{at}/kernel.cubin")
        watch = TreeWatch(live, [BY_NAME["triton"]])
        watch.look(thorough=True)
        first = old = dict(scan_tree(root).items())
        whole = NOTHING
        for steps in looks:
            for number, (what, at, _) in enumerate(steps):
                _step(root, what, at, number)
            before, after = watch.look(thorough=any(thorough for *_, thorough in steps))
            new = dict(scan_tree(root).items())
            whole = joined(whole, (before, after))
            for was, (told_before, told_after) in ((old, (before, after)), (first, whole)):
                _tells(was, new, told_before.get("triton", {}), told_after.get("triton", {}))
            assert watch.sizes().get("triton", {}).get("files", 0) == len(new)
            old = new


def _step(root: Path, what: str, at: str, number: int) -> None:
    folder = root / at
    if what == "write":
        # A name of its own: a file that is written over in its place is for a thorough look.
        _put(root, f"{at}/{len(list(folder.iterdir())) if folder.is_dir() else 0}-{number}.cubin")
    elif what == "remove" and (folder / "kernel.cubin").is_file():
        (folder / "kernel.cubin").unlink()
    elif what == "remove folder":
        shutil.rmtree(folder, ignore_errors=True)
    elif what == "move" and folder.is_dir() and not (root / "M").exists():
        folder.rename(root / "M")
