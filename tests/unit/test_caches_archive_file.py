"""Claims about stores carried in a file: what arrives is what left, a damaged file leaves nothing, signatures are kept."""

from __future__ import annotations

import io
import resource
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.caches import archive_file
from sidecar.caches.archive_file import INDEX, Brought, bring, export
from sidecar.caches.fingerprint import SCHEME, key_of
from sidecar.caches.store import DirectoryStore
from sidecar.caches.travelling import chosen
from sidecar.caches.trust import KeyFiles, trust
from sidecar.errors import FormatFromTheFuture, NotSo, StoreDamaged, Untrusted
from tests.fakes import live_cache as fake
from tests.fakes.keys import Pair, pair
from tests.fakes.stored import SCOPE, Stored


class Carried:
    """A store with generations, a file, and another store that it is carried to."""

    def __init__(self, root: Path) -> None:
        self.here, self.there = Stored(root), Stored(root, "there")
        self.keys: Pair = pair(root)
        self.here.publish("a", **self.keys.fields)
        self.here.publish("b", **self.keys.fields)

    def written(self, *prefixes: str, every: bool = False) -> bytes:
        target = io.BytesIO()
        export(self.here.store, chosen(self.here.store, prefixes, every), target, lambda _done, _total: None)
        return target.getvalue()

    def taken(self, data: bytes, **options: bool) -> list[Brought]:
        return bring(self.there.store, io.BytesIO(data), lambda _done, _total: None, **options)

    def arrived(self) -> set[str]:
        self.there.restore(**self.keys.trusting)
        return self.there.kernels()

    def visible(self) -> list[Path]:
        return [path for path in self.there.place.rglob("*") if path.is_file() and "packs" not in path.parts]


@pytest.fixture
def carried(tmp_path: Path) -> Carried:
    return Carried(tmp_path)


def members(data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(each, (tar.extractfile(each) or io.BytesIO()).read()) for each in tar]


def rewritten(data: bytes, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for info, content in members(data):
            if (found := change(info.name, content)) is not None:
                info.name, info.size = found[0], len(found[1])
                tar.addfile(info, io.BytesIO(found[1]))
    return target.getvalue()


def test_what_was_signed_here_is_restored_there_by_whoever_trusts_the_key(carried: Carried) -> None:
    assert [each.outcome for each in carried.taken(carried.written())] == ["imported"]
    assert carried.arrived() == {"a", "b"}
    assert [key for key, _ in carried.there.store.known_facts(SCOPE, 9)] == [carried.there.key]


def test_the_same_store_gives_the_same_file(carried: Carried) -> None:
    assert carried.written() == carried.written()


def test_importing_twice_is_importing_once(carried: Carried) -> None:
    data = carried.written(every=True)
    carried.taken(data)
    before = {path: path.read_bytes() for path in carried.there.place.rglob("*") if path.is_file()}
    assert {each.outcome for each in carried.taken(data)} == {"there"}
    assert {path: path.read_bytes() for path in carried.there.place.rglob("*") if path.is_file()} == before


def test_unpacked_into_an_empty_folder_the_file_is_a_store(carried: Carried) -> None:
    with tarfile.open(fileobj=io.BytesIO(carried.written())) as tar:
        tar.extractall(carried.there.place, filter="data")
    assert carried.arrived() == {"a", "b"}


def test_a_proven_generation_arrives_proven_unless_that_is_not_wanted(carried: Carried) -> None:
    name = carried.here.generations()[-1]
    carried.here.store.record_boot(SCOPE, carried.here.key, f"{name}.ready.x", {"outcome": "ready"})
    data = carried.written()
    carried.taken(data, boots=False)
    assert carried.there.store.boot_ends(SCOPE, carried.there.key) == {}
    carried.taken(data)
    assert carried.there.store.boot_ends(SCOPE, carried.there.key)[name, "ready"] == 1


def test_a_generation_of_the_same_name_with_other_contents_is_told_and_left_alone(carried: Carried) -> None:
    data = carried.written(every=True)
    carried.there.publish("other")
    assert [each.outcome for each in carried.taken(data)] == ["conflict", "imported"]
    carried.there.publish("more")
    assert len(carried.there.generations()) == 3


def test_a_file_that_is_cut_anywhere_leaves_nothing_that_can_be_seen(carried: Carried) -> None:
    data = carried.written()
    last = members(data)[-1][0]
    end = last.offset_data + last.size
    for part in range(1, 21):
        with pytest.raises(StoreDamaged):
            carried.taken(data[: end * part // 20 - 1])
        assert carried.visible() == [], f"cut at {part}/20"
    carried.taken(data)
    assert carried.arrived() == {"a", "b"}


@pytest.mark.parametrize("part", ["manifest.json", ".tar.zst", "facts.json", INDEX])
def test_a_file_with_a_changed_byte_leaves_nothing_that_can_be_seen(carried: Carried, part: str) -> None:
    def flip(name: str, content: bytes) -> tuple[str, bytes]:
        if name.endswith(part) and len(content) > 60:
            content = content[:50] + bytes([content[50] ^ 1]) + content[51:]
        return name, content

    carried.there.store.trust = trust(KeyFiles(trusted=str(carried.keys.public)), lambda: 4e9)
    data = rewritten(carried.written(), flip)
    if part == INDEX:
        # It only says how much there is to come.
        data = rewritten(carried.written(), lambda name, content: (name, b"{" if name == INDEX else content))
    with pytest.raises(StoreDamaged):
        carried.taken(data)
    assert carried.visible() == []


@pytest.mark.parametrize(
    "name", ["../evil", "v1/packs/../../evil", "/etc/evil", "v1/exact/x/HEAD", "v1/gc/last.json", "v1/exact"]
)
def test_a_name_that_no_export_holds_is_refused(carried: Carried, name: str) -> None:
    def rename(old: str, content: bytes) -> tuple[str, bytes]:
        return (name if old.endswith("facts.json") else old), content

    with pytest.raises(StoreDamaged, match="which no export does"):
        carried.taken(rewritten(carried.written(), rename))
    assert carried.visible() == []


def test_a_file_without_one_of_its_archives_leaves_nothing_that_can_be_seen(carried: Carried) -> None:
    data = rewritten(carried.written(), lambda name, content: None if "packs/" in name else (name, content))
    with pytest.raises(StoreDamaged, match="lacks 2 archives"):
        carried.taken(data)
    assert carried.visible() == []


def test_a_key_of_an_earlier_version_with_other_rules_travels_too(
    carried: Carried, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = carried.written()
    monkeypatch.setattr(archive_file, "SCHEME", SCHEME + 1)
    monkeypatch.setattr(archive_file, "key_of", lambda scope, facts, scheme=SCHEME + 1: key_of(scope, facts, scheme))
    assert [each.outcome for each in carried.taken(data)] == ["imported"]
    assert carried.written() == data


def test_facts_that_make_another_key_and_files_that_are_no_records_are_left_out_of_an_export(carried: Carried) -> None:
    folder, name = carried.here.place / f"v1/{SCOPE}/{carried.here.key}", carried.here.generations()[-1]
    (folder / "facts.json").write_text('{"format": 1, "facts": {"rules": "of another version"}}')
    (folder / "boots").mkdir()
    for junk in (f"{name}.ready.a copy.json", f"{name}.ready.x.json.bak"):
        (folder / "boots" / junk).write_text('{"outcome": "ready"}')
    assert [each.outcome for each in carried.taken(carried.written())] == ["imported"]
    assert carried.arrived() == {"a", "b"}


def test_no_room_for_the_manifests_on_this_machine_is_told_as_that(carried: Carried) -> None:
    data = carried.written()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(NotSo, match="TMPDIR"):
            carried.taken(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert carried.visible() == []


def test_a_link_in_the_file_is_refused(carried: Carried) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for info, content in members(carried.written()):
            if info.name.endswith("facts.json"):
                info.type, info.linkname, info.size, content = tarfile.SYMTYPE, "/etc/passwd", 0, b""
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(StoreDamaged, match="which no export does"):
        carried.taken(target.getvalue())


def test_boot_records_of_other_generations_are_not_taken(carried: Carried) -> None:
    other = "00000009-0123456789abcdef"

    def planted(name: str, content: bytes) -> tuple[str, bytes]:
        if name.endswith("facts.json"):
            return name.replace("facts.json", f"boots/{other}.ready.x.json"), b'{"outcome": "ready"}'
        return name, content

    carried.taken(rewritten(carried.written(), planted))
    assert carried.there.store.boot_ends(SCOPE, carried.there.key) == {}


def test_who_trusts_other_keys_imports_nothing(carried: Carried, tmp_path: Path) -> None:
    carried.there.store.trust = trust(KeyFiles(trusted=str(pair(tmp_path, "theirs").public)), lambda: 4e9)
    with pytest.raises(Untrusted):
        carried.taken(carried.written())
    assert carried.visible() == []


def test_a_damaged_archive_is_never_exported(carried: Carried) -> None:
    pack = next(iter(carried.here.packs()))
    path = carried.here.place / f"v1/packs/{pack}.tar.zst"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreDamaged, match="not what its name says"):
        carried.written()


def test_a_file_of_a_later_format_or_of_something_else_is_a_sentence(carried: Carried) -> None:
    later = rewritten(carried.written(), lambda name, content: (name, b'{"format": 9}' if name == INDEX else content))
    with pytest.raises(FormatFromTheFuture):
        carried.taken(later)
    endless = b'{"format": 1, "packs": [["a", 1e999]], "generations": []}'
    with pytest.raises(StoreDamaged, match="index can't be used"):
        carried.taken(rewritten(later, lambda name, content: (name, endless if name == INDEX else content)))
    for data in (b"", b"PK\x03\x04 something else", b"\0" * 20_000):
        with pytest.raises(StoreDamaged):
            carried.taken(data)


def test_what_a_restore_would_take_travels_and_keys_can_be_named(carried: Carried) -> None:
    carried.here.publish("z", facts=fake.facts(toolchain={"nvcc": "other"}))
    first, second = carried.here.generations()[-2:]
    store = carried.here.store
    assert {place[1] for place in chosen(store, (), False)} > {carried.here.key}
    assert chosen(store, (carried.here.key[:8],), False) == [(SCOPE, carried.here.key, second)]
    store.record_boot(SCOPE, carried.here.key, f"{first}.ready.x", {"outcome": "ready"})
    assert chosen(store, (carried.here.key[:8],), False) == [(SCOPE, carried.here.key, first)]
    with pytest.raises(NotSo, match="store ls"):
        chosen(store, ("ffffffffff",), False)


def test_a_store_that_fills_up_on_the_way_shows_nothing(carried: Carried, monkeypatch: pytest.MonkeyPatch) -> None:
    done = 0

    def stop(step: str) -> None:
        nonlocal done
        done += step == "pack written"
        if done == 2:
            raise OSError(28, "No space left on device")

    carried.there.store = DirectoryStore(carried.there.place, "read-write", lambda _s: None, stop)
    with pytest.raises(Exception, match="is full"):
        carried.taken(carried.written())
    assert carried.visible() == []
    assert not [*carried.there.place.glob("v1/packs/.*")]


def test_progress_ends_at_all_the_bytes(carried: Carried) -> None:
    told: list[tuple[int, int]] = []
    bring(carried.there.store, io.BytesIO(carried.written()), lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
