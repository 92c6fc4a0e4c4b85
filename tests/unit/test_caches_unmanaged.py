"""What grows and belongs to no family: found in the live cache and in configured roots, told in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.caches import families, unmanaged
from sidecar.caches.unmanaged import Unmanaged, grown, sentence, sizes
from sidecar.handshake import Grown
from tests.fakes import live_cache as fake

BIG = b"k" * 100_000


def test_a_live_cache_of_known_families_holds_nothing_unknown(tmp_path: Path) -> None:
    fake.fill(tmp_path)
    for family in families.stored_families():
        fake.put(tmp_path / family.directory / "x.json", "{}")
    for name in (".warmup.lock", ".warmup-live.json", ".staging/1/k", ".trash/k", "home/.triton/k", "lost+found/k"):
        fake.put(tmp_path / name, "x")
    assert sizes(tmp_path) == {}


def test_what_no_row_names_is_found_at_its_highest_directory(tmp_path: Path) -> None:
    fake.fill(tmp_path)
    fake.put(tmp_path / "newdsl/a/b/k", BIG)
    fake.put(tmp_path / "vllm/xla_cache/k", BIG)
    fake.put(tmp_path / "vllm/stray.bin", BIG)
    found = sizes(tmp_path)
    assert set(found) == {str(tmp_path / name) for name in ("newdsl", "vllm/xla_cache", "vllm/stray.bin")}
    assert found[str(tmp_path / "newdsl")] == Unmanaged(str(tmp_path / "newdsl"), 100_000, 1, "live")


def test_a_configured_root_is_measured_where_it_can_be_seen(tmp_path: Path) -> None:
    fake.put(tmp_path / "root/k", BIG)
    found = sizes("", [str(tmp_path / "root"), str(tmp_path / "absent")])
    assert [(one.bytes, one.where) for one in found.values()] == [(100_000, "extra")]


def test_a_configured_root_that_is_a_link_is_measured_where_it_leads(tmp_path: Path) -> None:
    fake.put(tmp_path / "volume/k/a.bin", b"x" * 7)
    (tmp_path / "root").symlink_to("volume")
    assert sizes("", [f"{tmp_path}/root"])[f"{tmp_path}/root"].bytes == 7
    (tmp_path / "live").mkdir()
    (tmp_path / "live/stranger").symlink_to("../volume")
    assert sizes(tmp_path / "live")[f"{tmp_path}/live/stranger"].files == 1, "a link in the live cache is not followed"


def test_only_growth_counts_and_the_largest_comes_first(tmp_path: Path) -> None:
    fake.put(tmp_path / "old/k", BIG)
    before = sizes(tmp_path)
    fake.put(tmp_path / "old/k2", BIG)
    fake.put(tmp_path / "new/k", BIG * 3)
    assert [(Path(one.path).name, one.bytes, one.files) for one in grown(before, sizes(tmp_path))] == [
        ("new", 300_000, 1), ("old", 100_000, 1)
    ]  # fmt: skip


def test_what_did_not_grow_is_not_told(tmp_path: Path) -> None:
    fake.put(tmp_path / "old/k", BIG)
    assert grown(sizes(tmp_path), sizes(tmp_path)) == []


@pytest.mark.parametrize(("size", "files", "worth"), [(70_000, 1, True), (500, 50, True), (500, 2, False)])
def test_small_change_is_passed_over(size: int, files: int, worth: bool) -> None:
    assert bool(grown({}, {}, [Grown("/root/.x", size, files, "home")])) is worth


def test_the_launchers_word_counts_for_a_root_that_both_see() -> None:
    now = {"/r": Unmanaged("/r", 900_000, 9, "extra")}
    assert grown({}, now, [Grown("/r", 100_000, 1, "extra")]) == [Unmanaged("/r", 100_000, 1, "extra")]


def test_at_most_ten_directories_are_told() -> None:
    told = [Grown(f"/root/.x{number}", 100_000 + number, 1, "home") for number in range(30)]
    assert [one.path for one in grown({}, {}, told)][:2] == ["/root/.x29", "/root/.x28"]
    assert len(grown({}, {}, told)) == 10


def test_the_sentence_says_where_how_much_and_what_it_costs() -> None:
    said = sentence(Unmanaged("/root/.newcompiler", 120_000_000, 50, "home"))
    assert said.startswith("/root/.newcompiler grew by 120.0 MB (50 new files)")
    assert "compiled anew at each start" in said
    assert "Remove the variable" in sentence(Unmanaged("/mine", 120_000_000, 50, "moved"))


def test_every_place_that_is_no_cache_is_declared_with_its_reason() -> None:
    places = unmanaged.not_caches()
    assert "~/.cache/huggingface" in places
    assert "$TMPDIR/torchinductor_*/precompiled_headers" in places
    assert all(place.startswith(("~/", "$TMPDIR/")) for place in places)


def test_a_directory_full_of_files_does_not_hide_what_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unmanaged, "ENTRIES", 40)
    monkeypatch.setattr(unmanaged, "SHARE", 10)
    for number in range(60):
        fake.put(tmp_path / f"big/{number}", BIG)
    fake.put(tmp_path / "newdsl/k", BIG)
    found = sizes(tmp_path)
    assert found[str(tmp_path / "newdsl")] == Unmanaged(str(tmp_path / "newdsl"), 100_000, 1, "live")
    big = found[str(tmp_path / "big")]
    assert (big.files, big.whole) == (20, False)
    assert "grew by at least 2.0 MB (at least 20 new files)" in sentence(big)
    assert "at least" not in sentence(found[str(tmp_path / "newdsl")])
    assert [Path(one.path).name for one in grown(found, sizes(tmp_path))] == []


def test_what_the_launcher_did_not_see_whole_grew_by_so_much_at_least() -> None:
    class Seen:
        path, bytes, files, where, whole = "/root/.x", 900_000, 9, "home", False

    assert "at least" in sentence(grown({}, {}, [Seen()])[0])
