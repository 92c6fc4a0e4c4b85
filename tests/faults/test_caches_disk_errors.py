"""Every disk error at every kind of call, early and late, once and for ever: restore and publish come out whole or not at all."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches import validity
from sidecar.caches.families import stored_families
from tests.fakes import live_cache as fake
from tests.faults.disk import Subject

READ_ERRORS = ("EIO", "ESTALE", "EBUSY", "EACCES")
WRITE_ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "ESTALE", "EBUSY")
READ_CALLS = ("open", "read", "stat", "readdir")
WRITE_CALLS = ("create", "write", "rename", "link", "fsync", "mkdir", "unlink", "symlink", "chmod", "utime")
#: What a person can do about it, in every sentence about a failure.
ADVICE = re.compile(r"\b(give|mount|check|correct|set|upgrade|next publish)\b")
FOR_EVER, ONCE = 0, 1
NEVER = 1_000_000

Files = dict[str, tuple[bytes | str, int]]


class Place:
    """A live cache and a store, each as it was at first as often as needed."""

    def __init__(self, root: Path) -> None:
        self.root, self.live, self.store = root, root / "live", root / "store"
        for name in ("live", "store", "old"):
            (root / name).mkdir()
        fake.fill(root / "live")
        fake.inductor_kernel(root / "old", "caold")
        fake.triton_kernel(root / "old", "OLD")
        fake.put(root / "old/nv/1/2/3", b"old")

    def reset(self, name: str, kept: str) -> None:
        """Put the copy `kept` in the place of a folder; nothing, if there is no such copy."""
        shutil.rmtree(self.root / name, ignore_errors=True)
        if kept:
            shutil.copytree(self.root / kept, self.root / name, symlinks=True)
        else:
            (self.root / name).mkdir()

    def task(self, kind: str) -> dict[str, Any]:
        request = {"store": str(self.store), "live_cache": str(self.live), "facts": fake.facts(), "attempt": "1-1-ab"}
        return {"task": kind, "request": request}

    def families(self) -> dict[str, Files]:
        """Say what lies in each family of the live cache."""
        return {
            family.name: {path: entry[:2] for path, entry in fake.tree(self.live / family.directory).items()}
            for family in stored_families()
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def on_store(place: Place) -> Iterator[Subject]:
    with Subject(place.store) as subject:
        yield subject


@pytest.fixture(scope="module")
def on_live(place: Place) -> Iterator[Subject]:
    with Subject(place.live) as subject:
        yield subject


@pytest.fixture(scope="module")
def published(place: Place, on_store: Subject) -> dict[str, Files]:
    """Publish once for all; gives the families as they are restored."""
    place.reset("full", "live")
    assert on_store.do(place.task("publish"))["outcome"] == "published"
    place.reset("published", "store")
    place.reset("live", "")
    assert on_store.do(place.task("restore"))["outcome"] == "hit"
    return place.families()


def moments(subject: Subject, task: dict[str, Any], call: str, errors: tuple[str, ...], thorough: bool):
    """Choose which error a call is to fail with, when, and how often: the first, one in the middle, the last, and all.

    Every error is tried at the first call; unless thorough, two of them by turns at the others.
    """
    made = subject.do(task, f"{call}:5:{NEVER}:1")["calls"][0]
    if not made:
        return
    later = [(number, ONCE) for number in sorted({made // 2 + 1, made} - {1}) if number <= made]
    for turn, (first, count) in enumerate([(1, ONCE), (1, FOR_EVER), *later]):
        chosen = errors if thorough or turn == 0 else (errors[turn % len(errors)], errors[(turn + 2) % len(errors)])
        for error in chosen:
            yield f"{call}:{getattr(errno, error)}:{first}:{count}", f"{error} at {call} {first} x {count}"


def told(found: dict[str, Any], where: str) -> None:
    """Check that what went wrong is said in one sentence with advice."""
    sentence = found["sentence"]
    assert sentence.endswith("."), where
    assert "Traceback" not in sentence, where
    if found["outcome"] == "failed":
        assert ADVICE.search(sentence), f"{where}: {sentence}"


def whole(place: Place, found: dict[str, Any], new: dict[str, Files], old: dict[str, Files], where: str) -> None:
    """Check that no family is half: it is empty or new, entry by entry where it has entries, or old and said to be."""
    for family in stored_families():
        now = place.families()[family.name]
        if now in ({}, new[family.name]):
            continue
        told_of = {*found["failed"]} & {family.name, str(place.live / family.directory)}
        if now == old[family.name] and told_of:
            continue
        assert family.unit is not None, f"{family.name} is half after {where}"
        assert now.items() <= new[family.name].items(), f"{family.name} after {where}: {found}"
        complete = validity.entries(family, new[family.name])
        for entry, paths in validity.entries(family, now).items():
            assert sorted(paths) == sorted(complete[entry]), f"{family.name}/{entry} is half after {where}"


def tried_restores(
    place: Place,
    subject: Subject,
    new: dict[str, Files],
    calls: tuple[str, ...],
    errors: tuple[str, ...],
    thorough: bool,
):
    place.reset("store", "published")
    place.reset("live", "old")
    old = place.families()
    task, tried = place.task("restore"), 0
    for call in calls:
        place.reset("live", "old")
        for fault, where in moments(subject, task, call, errors, thorough):
            place.reset("live", "old")
            found = subject.do(task, fault)
            told(found, where)
            whole(place, found, new, old, where)
            again = subject.do(task)
            assert (again["outcome"], again["failed"]) == ("hit", {}), where
            assert place.families() == new, where
            assert not list(place.live.glob(".trash/*")), where
            tried += 1
    assert tried > 20


thoroughness = pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])


@thoroughness
def test_a_restore_from_a_store_that_fails_to_read_is_whole_or_cold_and_the_next_one_is_a_hit(
    place: Place, on_store: Subject, published: dict[str, Files], thorough: bool
) -> None:
    tried_restores(place, on_store, published, READ_CALLS, READ_ERRORS, thorough)


@thoroughness
def test_a_restore_into_a_live_cache_that_fails_to_write_is_whole_or_cold_and_the_next_one_is_a_hit(
    place: Place, on_live: Subject, published: dict[str, Files], thorough: bool
) -> None:
    tried_restores(place, on_live, published, WRITE_CALLS, WRITE_ERRORS, thorough)


@thoroughness
def test_a_restore_into_a_live_cache_that_fails_to_read_is_whole_or_cold_and_the_next_one_is_a_hit(
    place: Place, on_live: Subject, published: dict[str, Files], thorough: bool
) -> None:
    tried_restores(place, on_live, published, READ_CALLS, READ_ERRORS, thorough)


def visible(store: Path, where: str) -> None:
    """Check that every generation that can be seen is whole: its manifest parses and its packs have their sizes."""
    for manifest in store.glob("v1/*/*/generations/*/manifest.json"):
        for pack in json.loads(manifest.read_text())["packs"]:
            path = store / "v1/packs" / f"{pack['digest']}.tar.zst"
            assert path.stat().st_size == pack["bytes"], where


def newest(store: Path) -> set[str]:
    """Name what the newest generations of both scopes hold."""
    held = set()
    for scope in ("exact", "toolchain"):
        found = sorted(store.glob(f"v1/{scope}/*/generations/*/manifest.json"))
        if found:
            held |= {f"{one['family']}/{one['path']}" for one in json.loads(found[-1].read_text())["files"]}
    return held


def tried_publishes(
    place: Place,
    subject: Subject,
    kept: str,
    calls: tuple[str, ...],
    errors: tuple[str, ...],
    everything: set[str],
    thorough: bool,
):
    task, tried = place.task("publish"), 0
    for call in calls:
        place.reset("store", kept)
        for fault, where in moments(subject, task, call, errors, thorough):
            place.reset("store", kept)
            found = subject.do(task, fault)
            told(found, where)
            if subject.root == place.live:
                assert "The store" not in found["sentence"], f"{where}: {found['sentence']}"
            visible(place.store, where)
            again = subject.do(task)
            assert again["outcome"] in ("published", "nothing_new"), where
            visible(place.store, where)
            assert newest(place.store) == everything, where
            tried += 1
    assert tried > 20


@pytest.fixture
def more(place: Place, published: dict[str, Files]) -> set[str]:
    """Let the live cache hold what was published and one kernel of each scope more; names all of it."""
    place.reset("live", "full")
    fake.inductor_kernel(place.live, "camore")
    fake.deep_gemm_kernel(place.live, "more")
    held = {f"{family}/{path}" for family, files in published.items() for path in files}
    return (
        held
        | {f"inductor/ca/camore.{kind}" for kind in ("so", "cpp")}
        | {f"deep_gemm/cache/kernel.more/kernel.{kind}" for kind in ("cu", "cubin")}
    )


@thoroughness
@pytest.mark.parametrize("kept", ["", "published"])
def test_a_publish_to_a_store_that_fails_to_write_shows_nothing_half_and_the_next_one_publishes(
    place: Place, on_store: Subject, more: set[str], kept: str, thorough: bool
) -> None:
    tried_publishes(place, on_store, kept, WRITE_CALLS, WRITE_ERRORS, more, thorough)


@thoroughness
def test_a_publish_to_a_store_that_fails_to_read_shows_nothing_half_and_never_shrinks(
    place: Place, on_store: Subject, more: set[str], thorough: bool
) -> None:
    tried_publishes(place, on_store, "published", READ_CALLS, READ_ERRORS, more, thorough)


@thoroughness
def test_a_publish_from_a_live_cache_that_fails_to_read_shows_nothing_half_and_the_next_one_publishes(
    place: Place, on_live: Subject, more: set[str], thorough: bool
) -> None:
    tried_publishes(place, on_live, "published", READ_CALLS, READ_ERRORS, more, thorough)
