"""Die after every disk step, then run again: never half a family, never half a generation."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.families import stored_families
from tests.fakes import live_cache as fake

ROOT = Path(__file__).parents[2]


def run(task: str, live: Path, store: Path, die_at: int = 0, cwd: Path = ROOT) -> dict[str, Any] | None:
    """Run a task in a child; None when it was killed at its step."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.cache_steps", task, str(live), str(store), str(die_at)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def small(live: Path) -> None:
    """Fill a live cache with little, so that there are few steps: one family of each scope, two files each."""
    fake.inductor_kernel(live, "canew")
    fake.deep_gemm_kernel(live, "new")


def by_family(live: Path) -> dict[str, Any]:
    return {family.name: fake.tree(live / family.directory) for family in stored_families()}


def contents(found: dict[str, Any]) -> dict[str, Any]:
    """Leave modes out: a restored file is shared with the group."""
    return {name: {path: entry[:2] for path, entry in files.items()} for name, files in found.items()}


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    live, store = tmp_path / "live", tmp_path / "store"
    live.mkdir()
    store.mkdir()
    return live, store


def test_a_restore_that_dies_after_any_step_leaves_each_family_old_empty_or_new(places: tuple[Path, Path]) -> None:
    live, store = places
    small(live)
    new = contents(by_family(live))
    assert run("publish", live, store) is not None
    shutil.rmtree(live)
    fake.inductor_kernel(live, "caold")
    fake.triton_kernel(live, "OLD")
    shutil.copytree(live, live.with_name("before"), symlinks=True)
    old = contents(by_family(live))
    whole = run("restore", live, store)
    assert whole is not None
    assert contents(by_family(live)) == new
    for die_at in range(1, len(whole["steps"]) + 1):
        shutil.rmtree(live)
        shutil.copytree(live.with_name("before"), live, symlinks=True)
        assert run("restore", live, store, die_at) is None
        for name, found in contents(by_family(live)).items():
            assert found in (old[name], {}, new[name]), f"{name} after {whole['steps'][die_at - 1]}"
        again = run("restore", live, store)
        assert again is not None
        assert (again["outcome"], again["failed"]) == ("hit", {})
        assert contents(by_family(live)) == new
        assert not [path for name in (".staging", ".trash") for path in (live / name).glob("*/*")]


def test_a_publish_that_dies_after_any_step_shows_nothing_half_and_can_be_repeated(places: tuple[Path, Path]) -> None:
    live, store = places
    small(live)
    whole = run("publish", live, store)
    assert whole is not None
    for die_at in range(1, len(whole["steps"]) + 1):
        shutil.rmtree(store)
        store.mkdir()
        assert run("publish", live, store, die_at) is None
        for place in store.glob("v1/*/*/generations/*/manifest.json"):
            for pack in json.loads(place.read_text())["packs"]:
                assert (store / "v1/packs" / f"{pack['digest']}.tar.zst").stat().st_size == pack["bytes"]
        again = run("publish", live, store)
        assert again is not None
        assert again["outcome"] in ("published", "nothing_new")
        generations = list(store.glob("v1/*/*/generations/*"))
        assert len(generations) == 2, f"one of each scope, died after {whole['steps'][die_at - 1]}"
        shutil.copytree(live, live.with_name("copy"), symlinks=True)
        shutil.rmtree(live)
        live.mkdir()
        assert run("restore", live, store) is not None
        assert contents(by_family(live)) == contents(by_family(live.with_name("copy")))
        shutil.rmtree(live.with_name("copy"))


def test_moving_files_between_packs_can_die_after_any_step_and_loses_nothing(places: tuple[Path, Path]) -> None:
    live, store = places
    for name in ("one", "two"):
        fake.deep_gemm_kernel(live, name)
        assert run("publish", live, store) is not None
    fake.deep_gemm_kernel(live, "three")
    shutil.copytree(store, store.with_name("before"))
    files = contents(by_family(live))
    whole = run("gather", live, store)
    assert whole is not None
    assert whole["steps"].count("pack renamed") == 2
    for die_at in range(1, len(whole["steps"]) + 1):
        shutil.rmtree(store)
        shutil.copytree(store.with_name("before"), store)
        assert run("gather", live, store, die_at) is None
        again = run("gather", live, store)
        assert again is not None
        assert again["outcome"] in ("published", "nothing_new"), f"died after {whole['steps'][die_at - 1]}"
        newest = sorted(store.glob("v1/toolchain/*/generations/*/manifest.json"))
        assert len(newest) == 3
        assert len(json.loads(newest[-1].read_text())["packs"]) == 2
        away = live.rename(live.with_name("away"))
        live.mkdir()
        assert run("restore", live, store) is not None
        assert contents(by_family(live)) == files
        shutil.rmtree(live)
        away.rename(live)


def test_four_publishers_at_once_make_the_union_of_what_they_had(tmp_path: Path) -> None:
    names = ["ONE", "TWO", "THREE", "FOUR"]
    store = tmp_path / "store"
    store.mkdir()
    for name in names:
        fake.deep_gemm_kernel(tmp_path / name / "live", name)
    # A relative path is the same for all, as the absolute one is in a fleet of pods.
    with ThreadPoolExecutor(len(names)) as pool:
        results = list(pool.map(lambda name: run("publish", Path("live"), store, cwd=tmp_path / name), names))
    assert [result and result["outcome"] for result in results] == ["published"] * 4
    generations = sorted(store.glob("v1/toolchain/*/generations/*/manifest.json"))
    assert [int(place.parent.name.split("-")[0]) for place in generations] == [1, 2, 3, 4]
    kernels = {one["path"].split("/")[1] for one in json.loads(generations[-1].read_text())["files"]}
    assert kernels == {f"kernel.{name}" for name in names}
