"""Claims about packs that are brought near before it is known which of them are wanted: bounded, and let go of again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches import landing
from sidecar.caches import manifest as manifests
from sidecar.caches.landing import AHEAD, EARLY, EARLY_BYTES, Landing
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.messages import RestoreResult
from sidecar.caches.restore import SPARE_BYTES
from sidecar.caches.store import DirectoryStore
from sidecar.errors import StoreDamaged, StoreUnavailable
from tests.unit.test_caches_pack_cache import Node
from tests.unit.test_caches_store import a_generation

BYTES = b"an archive " * 10


class Landed:
    """A store with some archives, of whatever bytes, and a landing that brings them."""

    def __init__(self, root: Path, spool: str = "spool") -> None:
        self.store = DirectoryStore(root, "read-write", lambda _s: None)
        self.spool = root / spool
        self.landing = Landing(self.store, None, self.spool, lambda: 0.0)

    def add(self, number: int, size: int = 0) -> Pack:
        """Put an archive into the store; a manifest says that it has `size` bytes."""
        data = BYTES + str(number).encode()

        def fill(stream: Any) -> Pack:
            stream.write(data)
            return Pack(digest=f"{number:064}", bytes=size or len(data), unpacked=1)

        return self.store.add_pack(fill)

    def read(self, pack: Pack) -> bytes:
        """Read an archive as a restore does, and let it go."""
        with contextlib.closing(self.landing.open_pack(pack.digest)) as stream:
            data = stream.read(1 << 20)
        self.landing.done(pack.digest)
        return data


@contextlib.contextmanager
def ended_after(seconds: float, landing: Landing) -> Iterator[None]:
    """End what would wait for ever."""
    timer = threading.Timer(seconds, landing.close)
    timer.start()
    yield
    timer.cancel()


@pytest.fixture
def landed(tmp_path: Path) -> Iterator[Landed]:
    found = Landed(tmp_path)
    yield found
    found.landing.close()
    assert not found.spool.exists()


@pytest.mark.parametrize("here", [True, False])
def test_what_was_brought_early_and_is_not_asked_for_makes_room_again(landed: Landed, here: bool) -> None:
    before, packs = len(os.listdir("/proc/self/fd")), [landed.add(number) for number in range(EARLY + AHEAD)]
    missing = Pack(digest="a" * 64, bytes=10, unpacked=1)
    landed.landing.ahead([missing, *packs[: EARLY - 1]])
    landed.landing.expect([missing, *packs])
    if here:
        with pytest.raises(StoreDamaged):
            landed.landing.open_pack(missing.digest)
        for pack in packs[: EARLY - 1]:
            landed.landing.open_pack(pack.digest).close()
    wanted = packs[EARLY:]
    landed.landing.start(pack.digest for pack in wanted)
    # All that there is room for at a time, none of which is let go of: one would wait for ever if anything were kept.
    with ended_after(20, landed.landing):
        streams = [landed.landing.open_pack(pack.digest) for pack in wanted]
    for pack, stream in zip(wanted, streams, strict=True):
        stream.close()
        landed.landing.done(pack.digest)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_brought_early_is_not_brought_again(landed: Landed) -> None:
    packs = [landed.add(number) for number in range(AHEAD)]
    landed.landing.ahead(packs)
    landed.landing.expect(packs)
    assert [landed.landing.is_early(pack.digest) for pack in packs] == [True] * EARLY + [False] * (AHEAD - EARLY)
    landed.landing.start(pack.digest for pack in packs)
    assert all(landed.read(pack).startswith(BYTES) for pack in packs)
    assert landed.landing.sources()["volume"].packs == AHEAD


def test_what_could_not_be_begun_early_is_brought_when_it_is_asked_for(tmp_path: Path) -> None:
    landed = Landed(tmp_path, "in the way/spool")
    pack = landed.add(1)
    (tmp_path / "in the way").write_text("")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        landed.landing.ahead([pack])
    (tmp_path / "in the way").unlink()
    landed.landing.expect([pack])
    landed.landing.start([pack.digest])
    with ended_after(20, landed.landing):
        assert landed.read(pack).startswith(BYTES)
    landed.landing.close()


def test_no_more_is_brought_early_than_a_bound_whatever_a_manifest_says(landed: Landed) -> None:
    large, small = landed.add(1, EARLY_BYTES + 1), landed.add(2)
    landed.landing.ahead([large, small])
    landed.landing.expect([large, small])
    assert [landed.landing.is_early(pack.digest) for pack in (large, small)] == [False, True]


def test_of_an_archive_that_is_longer_than_its_manifest_says_only_so_much_is_brought(landed: Landed) -> None:
    pack = landed.add(1, size=20)
    landed.landing.expect([pack])
    landed.landing.start([pack.digest])
    assert landed.read(pack) == BYTES[:20]


@pytest.mark.parametrize("here", [True, False])
def test_an_archive_is_brought_whole_whatever_a_refused_manifest_said_of_its_size(landed: Landed, here: bool) -> None:
    before, pack = len(os.listdir("/proc/self/fd")), landed.add(1)
    told_wrong = replace(pack, bytes=5)
    landed.landing.ahead([told_wrong])
    landed.landing.expect([told_wrong])
    if here:
        landed.landing.open_pack(pack.digest).close()
    landed.landing.expect([pack])
    landed.landing.start([pack.digest])
    assert not landed.landing.is_early(pack.digest)
    with ended_after(20, landed.landing):
        assert landed.read(pack) == BYTES + b"1"
    landed.landing.close()
    assert len(os.listdir("/proc/self/fd")) == before


class Dawdling(DirectoryStore):
    """A store of archives that arrive when `release` is set."""

    size = 100

    def __init__(self, root: Path) -> None:
        super().__init__(root, "read-write", lambda _s: None)
        self.release, self.asked = threading.Event(), threading.Barrier(landing.AT_A_TIME + 1)

    def pack_parts(self, digest: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext(self)

    def read(self, _start: int, length: int) -> memoryview:
        self.asked.wait(20)
        self.release.wait(20)
        return memoryview(bytes(length))


def under_way(store: Dawdling, spool: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> Landing:
    """Begin to bring a pack in small parts; give its landing once as many were asked for as are at a time."""
    monkeypatch.setattr(landing, "PART", 4)
    found = Landing(store, None, spool, lambda: 0.0)
    found.ahead([pack])
    store.asked.wait(20)
    return found


def test_a_restore_that_ends_while_parts_are_under_way_ends_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More parts than are asked for at a time: the others never will be.
    store = Dawdling(tmp_path)
    pack, other = (Pack(digest=digit * 64, bytes=store.size, unpacked=1) for digit in "af")
    found = under_way(store, tmp_path / "spool", pack, monkeypatch)
    found.expect([pack, other])
    # An exception that nobody takes in a thread is an error of pytest's.
    closing = threading.Thread(target=found.close)
    closing.start()
    with pytest.raises(StoreUnavailable, match="over"):
        found.open_pack(other.digest)
    store.release.set()
    closing.join(20)
    assert not (tmp_path / "spool").exists()


class Counting(Dawdling):
    """The same, with an archive of two parts that is at hand, and a count of parts that were asked for of any."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.parts: list[int] = []

    def read(self, start: int, length: int) -> memoryview:
        self.parts.append(start)
        return super().read(start, length) if len(self.parts) <= landing.AT_A_TIME else memoryview(bytes(length))


def test_what_is_wanted_does_not_wait_for_the_rest_of_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Counting(tmp_path)
    unwanted, wanted = (Pack(digest=digit * 64, bytes=size, unpacked=1) for digit, size in (("a", 100), ("b", 8)))
    found = under_way(store, tmp_path / "spool", unwanted, monkeypatch)
    found.expect([wanted])
    found.start([wanted.digest])
    store.release.set()
    with ended_after(20, found):
        found.open_pack(wanted.digest).close()
    found.done(wanted.digest)
    found.close()
    assert len(store.parts) == landing.AT_A_TIME + 2


class HeadOnly(io.BytesIO):
    """A manifest of which only the first line has arrived."""

    def read(self, size: int | None = -1) -> bytes:
        raise AssertionError("the files were read first")


def test_packs_are_known_before_the_list_of_files_is_read() -> None:
    pack, heard = Pack(digest="a" * 64, bytes=10, unpacked=100), list[Pack]()
    whole = Manifest(**{**vars(a_generation(1)), "packs": (pack,)})
    with pytest.raises(AssertionError, match="the files were read first"):
        manifests.read(HeadOnly(b"".join(manifests.lines(whole))), heard.extend)
    assert heard == [pack]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(("room", "early"), [(1 << 40, True), (SPARE_BYTES + 1000, False)])
def test_nothing_is_brought_early_that_the_disk_may_have_no_room_for(
    node: Node, monkeypatch: pytest.MonkeyPatch, room: int, early: bool
) -> None:
    begun: list[Pack] = []
    monkeypatch.setattr(Landing, "ahead", lambda _self, packs: begun.extend(packs))
    assert node.restore(free=lambda _path: room).outcome == ("hit" if early else "failed")
    assert bool(begun) == early


def test_room_is_measured_before_archives_that_are_brought_early_take_some_of_it(node: Node) -> None:
    def free(_path: Path) -> int:
        return 0 if any(node.packs.glob("*")) else 1 << 40

    assert node.restore(free=free).outcome == "hit"


def test_a_manifest_that_is_refused_spoils_no_archive_of_the_one_before_it(node: Node) -> None:
    for path in list(node.store.glob("v1/*/*/generations/*/manifest.json")):
        head, _, _ = path.read_bytes().partition(b"\n")
        said = json.loads(head + b"]}")
        name = manifests.generation_name(said["scope"], said["key"], 2)
        said = {**said, "name": name, "packs": [{**pack, "bytes": 8} for pack in said["packs"]]}
        later = path.parents[1] / name / "manifest.json"
        later.parent.mkdir()
        later.write_bytes(json.dumps(said, separators=(",", ":")).encode()[:-2] + b"\ngarbage")
    result = node.restore()
    assert (result.outcome, result.rejected, result.damaged) == ("hit", {"manifest": 2}, ())


def spoilt(node: Node) -> RestoreResult:
    """Restore from manifests whose head is well and whose files are garbage."""
    for path in node.store.glob("v1/*/*/generations/*/manifest.json"):
        head, _, _ = path.read_bytes().partition(b"\n")
        path.write_bytes(head + b"\ngarbage")
    return node.restore()


def test_archives_of_a_manifest_that_is_refused_leave_nothing_behind(node: Node) -> None:
    before = len(os.listdir("/proc/self/fd"))
    result = spoilt(node)
    assert (result.outcome, result.rejected) == ("failed", {"manifest": 2})
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(node.live.rglob("*.packs")) == []
