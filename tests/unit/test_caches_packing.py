"""Claims about packs: which files lie together, how they are unpacked in parallel, and when they move."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches import compaction, packing, unpacking
from sidecar.caches.file_table import FileTable, StoredFile
from sidecar.caches.manifest import Manifest, Pack
from sidecar.caches.messages import PublishRequest, PublishResult, RestoreRequest, RestoreResult
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import RestoreTools, restore
from sidecar.caches.store import DirectoryStore
from tests.fakes import live_cache as fake
from tests.own_processes import children

MIB = 1 << 20


class Pod:
    """A pod with a live cache and a store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live, self.store = root / "live", root / "store"
        self.live.mkdir()
        self.store.mkdir()

    def publish(self, checkpoint: Any = lambda _step: None, **changes: Any) -> PublishResult:
        tools = PublishTools(clock=time.monotonic, now=time.time, sleep=lambda _s: None, checkpoint=checkpoint)
        values = {"store": str(self.store), "facts": fake.facts(), "attempt": "p", **changes}
        return publish(PublishRequest(live_cache=str(self.live), **values), tools)

    def restore(self, jobs: int = 1, number: int = 1) -> RestoreResult:
        tools = RestoreTools(clock=time.monotonic, sleep=lambda _s: None, jobs=jobs)
        attempt = f"{number}-1-00000000"
        values = {"store": str(self.store), "live_cache": str(self.live), "facts": fake.facts(), "attempt": attempt}
        return restore(RestoreRequest(**values), tools)

    def staged(self, result: RestoreResult) -> dict[str, Any]:
        return {entry.family: fake.tree(Path(entry.staged)) for entry in result.commit}

    def newest(self, scope: str = "toolchain") -> dict[str, Any]:
        place = sorted(self.store.glob(f"v1/{scope}/*/generations/*/manifest.json"))[-1]
        found: dict[str, Any] = json.loads(place.read_text())
        return found

    def pack(self, digest: str) -> Path:
        return self.store / "v1/packs" / f"{digest}.tar.zst"


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def holders(manifest: dict[str, Any]) -> dict[str, set[str]]:
    """Map each Triton entry to the packs that hold its files."""
    found: dict[str, set[str]] = {}
    for file in manifest["files"]:
        if file["family"] == "triton":
            found.setdefault(file["path"].split("/")[0], set()).add(file["pack"])
    return found


def test_small_files_lie_together_and_an_entry_never_in_two_packs(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACK_BYTES", 10_000)
    for number in range(30):
        fake.triton_kernel(pod.live, f"K{number:02}", os.urandom(1500))
    pod.publish()
    manifest = pod.newest()
    assert 5 <= len(manifest["packs"]) <= 8
    assert {len(packs) for packs in holders(manifest).values()} == {1}
    order = [file["pack"] for file in manifest["files"]]
    assert len(set(order)) == 1 + sum(1 for one, other in pairwise(order) if one != other)


def test_a_file_larger_than_a_pack_has_one_of_its_own(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACK_BYTES", 10_000)
    fake.deep_gemm_kernel(pod.live, "large", os.urandom(30_000))
    for name in "ABC":
        fake.triton_kernel(pod.live, name)
    pod.publish()
    sizes = sorted(pack["unpacked"] for pack in pod.newest()["packs"])
    assert len(sizes) == 2
    assert sizes[1] > 30_000


def test_the_same_files_under_another_key_take_no_room_of_their_own(pod: Pod) -> None:
    fake.fill(pod.live)
    pod.publish()
    packs = {path.name for path in pod.store.glob("v1/packs/*")}
    other = pod.publish(facts=fake.facts(packages={"vllm": {"version": "0.34.0", "record": "ef"}}))
    assert (other.outcome, other.new_files) == ("published", 24)
    assert {path.name for path in pod.store.glob("v1/packs/*")} == packs


@pytest.fixture
def large(pod: Pod) -> Pod:
    """Give a pod whose generation has packs enough, and large enough, to be unpacked in several processes."""
    for number in range(3):
        fake.deep_gemm_kernel(pod.live, f"large{number}", os.urandom(4 * MIB))
        fake.triton_kernel(pod.live, f"K{number}")
        assert pod.publish().outcome == "published"
    fake.fill(pod.live)
    assert pod.publish().outcome == "published"
    shutil.rmtree(pod.live)
    pod.live.mkdir()
    return pod


def counting_forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    forked: list[int] = []
    fork = os.fork

    def counted() -> int:
        pid = fork()
        if pid:
            forked.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", counted)
    return forked


def test_several_processes_restore_what_one_does(large: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, forked = large.restore(jobs=1), counting_forks(monkeypatch)
    expected = large.staged(alone)
    several = large.restore(jobs=3, number=2)
    assert len(forked) == 3
    assert large.staged(several) == expected
    assert (several.outcome, several.files, several.bytes) == (alone.outcome, alone.files, alone.bytes)
    assert several.families == alone.families
    assert children() == []


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_several_processes_reject_what_one_does(large: Pod, damage: str) -> None:
    newest = large.newest()
    [digest] = {file["pack"] for file in newest["files"] if file["path"] == "cache/kernel.large1/kernel.cubin"}
    pack = large.pack(digest)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    if damage == "gone":
        pack.unlink()
    else:
        pack.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    results = [large.restore(jobs, jobs) for jobs in (1, 3)]
    trees = [large.staged(large.restore(jobs, jobs)) for jobs in (1, 3)]
    assert results[0].rejected == results[1].rejected
    assert results[0].rejected
    assert trees[0] == trees[1]
    assert "cache/kernel.large1/kernel.cubin" not in trees[1]["deep_gemm"]


class Deadly(DirectoryStore):
    """A store that kills who opens one of its packs, after it has been read for a while."""

    digest = ""

    def open_pack(self, digest: str) -> Any:
        stream = super().open_pack(digest)
        if digest == self.digest:
            read, done = stream.read, []

            def reading(size: int = -1) -> bytes:
                if sum(done) > MIB:
                    os.kill(os.getpid(), signal.SIGKILL)
                found: bytes = read(min(size, MIB))
                done.append(len(found))
                return found

            stream.read = reading
        return stream


def test_files_of_an_unpacker_that_is_killed_are_left_out_and_the_others_come(
    large: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = large.newest()
    [digest] = {file["pack"] for file in newest["files"] if file["path"] == "cache/kernel.large1/kernel.cubin"}
    monkeypatch.setattr(Deadly, "digest", digest)
    monkeypatch.setattr(
        "sidecar.caches.restore.open_store",
        lambda location, mode, sleep: Deadly(Path(location), mode, sleep),
    )
    result = large.restore(jobs=2)
    lost = sum(1 for file in newest["files"] if file["pack"] == digest)
    assert result.outcome == "partial"
    assert result.rejected == {"lost": lost}
    staged = large.staged(result)
    assert "K1/k.cubin" not in staged["triton"], "it was in the same pack"
    assert {"K0/k.cubin", "K2/k.cubin"} <= set(staged["triton"])
    assert not list(Path(result.commit[0].staged).parent.rglob("kernel.large1"))
    assert children() == []


def a_generation(*packs: tuple[int, int], room: int = MIB) -> Manifest:
    """Make a manifest of packs, each given by its unpacked bytes and its files' bytes."""
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(len(packs))]
    files = [
        StoredFile("triton", f"K{number}-{part}/k", min(room, alive - part * room), "ab" * 32, 1, 0o644, digest, 0)
        for number, (digest, (_, alive)) in enumerate(zip(digests, packs, strict=True))
        for part in range(-(-alive // room))
    ]
    return Manifest(
        scope="toolchain",
        key="k",
        name="00000001-0123456789abcdef",
        parent=None,
        created_unix_s=1.0,
        created_by="test",
        packs=tuple(Pack(digest=digest, bytes=1, unpacked=one[0]) for digest, one in zip(digests, packs, strict=True)),
        files=FileTable(files),
    )


FULL = (65 * MIB, 64 * MIB)
SMALL = (MIB + 4096, MIB)


def test_a_generation_with_few_packs_and_little_dead_in_them_stays_as_it_is() -> None:
    assert compaction.crowded(a_generation(*[SMALL] * compaction.PACKS)) == []


def test_of_too_many_packs_the_small_ones_move() -> None:
    found = compaction.crowded(a_generation(*[FULL] * 20, *[SMALL] * 10))
    assert [pack.unpacked for pack in found] == [SMALL[0]] * 10


def test_packs_that_are_large_and_alive_never_move() -> None:
    assert compaction.crowded(a_generation(*[FULL] * 40)) == []


def test_a_few_small_packs_beside_many_large_ones_wait_until_there_are_more() -> None:
    assert compaction.crowded(a_generation(*[FULL] * 40, *[SMALL] * (compaction.AT_LEAST - 1))) == []


def test_packs_that_are_mostly_dead_move_however_few_they_are() -> None:
    found = compaction.crowded(a_generation((64 * MIB, 2 * MIB), (40 * MIB, 39 * MIB)))
    assert [pack.unpacked for pack in found] == [64 * MIB]


def test_one_publish_moves_no_more_than_its_share() -> None:
    found = compaction.crowded(a_generation(*[(32 * MIB, 31 * MIB)] * 60))
    assert 400 * MIB < sum(pack.unpacked for pack in found) <= compaction.WORK_BYTES + 32 * MIB


def crowd(pod: Pod, monkeypatch: pytest.MonkeyPatch, names: str = "ABCD") -> dict[str, Any]:
    """Publish a generation of one pack a name, with limits that make the next publish move them; give its tree."""
    for name in names:
        fake.triton_kernel(pod.live, name, os.urandom(3000))
        pod.publish()
    assert len(pod.newest()["packs"]) == len(names)
    monkeypatch.setattr(compaction, "PACKS", 3)
    monkeypatch.setattr(compaction, "AT_LEAST", 2)
    fake.triton_kernel(pod.live, "NEW")
    return fake.tree(pod.live)


def contents(tree: dict[str, Any]) -> dict[str, Any]:
    return {path: entry[:2] for path, entry in tree.items()}


def test_the_publish_after_many_small_ones_gathers_their_files(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    before = crowd(pod, monkeypatch)
    old = {path.name: path.read_bytes() for path in pod.store.glob("v1/packs/*")}
    result = pod.publish()
    assert (result.outcome, result.new_files) == ("published", 3)
    assert len(pod.newest()["packs"]) == 2
    assert {path.name for path in pod.store.glob("v1/packs/*")} > set(old), "older generations need theirs"
    shutil.rmtree(pod.live)
    pod.live.mkdir()
    [entry] = (restored := pod.restore()).commit
    assert contents(fake.tree(Path(entry.staged))) == {
        path.removeprefix("triton/"): found for path, found in contents(before).items()
    }
    assert restored.rejected == {}


def test_nothing_moves_while_there_is_nothing_new(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd(pod, monkeypatch)
    shutil.rmtree(pod.live / "triton/NEW")
    assert pod.publish().outcome == "nothing_new"
    assert len(pod.newest()["packs"]) == 4


def test_what_is_damaged_stays_where_it_is_and_takes_nothing_with_it(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd(pod, monkeypatch)
    [bad] = holders(pod.newest())["B"]
    data = bytearray(pod.pack(bad).read_bytes())
    data[len(data) // 2] ^= 0xFF
    pod.pack(bad).write_bytes(data)
    pod.publish()
    found = holders(pod.newest())
    assert set(found) == {"A", "B", "C", "D", "NEW"}
    assert found["B"] == {bad}
    assert found["A"] == found["C"] == found["D"] != found["NEW"]


def test_a_loser_of_a_race_moves_files_once_and_keeps_what_the_winner_added(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd(pod, monkeypatch)
    steps: list[str] = []
    theirs = ["FIRST", "SECOND"]

    def race(step: str) -> None:
        steps.append(step)
        if step == "generation directory" and theirs:
            away = pod.live.rename(pod.root / "away")
            fake.triton_kernel(pod.live, theirs.pop(0))
            with monkeypatch.context() as unlimited:
                unlimited.setattr(compaction, "PACKS", 100)
                assert pod.publish().outcome == "published"
            shutil.rmtree(pod.live)
            away.rename(pod.live)

    result = pod.publish(checkpoint=race)
    assert result.outcome == "published"
    found = holders(pod.newest())
    assert set(found) == {"A", "B", "C", "D", "NEW", "FIRST", "SECOND"}
    assert found["A"] == found["B"] == found["C"] == found["D"]
    assert steps.count("pack opened") == 2, "one pack of what is new, one of what moved"


def test_a_full_store_costs_the_moving_and_not_the_publish(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd(pod, monkeypatch)

    def full(step: str) -> None:
        full_at.append(step)
        if full_at.count("pack opened") == 2 and step == "pack opened":
            raise OSError(28, "No space left on device")

    full_at: list[str] = []
    result = pod.publish(checkpoint=full)
    assert (result.outcome, result.new_files) == ("published", 3)
    assert len(pod.newest()["packs"]) == 5
    assert not list(pod.store.glob("v1/packs/.*"))


def test_a_deep_look_into_a_moved_pack_finds_nothing_wrong(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    from sidecar.caches.inspection import verify

    crowd(pod, monkeypatch)
    pod.publish()
    assert list(verify(DirectoryStore(pod.store, "read-only", lambda _s: None), deep=True)) == []


def test_unpacking_notes_add_up_to_what_was_staged(large: Pod) -> None:
    seen: list[Any] = []
    tools = RestoreTools(clock=time.monotonic, sleep=lambda _s: None, on_progress=seen.append, jobs=3)
    values = {"store": str(large.store), "live_cache": str(large.live), "facts": fake.facts(), "attempt": "7-1-aa"}
    result = restore(RestoreRequest(**values), tools)
    assert (seen[-1].bytes_done, seen[-1].bytes_total) == (result.bytes, result.bytes)
    assert seen[-1].files_done == result.files
    assert len(seen) > unpacking.WORTH_BYTES // unpacking.NOTE_BYTES


def test_a_pack_that_is_in_the_store_and_whole_is_not_replaced_and_a_damaged_one_is(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "K")
    pod.publish()
    [pack] = pod.store.glob("v1/packs/*")
    before, data = pack.stat().st_ino, pack.read_bytes()
    other = fake.facts(packages={"vllm": {"version": "0.34.0", "record": "ef"}})
    assert pod.publish(facts=other).outcome == "published"
    assert pack.stat().st_ino == before
    pack.write_bytes(data[:-1] + b"x")
    third = fake.facts(packages={"vllm": {"version": "0.35.0", "record": "ef"}})
    assert pod.publish(facts=third).outcome == "published"
    assert pack.read_bytes() == data
    assert not list(pod.store.glob("v1/packs/.*"))
