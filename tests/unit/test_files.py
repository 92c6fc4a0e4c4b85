"""Claims about the small durable files. What they are used for is tested with their users."""

from __future__ import annotations

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
