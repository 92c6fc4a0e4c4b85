"""Claims about the packs that the pods of a node share: bounded, checked, and never worth a failure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from sidecar.caches.fingerprint import fingerprint
from sidecar.caches.messages import RestoreRequest, RestoreResult
from sidecar.caches.pack_cache import PackCache
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.publish_messages import PublishRequest
from sidecar.caches.restore import RestoreTools, free_bytes, restore
from sidecar.files import temporary_name
from tests.fakes import live_cache as fake


def kept(cache: PackCache, content: bytes, digest: str = "") -> str:
    """Put a pack into the cache as a restore does; gives its digest."""
    digest = digest or hashlib.sha256(content).hexdigest()
    temporary = cache.begin(digest, len(content))
    if temporary is not None:
        descriptor = cache.create(temporary)
        os.write(descriptor, content)
        cache.keep(temporary, descriptor, digest)
        os.close(descriptor)
    return digest


def has(cache: PackCache, digest: str, size: int) -> bool:
    descriptor = cache.open(digest, size)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def test_what_was_used_least_lately_goes_when_the_bound_is_reached(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packs", 250, spare=0)
    one, two = kept(cache, b"1" * 100), kept(cache, b"2" * 100)
    for age, digest in enumerate((two, one)):
        os.utime(tmp_path / f"packs/{digest}.tar.zst", (1000 + age, 1000 + age))
    three = kept(cache, b"3" * 100)
    assert [has(cache, digest, 100) for digest in (one, two, three)] == [True, False, True]
    assert sum(path.stat().st_size for path in (tmp_path / "packs").iterdir()) <= 250


def test_what_is_of_a_time_to_come_was_not_used_since_the_clock_was_set_back(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packs", 250, spare=0)
    one, two = kept(cache, b"1" * 100), kept(cache, b"2" * 100)
    left = temporary_name(tmp_path / "packs/x.tar.zst")
    left.write_bytes(b"half")
    for path in (left, tmp_path / f"packs/{one}.tar.zst"):
        os.utime(path, (5e9, 5e9))
    three = kept(cache, b"3" * 100)
    assert [has(cache, digest, 100) for digest in (one, two, three)] == [False, True, True]
    assert not left.exists()


def test_a_pack_that_is_larger_than_the_bound_is_not_kept_and_drives_nothing_out(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packs", 250, spare=0)
    one = kept(cache, b"1" * 100)
    assert not has(cache, kept(cache, b"2" * 300), 300)
    assert has(cache, one, 100)


def test_a_broken_pack_is_not_given_out_and_goes(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packs", 1000, spare=0)
    digest = kept(cache, b"1" * 100)
    path = tmp_path / f"packs/{digest}.tar.zst"
    path.write_bytes(b"1" * 99 + b"2")
    assert not has(cache, digest, 100)
    assert not path.exists()


def test_who_asks_for_a_pack_by_another_size_removes_none(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packs", 1000, spare=0)
    digest = kept(cache, b"1" * 100)
    assert not has(cache, digest, 99)
    assert has(cache, digest, 100)


def test_a_pack_that_was_cut_short_gives_way_to_a_whole_one(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packs", 1000, spare=0)
    digest = kept(cache, b"1" * 100)
    os.truncate(tmp_path / f"packs/{digest}.tar.zst", 50)
    assert not has(cache, digest, 100)
    kept(cache, b"1" * 100)
    assert has(cache, digest, 100)


def test_what_arrived_with_other_bytes_is_not_kept(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packs", 1000, spare=0)
    kept(cache, b"other bytes", "ab" * 32)
    assert not list((tmp_path / "packs").iterdir())


def test_a_link_in_the_place_of_a_pack_is_not_followed(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packs", 1000, spare=0)
    digest = kept(cache, b"1" * 100)
    path = tmp_path / f"packs/{digest}.tar.zst"
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    assert not has(cache, digest, 100)


def test_what_a_dead_pod_left_half_written_is_swept_after_an_hour(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packs", 1000, spare=0)
    kept(cache, b"1")
    old, fresh = (temporary_name(tmp_path / "packs/x") for _ in "ab")
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    kept(cache, b"2")
    assert (old.exists(), fresh.exists()) == (False, True)


class Node:
    """A store in a directory, one live cache, and a cache of packs on the node."""

    def __init__(self, root: Path) -> None:
        self.root, self.live, self.store, self.packs = root, root / "live", root / "store", root / "packs"
        for folder in (self.live, self.store):
            folder.mkdir()
        fake.deep_gemm_kernel(self.live, "ONE")
        fake.inductor_kernel(self.live, "caone")
        tools = PublishTools(clock=lambda: 0.0, now=lambda: 4e9, sleep=lambda _s: None)
        request = PublishRequest(store=str(self.store), live_cache=str(self.live), facts=fake.facts(), attempt="1-1-ab")
        assert publish(request, tools).outcome == "published"

    def restore(self, jobs: int = 1, free: Callable[[Path], int] = free_bytes, **changes: object) -> RestoreResult:
        request = {"store": str(self.store), "live_cache": str(self.live), "facts": fake.facts(), "attempt": "1-2-cd"}
        request |= {"pack_cache": str(self.packs), "pack_cache_bytes": 1 << 30, **changes}
        tools = RestoreTools(clock=lambda: 0.0, sleep=lambda _s: None, jobs=jobs, free=free)
        return restore(RestoreRequest.from_json(request), tools)


def test_the_second_restore_on_a_node_takes_its_packs_from_there(tmp_path: Path) -> None:
    node = Node(tmp_path)
    first, second = node.restore(), node.restore()
    assert [first.outcome, second.outcome] == ["hit", "hit"]
    assert (set(first.sources), set(second.sources)) == ({"volume"}, {"node"})
    assert "from this node's cache" in second.sentence
    assert second.sources["node"].bytes == sum(path.stat().st_size for path in node.packs.iterdir())


def test_a_broken_pack_of_the_node_is_taken_from_the_store_instead(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.restore()
    for path in node.packs.iterdir():
        path.write_bytes(b"x" * path.stat().st_size)
    again = node.restore()
    assert again.outcome == "hit"
    assert set(again.sources) == {"volume"}
    assert set(node.restore().sources) == {"node"}, "it was mended"


def test_a_cache_of_packs_that_can_not_be_made_costs_a_sentence(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.packs.write_text("in the way")
    result = node.restore()
    assert result.outcome == "hit"
    assert "can't be used" in result.sentence
    assert "WARMUP_PACK_CACHE" in result.sentence


def test_a_volume_in_front_of_the_store_is_asked_for_packs_first(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "front/v1").mkdir(parents=True)
    (node.store / "v1/packs").rename(tmp_path / "front/v1/packs")
    both = f"{tmp_path / 'front'},{node.store}"
    assert node.restore(store=both, pack_cache="").outcome == "hit"
    assert node.restore(pack_cache="").outcome == "failed", "the store itself lacks them"


def test_a_pack_that_is_nowhere_is_damage_with_a_node_cache_too(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for path in (node.store / "v1/packs").iterdir():
        path.unlink()
    result = node.restore()
    assert result.rejected == {"pack": 4}
    assert len(result.damaged) == 2
    assert fingerprint(fake.facts(), str(node.live)).exact_key == result.exact_key
