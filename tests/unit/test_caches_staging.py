"""Claims about where restored files are put before they are committed: modes, on filesystems that pass them on and on others."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sidecar.caches import staging
from sidecar.caches.file_table import StoredFile
from sidecar.caches.staging import StagingArea
from sidecar.files import DIRECTORY_MODE

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("passed_on", [True, False])
def test_a_folder_has_its_mode_whether_or_not_its_parents_bit_is_passed_on(
    passed_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not passed_on:
        monkeypatch.setattr(staging, "make_directory", lambda path: path.mkdir(parents=True))
    area = StagingArea(tmp_path / "staged")
    area.open()
    assert area.write_whole(StoredFile("triton", "A/B/k.json", 0, EMPTY, 1, 0o644, "p", 0), memoryview(b""))
    area.close()
    folders = [tmp_path / "staged" / name for name in ("triton", "triton/A", "triton/A/B")]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {DIRECTORY_MODE}
    assert [path.name for path in (tmp_path / "staged").iterdir()] == ["triton"]
