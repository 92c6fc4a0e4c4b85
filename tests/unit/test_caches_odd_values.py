"""Times that no field holds and numbers that no status can show: passed over or refused, never a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.caches.listing import listing_of
from sidecar.caches.messages import RestoreResult
from sidecar.caches.scan import scan_tree
from tests.fakes import live_cache as fake

YEAR_2381_NS = 13_000_000_000 * 10**9


def aged(path: Path) -> Path:
    os.utime(path, ns=(YEAR_2381_NS, YEAR_2381_NS))
    if path.stat().st_mtime_ns != YEAR_2381_NS:
        pytest.skip("this filesystem keeps no times after 2262")
    return path


def test_a_file_from_after_2262_can_be_looked_at(tmp_path: Path) -> None:
    aged(fake.put(tmp_path / "k.cubin", b"x"))
    assert scan_tree(tmp_path)["k.cubin"].mtime_ns == (1 << 63) - 1


def test_a_file_from_after_2262_is_not_published_because_no_manifest_could_hold_its_time(tmp_path: Path) -> None:
    fake.put(tmp_path / "a.cubin", b"x")
    aged(fake.put(tmp_path / "k.cubin", b"x"))
    found = listing_of(str(tmp_path))
    assert (list(found.paths), found.before_1970) == (["a.cubin"], 1)


@pytest.mark.parametrize("seconds", [10**400, float("inf"), float("nan")])
def test_a_number_that_no_status_can_show_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds can't be"):
        RestoreResult.from_json({"outcome": "hit", "sentence": "", "seconds": seconds})
