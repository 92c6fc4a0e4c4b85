"""Whatever is truncated, flipped, missing, added or swapped in a store: never a wrong byte, and the fleet mends it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.families import stored_families
from tests.fakes import live_cache as fake
from tests.faults.disk import Subject


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    with open(path, "ab") as stream:
        stream.write(b"more")


def swap(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "emptied": lambda path: os.truncate(path, 0),
    "cut": cut,
    "flipped": flip,
    "longer": lengthen,
    "gone": os.unlink,
    "a directory": lambda path: swap(path, os.mkdir),
    "a pipe": lambda path: swap(path, os.mkfifo),
    "a link to itself": lambda path: swap(path, lambda place: place.symlink_to(place.name)),
}
FUTURE = '{"format": 2, "scope": "exact", "packs": "elsewhere"}'


class Fleet:
    """Pods that come one after the other: restored, what is missing compiled, published."""

    def __init__(self, root: Path, subject: Subject) -> None:
        self.root, self.subject = root, subject
        self.live, self.store, self.full = root / "live", root / "store", root / "full"

    def do(self, kind: str, *faults: str, **changes: Any) -> dict[str, Any]:
        request = {"store": str(self.store), "live_cache": str(self.live), "facts": fake.facts(), "attempt": "1-1-ab"}
        return self.subject.do({"task": kind, "request": {**request, **changes}}, *faults)

    def put_back(self) -> None:
        shutil.rmtree(self.store)
        shutil.copytree(self.root / "published", self.store, symlinks=True)

    def start_pod(self, *faults: str) -> dict[str, Any]:
        """Restore into an empty live cache; nothing but bytes that were published may be there."""
        shutil.rmtree(self.live, ignore_errors=True)
        self.live.mkdir()
        result = self.do("restore", *faults)
        assert result["sentence"].endswith(".")
        assert result["failed"] == {}
        for path, entry in self.files().items():
            assert entry == self.everything[path], path
        return result

    def files(self) -> dict[str, Any]:
        return {
            f"{family.name}/{path}": entry[0]
            for family in stored_families()
            for path, entry in fake.tree(self.live / family.directory).items()
        }

    def finish_pod(self, restored: dict[str, Any]) -> dict[str, Any]:
        """Compile what the engine did not find, and publish."""
        for family in stored_families():
            for path in fake.tree(self.full / family.directory):
                source, target = self.full / family.directory / path, self.live / family.directory / path
                if not os.path.lexists(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target, follow_symlinks=False)
        return self.do("publish", settle_s=-5.0, restored=restored["generations"], suspects=restored["damaged"])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    root = tmp_path_factory.mktemp("damage")
    for name in ("live", "store"):
        (root / name).mkdir()
    fake.fill(root / "live")
    with Subject(root / "store") as subject:
        made = Fleet(root, subject)
        assert made.do("publish")["outcome"] == "published"
        fake.deep_gemm_kernel(made.live, "later")
        fake.inductor_kernel(made.live, "calater")
        assert made.do("publish")["outcome"] == "published"
        # What is missing from a generation of the last minute may only not be seen yet, and is no damage.
        for path in made.store.rglob("manifest.json"):
            os.utime(path, (path.stat().st_mtime - 3600,) * 2)
        shutil.copytree(made.store, root / "published", symlinks=True)
        shutil.rmtree(made.live)
        made.live.mkdir()
        assert made.do("restore")["outcome"] == "hit"
        made.everything = made.files()
        shutil.copytree(made.live, made.full, symlinks=True)
        yield made


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_of_the_store_costs_warmth_once_and_the_next_pods_mend_it(fleet: Fleet, damage: str) -> None:
    fleet.put_back()
    for path in sorted(one.relative_to(fleet.store) for one in fleet.store.rglob("*") if one.is_file()):
        fleet.put_back()
        DAMAGE[damage](fleet.store / path)
        restored = fleet.start_pod()
        published = fleet.finish_pod(restored)
        assert published["outcome"] in ("published", "nothing_new"), f"{path} {damage}: {published}"
        again = fleet.start_pod()
        where = f"{path} is {damage}: {restored} {published} {again}"
        assert again["outcome"] == "hit", where
        assert fleet.files().keys() == fleet.everything.keys(), where


def test_what_others_add_to_the_store_is_in_nobodys_way(fleet: Fleet) -> None:
    fleet.put_back()
    for folder in [fleet.store, *(one for one in fleet.store.rglob("*") if one.is_dir())]:
        (folder / "lost+found").mkdir()
        (folder / ".nfs0001").write_text("")
        (folder / "notes.json").write_text("{")
        (folder / "99999999-aaaaaaaaaaaaaaaa").write_text("")
        os.mkfifo(folder / "00000009-bbbbbbbbbbbbbbbb")
    assert fleet.start_pod()["outcome"] == "hit"
    fake.deep_gemm_kernel(fleet.live, "even_later")
    assert fleet.do("publish")["outcome"] == "published"


def test_a_generation_of_a_newer_version_is_not_read_and_not_built_over(fleet: Fleet) -> None:
    fleet.put_back()
    newest = sorted(fleet.store.glob("v1/toolchain/*/generations/*/manifest.json"))[-1]
    newest.write_text(FUTURE)
    restored = fleet.start_pod()
    assert restored["outcome"] in ("hit", "partial")
    fake.deep_gemm_kernel(fleet.live, "even_later")
    published = fleet.do("publish")
    assert published["outcome"] == "failed", "a publish never shrinks what is there"
    assert "upgrade" in published["sentence"]
    assert newest.read_text() == FUTURE


@pytest.mark.parametrize("error", ["EACCES", "EIO"])
def test_a_newest_manifest_that_can_not_be_read_costs_what_it_added_and_is_not_built_over(
    fleet: Fleet, error: str
) -> None:
    fleet.put_back()
    newest = sorted(fleet.store.glob("v1/toolchain/*/generations/*/manifest.json"))[-1].parent.name
    fault = f"open:{getattr(errno, error)}:1:0:{newest}"
    restored = fleet.start_pod(fault)
    assert restored["rejected"] == {"manifest": 1}
    assert restored["generations"]["toolchain"].startswith("00000001")
    fake.deep_gemm_kernel(fleet.live, "even_later")
    published = fleet.do("publish", fault)
    assert published["outcome"] == "failed"
    assert "check its volume" in published["sentence"]
