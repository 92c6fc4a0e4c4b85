"""Claims about manifests: nothing in them is believed unchecked."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from sidecar.caches import manifest as manifests
from sidecar.errors import FormatFromTheFuture, StoreDamaged

DIGEST = "ab" * 32


def a_file(**changes: Any) -> dict[str, Any]:
    found = {
        "family": "triton",
        "path": "K/k.cubin",
        "size": 10,
        "sha256": DIGEST,
        "mtime_ns": 1_700_000_000_123_456_789,
        "mode": 0o644,
        "pack": DIGEST,
        "offset": 512,
    }
    return {**found, **changes}


def a_link(path: str, target: str) -> dict[str, Any]:
    return {"family": "triton", "path": path, "link": target, "mtime_ns": 1, "mode": 0o777}


def a_manifest(*files: dict[str, Any], **changes: Any) -> dict[str, Any]:
    found = {
        "format": 1,
        "scope": "exact",
        "key": "k",
        "name": manifests.generation_name("exact", "k", 1),
        "parent": None,
        "created_unix_s": 1.5,
        "created_by": "test",
        "packs": [{"digest": DIGEST, "bytes": 100, "unpacked": 2048}],
        "files": list(files),
    }
    return {**found, **changes}


def test_a_manifest_survives_being_written_and_read() -> None:
    value = a_manifest(a_file(), a_link("K/link", "k.cubin"))
    assert json.loads(json.dumps(manifests.from_json(value).to_json())) == value


def test_publishers_of_one_number_under_one_key_compute_one_name() -> None:
    assert manifests.generation_name("exact", "k", 7) == manifests.generation_name("exact", "k", 7)
    assert manifests.generation_name("exact", "k", 7) != manifests.generation_name("toolchain", "k", 7)
    assert manifests.sequence_of(manifests.generation_name("exact", "k", 7)) == 7
    assert manifests.sequence_of("../../etc") == 0


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "", "a\0b", "x/" * 600 + "x", "y" * 300]
)
def test_a_path_that_leaves_its_directory_is_refused(path: str) -> None:
    with pytest.raises(StoreDamaged, match="leaves its directory"):
        manifests.from_json(a_manifest(a_file(path=path)))


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "a/../../../x", "b/..", "", ".", "..//x", "../.."])
def test_a_link_that_leaves_its_family_is_refused(target: str) -> None:
    with pytest.raises(StoreDamaged):
        manifests.from_json(a_manifest(a_link("K/link", target)))


@pytest.mark.parametrize("target", ["k.cubin", "../L/k.cubin", ".."])
def test_a_link_that_stays_in_its_family_is_kept(target: str) -> None:
    assert manifests.from_json(a_manifest(a_link("K/link", target))).files[0].link == target


def test_a_file_behind_a_link_is_refused() -> None:
    with pytest.raises(StoreDamaged, match="behind a link"):
        manifests.from_json(a_manifest(a_link("K", "L"), a_file(path="K/k.cubin")))


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": 0o4755},
        {"mode": -1},
        {"size": -1},
        {"size": 1 << 50},
        {"size": True},
        {"size": "10"},
        {"sha256": "AB" * 32},
        {"sha256": None},
        {"pack": "cd" * 32},
        {"offset": 2040},
        {"family": "../x"},
        {"mtime_ns": 1.5},
    ],
)
def test_a_file_entry_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(StoreDamaged):
        manifests.from_json(a_manifest(a_file(**changes)))


def test_one_path_twice_and_a_path_as_file_and_folder_are_refused() -> None:
    with pytest.raises(StoreDamaged, match="twice"):
        manifests.from_json(a_manifest(a_file(), a_file()))
    with pytest.raises(StoreDamaged, match="as a file and as a directory"):
        manifests.from_json(a_manifest(a_file(path="K"), a_file(path="K/k")))


@pytest.mark.parametrize("missing", ["packs", "files", "scope", "key", "name", "parent", "created_unix_s"])
def test_a_manifest_with_a_part_missing_is_damaged(missing: str) -> None:
    value = a_manifest(a_file())
    del value[missing]
    with pytest.raises(StoreDamaged):
        manifests.from_json(value)


def test_a_manifest_of_a_newer_format_says_to_upgrade() -> None:
    with pytest.raises(FormatFromTheFuture, match="upgrade"):
        manifests.from_json(a_manifest(format=2))


@pytest.mark.parametrize("wrong", [{"format": None}, {"packs": 7}, {"files": [3]}, {"created_unix_s": "x"}, {"key": 5}])
def test_garbage_is_damaged_and_never_a_traceback(wrong: dict[str, Any]) -> None:
    with pytest.raises(StoreDamaged):
        manifests.from_json(a_manifest(a_file(), **wrong))


def read(document: bytes) -> manifests.Manifest:
    return manifests.read(io.BytesIO(document))


def written(*files: dict[str, Any]) -> bytes:
    return b"".join(manifests.lines(manifests.from_json(a_manifest(*files))))


@pytest.mark.parametrize("count", [0, 1, 3, 5000])
def test_a_document_written_line_by_line_is_plain_json_and_read_back(count: int) -> None:
    files = [a_file(path=f'K{number}/"k"\n\udcff.cubin') for number in range(count)]
    links = [a_link("L/link", "k.cubin")] if count else []
    value = a_manifest(*files, *links)
    document = written(*files, *links)
    assert json.loads(document) == value
    assert read(document) == manifests.from_json(value)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_document_that_is_laid_out_otherwise_is_read_too(indent: int | None) -> None:
    value = a_manifest(a_file(), a_link("K/link", "k.cubin"))
    assert read(json.dumps(value, indent=indent).encode()) == manifests.from_json(value)


def test_a_document_cut_anywhere_is_damaged() -> None:
    document = written(a_file(), a_file(path="K/other"), a_link("K/link", "k.cubin"))
    for size in range(len(document) - 1):
        with pytest.raises(StoreDamaged):
            read(document[:size])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b'"K/k.cubin"', b"'K/k.cubin'"),
        lambda text: text + b"{}",
        lambda text: text.replace(b"\n]}", b",\n]}"),
        lambda text: text.replace(b"},\n", b"}\n"),
        lambda text: text.replace(b'"K/k.cubin"', b'"../k.cubin"'),
        lambda text: text.replace(b'"files":[', b'"files":{'),
        lambda text: b"\xff" + text,
        lambda text: b"[" * 100_000,
        lambda text: b"[]",
        lambda text: b"7",
    ],
)
def test_a_document_that_is_not_what_was_written_is_damaged(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(StoreDamaged):
        read(change(written(a_file(), a_file(path="K/other"))))


@pytest.mark.parametrize(
    "change",
    [
        {"path": "K/../k"},
        {"path": "../k"},
        {"path": "K//k"},
        {"path": "K/"},
        {"path": "."},
        {"path": "/k"},
        {"path": "y" * 300},
        {"mode": 0o1000},
        {"mtime_ns": (1 << 63) + 1},
        {"sha256": "AB" * 32},
        {"sha256": "a b " * 16},
        {"pack": "cd" * 32},
        {"offset": 2040},
        {"size": 1 << 60},
    ],
)
def test_a_line_is_believed_no_more_among_many_than_alone(change: dict[str, Any]) -> None:
    document = written(a_file(path="A"), a_file(path="K/k.cubin"), a_file(path="Z"))
    line = document.splitlines()[2].rstrip(b",")
    wrong = json.dumps(a_file(**{"path": "K/k.cubin", **change}), separators=(",", ":")).encode()
    other = {key: json.loads(line)[key] for key in json.loads(line)} | change
    plain = json.dumps(other, separators=(",", ":")).encode()
    for new in (wrong, plain):
        with pytest.raises(StoreDamaged):
            read(document.replace(line, new))


@pytest.mark.parametrize("text", ["0420", "4e2", "420.0", "-1", "true", '"420"'])
def test_a_number_that_is_spelt_otherwise_is_no_mode(text: str) -> None:
    with pytest.raises(StoreDamaged):
        read(written(a_file()).replace(b'"mode":420', f'"mode":{text}'.encode()))


def test_files_that_are_sorted_otherwise_are_read_as_they_come() -> None:
    files = read(written(a_file(path="B"), a_file(path="A"))).files
    assert [file.path for file in files] == ["B", "A"]
    assert [file.path for file in files.in_order()] == ["A", "B"]
    with pytest.raises(StoreDamaged, match="twice"):
        read(written(a_file(path="B"), a_file(path="A")).replace(b'"A"', b'"B"'))


def test_an_archive_that_is_made_to_unpack_for_hours_is_damage() -> None:
    whole = {"digest": DIGEST, "bytes": 5_000_000, "unpacked": 1000 * 5_000_000}
    assert manifests.from_json(a_manifest(a_file(), packs=[whole])).packs[0].unpacked == 5_000_000_000
    assert manifests.from_json(a_manifest(a_file(), packs=[{**whole, "bytes": 1, "unpacked": 1 << 30}])).packs
    with pytest.raises(StoreDamaged, match="unpacks to 5000000001"):
        manifests.from_json(a_manifest(a_file(), packs=[{**whole, "unpacked": 5_000_000_001}]))


def test_names_are_kept_once_for_all_files_of_a_generation() -> None:
    document = written(*(a_file(path=f"K/{number}") for number in range(3)))
    files = read(document).files
    assert len({id(file.pack) for file in files}) == len({id(file.family) for file in files}) == 1


@pytest.mark.parametrize("path", ["K/\ud800", "K/" + "\u00e9" * 200, "\u00e9" * 128 + "/k"])
def test_a_name_that_no_filesystem_takes_is_damage_and_no_traceback(path: str) -> None:
    with pytest.raises(StoreDamaged, match="leaves its directory"):
        manifests.from_json(a_manifest(a_file(path=path)))


@pytest.mark.parametrize("when", [float("nan"), float("inf"), -1, 1e308, True, "1.5"])
def test_a_time_that_is_none_is_damage(when: object) -> None:
    with pytest.raises(StoreDamaged, match="is no time"):
        manifests.from_json(a_manifest(created_unix_s=when))


def test_more_files_than_any_cache_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "FILES_LIMIT", 2)
    manifests.from_json(a_manifest(a_file(), a_file(path="K/2")))
    with pytest.raises(StoreDamaged, match="more than 2 files"):
        manifests.from_json(a_manifest(a_file(), a_file(path="K/2"), a_file(path="K/3")))


class Endless(io.RawIOBase):
    """A document that begins like one, and then goes on with a single line; `taken` is how much of it was read."""

    def __init__(self, begin: bytes) -> None:
        super().__init__()
        self._begin = io.BytesIO(begin)
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._begin.readinto(buffer) or len(buffer)
        self.taken += size
        return size if self.taken < 200_000_000 else 0


@pytest.mark.parametrize(
    ("begin", "most"),
    [
        (b'{"format":', 40_000_000),
        (b'{"format":\n', 40_000_000),
        (b"\n".join([*manifests.lines(manifests.from_json(a_manifest()))][:1]) + b'\n{"family":', 1_000_000),
    ],
    ids=["one line", "whole", "file"],
)
def test_a_document_without_an_end_is_damage_before_it_has_filled_the_memory(begin: bytes, most: int) -> None:
    stream = Endless(begin)
    with pytest.raises(StoreDamaged):
        manifests.read(io.BufferedReader(stream))
    assert stream.taken < most
