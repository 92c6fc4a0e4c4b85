"""What a pod remembers of signed generations: numbers only grow, and a file that is away or garbage costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.supervisor import signed_seen


def test_the_highest_number_of_each_key_is_kept(tmp_path: Path) -> None:
    assert signed_seen.note(tmp_path, {"exact/a": 3, "toolchain/b": 1}) == ""
    assert signed_seen.note(tmp_path, {"exact/a": 2, "toolchain/b": 4}) == ""
    assert signed_seen.read(tmp_path) == {"exact/a": 3, "toolchain/b": 4}


def test_only_so_many_keys_are_kept_the_last_that_were_seen(tmp_path: Path) -> None:
    for number in range(signed_seen.KEPT + 1):
        signed_seen.note(tmp_path, {f"exact/{number}": 1})
    found = signed_seen.read(tmp_path)
    assert len(found) == signed_seen.KEPT
    assert "exact/0" not in found


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1, "seen": []}', '{"format": 1, "seen": {"a": "x", "b": true}}']
)
def test_garbage_is_nothing_seen(tmp_path: Path, text: str) -> None:
    (tmp_path / signed_seen.NAME).write_text(text)
    assert signed_seen.read(tmp_path) == {}


def test_a_folder_that_is_away_is_a_sentence(tmp_path: Path) -> None:
    assert "can't be written down" in signed_seen.note(tmp_path / "away", {"exact/a": 1})
    assert signed_seen.note(tmp_path / "away", {}) == ""
