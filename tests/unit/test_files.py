"""Claims about the small durable files. What they are used for is tested with their users."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sidecar import files
from sidecar.errors import FileUnreadable


def test_a_durable_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("something much longer than what follows")
    with open(path) as reader:
        files.write_durably(path, b"short")
        assert reader.read() == "something much longer than what follows", "a reader never sees a mixture"
    assert path.read_bytes() == b"short"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_file_that_exists_is_not_created_again(tmp_path: Path) -> None:
    path = tmp_path / "decision.json"
    files.create_json_exclusively(path, {"by": "launcher"})
    with pytest.raises(FileExistsError):
        files.create_json_exclusively(path, {"by": "sidecar"})
    assert files.read_json(path) == {"by": "launcher"}
    assert os.listdir(tmp_path) == ["decision.json"]


def test_exclusive_creation_works_where_links_are_not_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_args: object, **_rest: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "decision.json"
    files.create_exclusively(path, b"first")
    with pytest.raises(FileExistsError):
        files.create_exclusively(path, b"second")
    assert path.read_bytes() == b"first"


def test_a_link_that_nfs_reports_as_lost_although_it_was_ours_counts_as_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_deny(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", link_and_deny)
    files.create_exclusively(tmp_path / "a", b"ours")
    assert (tmp_path / "a").read_bytes() == b"ours"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "list where a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": "' + b"x" * 5000 + b'"}', "larger than the 4096 bytes"),
    ],
)
def test_garbage_is_refused_with_a_sentence_that_names_the_file(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    with pytest.raises(FileUnreadable, match=says) as caught:
        files.read_json(path, limit=200_000 if content.startswith(b"[[") else 4096)
    assert str(path) in str(caught.value)


def test_a_pipe_under_the_name_of_a_file_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "facts.json")
    with pytest.raises(FileUnreadable, match="not a plain file"):
        files.read_json(tmp_path / "facts.json")


def test_temporary_names_are_known_as_such_and_never_repeat(tmp_path: Path) -> None:
    names = {files.temporary_name(tmp_path / "x").name for _ in range(100)}
    assert len(names) == 100
    assert all(files.is_temporary(name) for name in names)
    assert not files.is_temporary("HEAD")


def test_a_folder_is_made_whole_or_not_at_all_and_once(tmp_path: Path) -> None:
    files.create_folder_exclusively(tmp_path / "one", "manifest.json", b"first", tmp_path)
    with pytest.raises(FileExistsError):
        files.create_folder_exclusively(tmp_path / "one", "manifest.json", b"second", tmp_path)
    assert (tmp_path / "one/manifest.json").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["one"]


def test_an_empty_folder_in_its_place_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    files.create_folder_exclusively(tmp_path / "one", "manifest.json", b"first", tmp_path)
    assert (tmp_path / "one/manifest.json").read_bytes() == b"first"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EXDEV, errno.EPERM])
def test_where_folders_can_not_be_renamed_the_file_is_created_once_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_folders(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rename", no_folders)
    files.create_folder_exclusively(tmp_path / "one", "manifest.json", b"first", tmp_path)
    with pytest.raises(FileExistsError):
        files.create_folder_exclusively(tmp_path / "one", "manifest.json", b"second", tmp_path)
    assert (tmp_path / "one/manifest.json").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["one"]


def test_a_rename_that_a_server_did_and_denied_counts_as_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def rename_and_deny(source: Path, target: Path) -> None:
        rename(source, target)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "rename", rename_and_deny)
    files.create_folder_exclusively(tmp_path / "one", "a", b"ours", tmp_path)
    assert (tmp_path / "one/a").read_bytes() == b"ours"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_what_is_written_is_the_groups_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        files.write_durably(tmp_path / "a", b"")
        files.create_exclusively(tmp_path / "b", b"")
        files.create_folder_exclusively(tmp_path / "c", "d", b"", tmp_path)
        files.write_durably(tmp_path / "private", b"", mode=0o600)
    finally:
        os.umask(before)
    shared = [tmp_path / name for name in ("a", "b", "c/d")]
    assert {path.stat().st_mode & 0o070 for path in shared} == {0o060}
    assert (tmp_path / "c").stat().st_mode & 0o7777 == 0o2775
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600
