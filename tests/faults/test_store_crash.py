"""Signing, cleaning up and importing die after every disk step, then run again: nothing half is believed, nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.caches import archive_file
from tests.fakes import live_cache as fake
from tests.fakes.keys import pair
from tests.fakes.stored import SCOPE, Stored

ROOT = Path(__file__).parents[2]


class Steps:
    """The process that does things to a store and dies where it is told to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.store_steps"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, task: str, place: Path, die_at: int = 0, argument: str = "") -> list[str] | None:
        """Do a task; give the steps it passed, None when it was killed at its step."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([task, str(place), die_at, argument]) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        assert said != "failed", "see standard error"
        return None if said is None else list(said["steps"])

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def run() -> Iterator[Steps]:
    steps = Steps()
    yield steps
    steps.close()


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def test_a_signed_publish_that_dies_after_any_step_shows_no_generation_without_its_signature(
    stored: Stored, run: Steps
) -> None:
    keys = pair(stored.root)
    fake.deep_gemm_kernel(stored.live, "a")
    fake.put(stored.live / "vllm/modelinfos/Qwen3.json", "{}")
    whole = run("sign", stored.place, argument=str(keys.private))
    assert whole is not None
    for die_at in range(1, len(whole) + 1):
        shutil.rmtree(stored.place)
        stored.place.mkdir()
        assert run("sign", stored.place, die_at, str(keys.private)) is None
        for manifest in stored.place.glob("v1/*/*/generations/*/manifest.json"):
            assert manifest.with_name("manifest.json.sig").exists(), f"died after {whole[die_at - 1]}"
        assert run("sign", stored.place, argument=str(keys.private)) is not None
        assert stored.store.generations(SCOPE, stored.key)
        for path in stored.place.glob("v1/*/*/generations/*"):
            assert {each.name for each in path.iterdir()} == {"manifest.json", "manifest.json.sig"}


def test_cleaning_up_that_dies_after_any_step_loses_nothing_that_is_needed_and_ends_the_same(
    stored: Stored, run: Steps
) -> None:
    # The newest generation leaves the archive of the first behind, which another run has found out of use long ago.
    stored.publish("a")
    stored.publish("b")
    stored.publish("c")
    orphan = stored.place / "v1/packs" / f"{'0' * 64}.tar.zst"
    orphan.write_bytes(b"nobody's")
    first = stored.generations()[0]
    stored.store.quarantine(SCOPE, stored.key, first, {"reason": "bad"})
    stored.store.note_out_of_use(["0" * 64], "old")
    stored.pass_time(2000)
    before = stored.place.with_name("before")
    shutil.copytree(stored.place, before)
    whole = run("clean", stored.place)
    assert whole is not None
    ended = (stored.generations(), stored.packs())
    assert len(ended[0]) == 1
    assert not orphan.exists()
    for die_at in range(1, len(whole) + 1):
        shutil.rmtree(stored.place)
        shutil.copytree(before, stored.place)
        assert run("clean", stored.place, die_at) is None
        step = whole[die_at - 1]
        assert stored.restore().outcome == "partial", f"died after {step}"
        assert stored.kernels() == {"a", "b", "c"}, f"died after {step}"
        assert run("clean", stored.place) is not None
        stored.pass_time(2000)
        assert run("clean", stored.place) is not None
        assert (stored.generations(), stored.packs()) == ended, f"died after {step}"
        assert stored.store.quarantined(SCOPE, stored.key) == set()


def test_an_import_that_dies_after_any_step_shows_only_what_is_whole_and_can_be_repeated(
    stored: Stored, run: Steps
) -> None:
    there, file = Stored(stored.root, "there"), stored.root / "kernels.tar"
    for kernel in "ab":
        stored.publish(kernel)
    with open(file, "wb") as target:
        archive_file.export(
            stored.store, archive_file.chosen(stored.store, (), True), target, lambda _done, _total: None
        )
    whole = run("import", there.place, argument=str(file))
    assert whole is not None
    for die_at in range(1, len(whole) + 1):
        shutil.rmtree(there.place)
        there.place.mkdir()
        assert run("import", there.place, die_at, str(file)) is None
        for name in there.generations():
            found = there.store.read_manifest(SCOPE, there.key, name)
            assert found is not None
            assert there.store.damaged_packs(found.packs) == set(), f"died after {whole[die_at - 1]}"
        assert run("import", there.place, argument=str(file)) is not None
        assert there.generations() == stored.generations()
        there.restore()
        assert there.kernels() == {"a", "b"}
