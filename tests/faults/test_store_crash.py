"""Signing, cleaning up and importing die after every step, then run again: nothing half is believed, nothing is lost.

In a directory and in a bucket of a real server; publishing to a directory is in `test_caches_crash`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches import archive_file
from sidecar.caches.manifest import Manifest
from sidecar.caches.travelling import chosen
from tests.fakes import live_cache as fake
from tests.fakes.keys import pair
from tests.fakes.stored import SCOPE, Stored
from tests.faults.test_bucket_store import path_in
from tests.object_server import ObjectServer

ROOT = Path(__file__).parents[2]


class Steps:
    """The process that does things to a store and dies where it is told to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.store_steps"],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, task: str, stored: Stored, die_at: int = 0, argument: str = "") -> list[str] | None:
        """Do a task; give the steps it passed, None when it was killed at its step."""
        environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(
            json.dumps([task, str(stored.place), str(stored.live), die_at, argument, environment]) + "\n"
        )
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


@pytest.fixture(params=["directory", "bucket"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    return made(request, tmp_path)


def made(request: pytest.FixtureRequest, root: Path, name: str = "store") -> Stored:
    """Make a store in what the test is about."""
    if request.node.callspec.params["stored"] == "directory":
        return Stored(root, name)
    server: ObjectServer = request.getfixturevalue("object_server")
    return Stored(root, name, path_in(request.getfixturevalue("bucket"), server) / name)


def save(stored: Stored) -> Any:
    """Keep all that is in a store now."""
    if not isinstance(stored.place, Path):
        return stored.place.save()
    before = stored.place.with_name(f"{stored.place.name}.before")
    shutil.copytree(stored.place, before)
    return before


def put_back(stored: Stored, saved: Any = None) -> None:
    """Make a store hold what was kept, or nothing."""
    if not isinstance(stored.place, Path):
        stored.place.put_back(saved or {})
        return
    shutil.rmtree(stored.place)
    if saved is None:
        stored.place.mkdir()
    else:
        shutil.copytree(saved, stored.place)


def grace_s(stored: Stored) -> int:
    """Give the grace time of cleaning up: nobody can make a bucket's objects older, so there is none."""
    return 600 if isinstance(stored.place, Path) else 0


def pass_grace(stored: Stored) -> None:
    """Let the grace time pass."""
    if grace_s(stored):
        stored.pass_time(2000)


def read(stored: Stored, name: str) -> Manifest | None:
    return stored.store.read_manifest(SCOPE, stored.key, name)


def test_a_signed_publish_that_dies_after_any_step_shows_no_generation_that_is_believed_without_its_signature(
    stored: Stored, run: Steps
) -> None:
    keys = pair(stored.root)
    fake.deep_gemm_kernel(stored.live, "a")
    fake.put(stored.live / "vllm/modelinfos/Qwen3.json", "{}")
    whole = run("sign", stored, argument=str(keys.private))
    assert whole is not None
    live = stored.live.rename(stored.live.with_name("away"))
    for die_at in range(1, len(whole) + 1):
        put_back(stored)
        shutil.copytree(live, stored.live, dirs_exist_ok=True)
        assert run("sign", stored, die_at, str(keys.private)) is None
        for name in stored.generations():
            signature = stored.place / f"v1/{SCOPE}/{stored.key}/generations/{name}/manifest.json.sig"
            # Two objects of a bucket can't be written at once.
            assert signature.exists() or whole[die_at - 1] == "generation alone", f"died after {whole[die_at - 1]}"
        assert run("sign", stored, argument=str(keys.private)) is not None
        assert stored.restore(**keys.trusting).outcome == "partial", f"died after {whole[die_at - 1]}"
        assert stored.kernels() == {"a"}


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
    pass_grace(stored)
    before, grace = save(stored), str(grace_s(stored))
    whole = run("clean", stored, argument=grace)
    assert whole is not None
    ended = (stored.generations(), stored.packs())
    assert len(ended[0]) == 1
    assert not orphan.exists()
    for die_at in range(1, len(whole) + 1):
        put_back(stored, before)
        assert run("clean", stored, die_at, grace) is None
        step = whole[die_at - 1]
        assert stored.restore().outcome == "partial", f"died after {step}"
        assert stored.kernels() == {"a", "b", "c"}, f"died after {step}"
        assert run("clean", stored, argument=grace) is not None
        pass_grace(stored)
        assert run("clean", stored, argument=grace) is not None
        assert (stored.generations(), stored.packs()) == ended, f"died after {step}"
        assert stored.store.quarantined(SCOPE, stored.key) == set()


def test_an_import_that_dies_after_any_step_shows_only_what_is_whole_and_can_be_repeated(
    request: pytest.FixtureRequest, stored: Stored, run: Steps
) -> None:
    there, file = made(request, stored.root, "there"), stored.root / "kernels.tar"
    for kernel in "ab":
        stored.publish(kernel)
    with open(file, "wb") as target:
        archive_file.export(stored.store, chosen(stored.store, (), True), target, lambda _done, _total: None)
    whole = run("import", there, argument=str(file))
    assert whole is not None
    for die_at in range(1, len(whole) + 1):
        put_back(there)
        assert run("import", there, die_at, str(file)) is None
        for name in there.generations():
            found = there.store.read_manifest(SCOPE, there.key, name)
            assert found is not None
            assert there.store.damaged_packs(found.packs) == set(), f"died after {whole[die_at - 1]}"
        assert run("import", there, argument=str(file)) is not None
        assert there.generations() == stored.generations()
        there.restore()
        assert there.kernels() == {"a", "b"}


@pytest.mark.parametrize("stored", ["bucket"], indirect=True)
def test_a_publish_to_a_bucket_that_moves_files_between_packs_can_die_after_any_step_and_loses_nothing(
    stored: Stored, run: Steps
) -> None:
    stored.publish("a")
    stored.publish("b")
    before = save(stored)
    fake.deep_gemm_kernel(stored.live, "c")
    shutil.copytree(stored.live, stored.live.with_name("away"))
    whole = run("gather", stored)
    assert whole is not None
    assert whole.count("pack uploaded") == 2
    for die_at in range(1, len(whole) + 1):
        put_back(stored, before)
        shutil.rmtree(stored.live)
        shutil.copytree(stored.live.with_name("away"), stored.live)
        assert run("gather", stored, die_at) is None
        assert run("gather", stored) is not None
        newest = read(stored, stored.generations()[-1])
        assert newest is not None
        assert len(newest.packs) == 2, f"died after {whole[die_at - 1]}"
        stored.restore()
        assert stored.kernels() == {"a", "b", "c"}, f"died after {whole[die_at - 1]}"


def test_a_publish_that_was_overtaken_can_die_after_any_step_of_its_second_try_and_the_union_is_there_in_the_end(
    stored: Stored, run: Steps
) -> None:
    other = stored.root / "other"
    for kernel in "ab":
        fake.deep_gemm_kernel(other, kernel)
    stored.publish("a")
    before = save(stored)
    fake.deep_gemm_kernel(stored.live, "c")
    away = stored.live.rename(stored.live.with_name("away"))
    shutil.copytree(away, stored.live)
    whole = run("rebase", stored, argument=str(other))
    assert whole is not None
    assert (whole.count("generation directory"), len(stored.generations())) == (2, 3), "it had to try again"
    for die_at in range(1, len(whole) + 1):
        step = f"died after {whole[die_at - 1]}, step {die_at}"
        put_back(stored, before)
        shutil.rmtree(stored.live)
        shutil.copytree(away, stored.live)
        assert run("rebase", stored, die_at, str(other)) is None
        stored.restore()
        assert stored.kernels() >= ({"a", "b"} if die_at > whole.index("generation directory") else {"a"}), step
        shutil.rmtree(stored.live)
        shutil.copytree(away, stored.live)
        assert run("rebase", stored, argument=str(other)) is not None
        assert stored.restore().outcome == "partial", step
        assert stored.kernels() == {"a", "b", "c"}, step
