"""Claims about restore: what is laid down, what is left out, and what the sentence says."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches import keeping
from sidecar.caches.commit import commit
from sidecar.caches.fingerprint import KeyScope, fingerprint
from sidecar.caches.live_cache import read_marker, write_marker
from sidecar.caches.messages import PublishRequest, RestoreRequest, RestoreResult
from sidecar.caches.ownership import marker_for
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import RestoreTools, restore
from sidecar.caches.store import DirectoryStore
from sidecar.errors import StoreUnavailable
from tests.fakes import live_cache as fake

PUBLISHING = PublishTools(clock=time.monotonic, now=time.time, sleep=lambda _s: None)
RESTORING = RestoreTools(clock=time.monotonic, sleep=lambda _s: None)


class Place:
    """A live cache and a store, with what a pod did to them."""

    def __init__(self, root: Path) -> None:
        self.live, self.store = root / "live", root / "store"
        self.live.mkdir()
        self.store.mkdir()

    def publish(self, **changes: Any) -> Any:
        facts = changes.pop("facts", fake.facts())
        request = PublishRequest(store=str(self.store), live_cache=str(self.live), facts=facts, attempt="p", **changes)
        return publish(request, PUBLISHING)

    def request(self, **changes: Any) -> RestoreRequest:
        values = {"store": str(self.store), "facts": fake.facts(), "attempt": "1-1-00000000", **changes}
        return RestoreRequest(live_cache=str(self.live), **values)

    def restore(self, tools: RestoreTools = RESTORING, **changes: Any) -> RestoreResult:
        return restore(self.request(**changes), tools)

    def wipe(self) -> None:
        shutil.rmtree(self.live)
        self.live.mkdir()

    def commit(self, result: RestoreResult) -> None:
        assert commit(self.live, result.commit, result.clear).failed == {}

    def manifests(self, scope: str) -> list[Path]:
        return sorted(self.store.glob(f"v1/{scope}/*/generations/*/manifest.json"))

    def edit(self, scope: str, path: str, **changes: Any) -> None:
        """Change what the newest manifest says of one file."""
        place = self.manifests(scope)[-1]
        value = json.loads(place.read_text())
        [file] = [one for one in value["files"] if one["path"] == path]
        file.update(changes)
        place.write_text(json.dumps(value))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    fake.fill(found.live)
    assert found.publish().outcome == "published"
    return found


def test_what_comes_back_has_the_same_bytes_times_links_and_dot_files(place: Place) -> None:
    before = fake.tree(place.live)
    place.wipe()
    result = place.restore()
    place.commit(result)
    after = fake.tree(place.live)
    assert result.outcome == "hit"
    assert result.files == len(after) == 24
    for name, (content, mtime_ns, mode) in after.items():
        assert (content, mtime_ns) == before[name][:2]
        assert mode == before[name][2] | ((before[name][2] & 0o700) >> 3), "the group may do what the owner may"


def test_locks_unfinished_files_and_facts_of_one_machine_do_not_come_back(place: Place) -> None:
    place.wipe()
    place.commit(place.restore())
    names = " ".join(fake.tree(place.live))
    for word in ("lock", "tmp", "p2p", ".log"):
        assert word not in names.replace(".ninja_log", "")


def test_restored_directories_are_shared_with_the_group(place: Place) -> None:
    place.wipe()
    place.commit(place.restore())
    assert (place.live / "triton/TRIa1").stat().st_mode & 0o7777 == 0o2775
    assert (place.live / "vllm").stat().st_mode & 0o7777 == 0o2775


def test_another_model_on_the_same_image_starts_partly_warm_and_is_told_what_differs(place: Place) -> None:
    place.wipe()
    other = fake.facts(argv=["vllm", "serve", "/models/other", "--max-model-len", "2048"])
    result = place.restore(facts=other)
    assert result.outcome == "partial"
    assert {one.family for one in result.commit} == {"deep_gemm", "flashinfer", "triton", "vllm_modelinfos"}
    assert result.differs == ("argv.command is vllm serve /models/other here and vllm serve /models/q there",)
    assert "differs in argv.command" in result.sentence


def test_another_image_is_a_miss_that_names_the_package(place: Place) -> None:
    place.wipe()
    result = place.restore(facts=fake.facts(packages={"vllm": {"version": "0.34.0", "record": "ef"}}))
    assert (result.outcome, result.commit) == ("miss", ())
    assert "packages.vllm is 0.34.0 ef here and 0.33.0 abababab" in result.sentence


def test_an_empty_store_is_a_miss(tmp_path: Path) -> None:
    result = Place(tmp_path).restore()
    assert result.outcome == "miss"
    assert "starts cold" in result.sentence


def test_a_stale_family_of_another_key_is_cleared_whether_or_not_something_replaces_it(place: Place) -> None:
    result = place.restore(facts=fake.facts(home="/other"))
    place.commit(result)
    assert not (place.live / "inductor").exists()
    assert (place.live / "triton/TRIa1").exists()


def test_a_damaged_file_costs_a_self_keyed_family_one_kernel_entry(place: Place) -> None:
    place.edit("toolchain", "TRIa1/k.cubin", sha256="00" * 32)
    place.wipe()
    result = place.restore()
    place.commit(result)
    assert result.outcome == "partial"
    assert result.rejected == {"digest": 1, "same_entry": 2}
    assert not (place.live / "triton/TRIa1").exists()
    assert (place.live / "triton/TRIa2/k.cubin").exists()
    assert (place.live / "inductor/ca/ca1kernel.so").exists()


def test_a_damaged_file_of_any_other_family_leaves_the_family_empty_and_the_rest_restored(place: Place) -> None:
    place.edit("exact", "ca/ca1kernel.so", sha256="00" * 32)
    place.wipe()
    result = place.restore()
    place.commit(result)
    assert "inductor" not in result.families
    assert not (place.live / "inductor").exists()
    assert (place.live / "vllm/torch_compile_cache/torch_aot_compile/abc/rank_0_0/model").exists()
    assert result.outcome == "partial"


@pytest.mark.parametrize(
    ("damaged", "stays"), [("triton_cache/" + "K" * 52 + "/k.cubin", True), ("computation_graph.py", False)]
)
def test_a_damaged_triton_kernel_within_another_cache_costs_that_kernel_and_any_other_file_the_family(
    tmp_path: Path, damaged: str, stays: bool
) -> None:
    place = Place(tmp_path)
    base = "vllm/torch_compile_cache/0123456789/rank_0_0"
    for letter in "KL":
        fake.triton_kernel(place.live, letter * 52, within=f"{base}/triton_cache")
    fake.put(place.live / base / "computation_graph.py", "graph")
    fake.deep_gemm_kernel(place.live, "k")
    place.publish()
    place.edit("exact", f"0123456789/rank_0_0/{damaged}", sha256="0" * 64)
    place.wipe()
    result = place.restore()
    place.commit(result)
    assert (result.outcome, result.rejected["digest"]) == ("partial", 1)
    assert {path.parent.name for path in (place.live / base).rglob("k.cubin")} == ({"L" * 52} if stays else set())
    assert (place.live / base / "computation_graph.py").exists() == stays


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "garbage"])
def test_a_damaged_pack_never_brings_a_wrong_byte_and_leaves_the_other_pack_alone(place: Place, damage: str) -> None:
    before = fake.tree(place.live)
    value = json.loads(place.manifests("exact")[0].read_text())
    pack = place.store / "v1/packs" / f"{value['packs'][0]['digest']}.tar.zst"
    data = bytearray(pack.read_bytes())
    if damage == "gone":
        pack.unlink()
    else:
        data[len(data) // 2] ^= 0xFF
        pack.write_bytes({"cut": bytes(data[: len(data) // 2]), "flipped": data, "garbage": b"x" * 100}[damage])
    place.wipe()
    result = place.restore()
    place.commit(result)
    assert result.outcome == "partial"
    assert (place.live / "triton/TRIa1/k.cubin").exists()
    assert all(before[name][:2] == found[:2] for name, found in fake.tree(place.live).items())


def test_a_manifest_that_declares_too_small_a_size_brings_no_longer_file(place: Place) -> None:
    place.edit("exact", "torch_aot_compile/abc/rank_0_0/model", size=10)
    place.wipe()
    result = place.restore()
    assert result.rejected["digest"] == 1
    assert "vllm_compile" not in result.families


def test_a_quarantined_generation_is_passed_over_for_the_one_before(place: Place) -> None:
    first = place.restore().generations["toolchain"]
    fake.triton_kernel(place.live, "LATER")
    second = place.publish().generations["toolchain"]
    key = fingerprint(fake.facts(), str(place.live)).toolchain_key
    store = DirectoryStore(place.store, "read-write", lambda _s: None)
    store.quarantine("toolchain", key, second, {"reason": "two engines died"})
    place.wipe()
    result = place.restore()
    assert result.generations["toolchain"] == first
    assert result.outcome == "hit"
    assert result.rejected == {"quarantined": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 99}', b'{"format": 1}'])
def test_a_damaged_manifest_is_passed_over_for_the_one_before(place: Place, content: bytes) -> None:
    fake.triton_kernel(place.live, "LATER")
    place.publish()
    place.manifests("toolchain")[-1].write_bytes(content)
    place.wipe()
    result = place.restore()
    assert result.rejected == {"manifest": 1}
    assert result.families["triton"].kernels == 2


def test_a_restore_that_does_not_fit_on_the_disk_is_not_begun(place: Place) -> None:
    place.wipe()
    tools = RestoreTools(clock=time.monotonic, sleep=lambda _s: None, free=lambda _path: 1_000_000)
    result = place.restore(tools)
    assert result.outcome == "failed"
    assert "has 1 MB free" in result.sentence
    assert not (place.live / ".staging").exists()


@pytest.mark.parametrize("store", ["/nowhere/at/all", "ftp://bucket/prefix"])
def test_a_store_that_is_not_there_is_a_sentence_and_a_cold_start(tmp_path: Path, store: str) -> None:
    result = Place(tmp_path).restore(store=store)
    assert result.outcome == "failed"
    assert store in result.sentence
    assert result.commit == ()


def test_a_live_cache_that_can_not_be_written_is_a_sentence(place: Place) -> None:
    shutil.rmtree(place.live)
    place.live.write_text("not a directory")
    result = place.restore()
    assert result.outcome == "failed"
    assert str(place.live) in result.sentence


def test_without_a_store_nothing_is_restored_and_nothing_unexplained_is_cleared(place: Place) -> None:
    result = place.restore(store="")
    assert (result.outcome, result.commit, result.clear) == ("disabled", (), ())


def test_a_cold_start_clears_everything_and_needs_no_store(place: Place) -> None:
    result = place.restore(plan="cold", store="/nowhere")
    assert result.outcome == "disabled"
    assert str(place.live / "triton") in result.clear
    assert str(place.live / "inductor") in result.clear


def test_this_pods_own_live_cache_is_kept_after_an_engine_restart(place: Place) -> None:
    request = place.request(host_boot="boot-1")
    first = restore(request, RESTORING)
    place.commit(first)
    write_marker(place.live, marker_for(request, first))
    fake.triton_kernel(place.live, "COMPILED_SINCE")
    kept = place.restore(plan="keep", host_boot="boot-1")
    assert (kept.outcome, kept.commit, kept.clear) == ("kept", (), ())
    assert kept.generations == first.generations
    assert (place.live / "triton/COMPILED_SINCE").exists()


def _running_on_a_generation(place: Place, scope: KeyScope) -> tuple[DirectoryStore, str, str]:
    """Start from the only generation there is; give the store, the key of a scope, and the name of its generation."""
    request = place.request(host_boot="boot-1")
    first = restore(request, RESTORING)
    place.commit(first)
    write_marker(place.live, marker_for(request, first))
    store = DirectoryStore(place.store, "read-write", lambda _s: None)
    return store, fingerprint(fake.facts(), str(place.live)).key(scope), first.generations[scope]


def _died_twice(store: DirectoryStore, scope: KeyScope, key: str, name: str) -> None:
    for boot in ("a", "b"):
        store.record_boot(scope, key, f"{name}.died.{boot}", {"outcome": "died"})


def _quarantined(store: DirectoryStore, scope: KeyScope, key: str, name: str) -> None:
    store.quarantine(scope, key, name, {"reason": "wrong output"})


def _gone_from_quarantine(store: DirectoryStore, scope: KeyScope, key: str, name: str) -> None:
    store.keep_unfit(scope, key, name)
    store.remove_generation(scope, key, name)


@pytest.mark.parametrize("condemn", [_quarantined, _died_twice, _gone_from_quarantine])
@pytest.mark.parametrize(("scope", "stays", "goes"), [("exact", "triton", "inductor"), ("toolchain", "inductor", "triton")])
@pytest.mark.parametrize("plan", ["keep", "fresh"])
def test_files_of_a_generation_that_was_quarantined_since_are_not_kept(
    place: Place, condemn: Callable[..., None], scope: KeyScope, stays: str, goes: str, plan: str
) -> None:
    store, key, name = _running_on_a_generation(place, scope)
    other: KeyScope = "toolchain" if scope == "exact" else "exact"
    kept = place.restore(plan="keep", host_boot="boot-1").generations[other]
    condemn(store, scope, key, name)
    again = place.restore(plan=plan, host_boot="boot-1")
    place.commit(again)
    assert again.generations == {other: kept}
    assert (place.live / stays).exists()
    assert not (place.live / goes).exists()


def test_a_store_that_is_away_takes_no_files_from_a_container_that_starts_again(place: Place) -> None:
    store, key, name = _running_on_a_generation(place, "exact")
    _quarantined(store, "exact", key, name)
    place.store.rename(place.store.with_name("away"))
    assert place.restore(plan="keep", host_boot="boot-1").outcome == "kept"


def test_a_store_that_hangs_does_not_hold_a_container_up_that_keeps_its_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _running_on_a_generation(place, "exact")
    free, over = threading.Event(), threading.Event()

    def hang(*_: object) -> DirectoryStore:
        free.wait(10)
        over.set()
        raise StoreUnavailable("It came back too late.")

    monkeypatch.setattr(keeping, "LOOK_S", 0.01)
    monkeypatch.setattr(keeping, "open_store", hang)
    assert place.restore(plan="keep", host_boot="boot-1").outcome == "kept"
    assert not over.is_set()
    free.set()


AUTOTUNE = "flashinfer_autotune/0.6.4/90a"
TWO_RANKS = {"argv": ["vllm", "serve", "/models/q", "--tensor-parallel-size", "2"]}


def _kept_with(place: Place, names: tuple[str, ...], **changes: Any) -> RestoreResult:
    """Keep a live cache in which an earlier engine of two ranks left these tactics."""
    facts = fake.facts(**TWO_RANKS)
    first = place.restore(facts=facts, host_boot="boot-1")
    place.commit(first)
    write_marker(place.live, marker_for(place.request(facts=facts, host_boot="boot-1"), first))
    for name in names:
        fake.put(place.live / AUTOTUNE / name, b"{}")
    kept = place.restore(plan="keep", facts=facts, host_boot="boot-1", **changes)
    place.commit(kept)
    assert kept.outcome == "kept"
    assert (place.live / "triton/TRIa1").is_dir()
    return kept


@pytest.mark.parametrize("names", [("autotune_configs.json",), ("autotune_configs_dp0_rank0.json",)])
def test_tactics_of_some_ranks_only_are_not_kept_when_a_container_starts_again(
    place: Place, names: tuple[str, ...]
) -> None:
    kept = _kept_with(place, names)
    assert not (place.live / AUTOTUNE).exists()
    assert "but for flashinfer_autotune, which might make its ranks wait for each other" in kept.sentence


EVERY_RANK = ("autotune_configs_dp0_rank0.json", "autotune_configs_dp0_rank1.json")


def test_tactics_that_every_rank_has_are_kept(place: Place) -> None:
    kept = _kept_with(place, EVERY_RANK)
    assert (place.live / AUTOTUNE / EVERY_RANK[0]).exists()
    assert kept.sentence.endswith("is kept as it is.")


def test_a_family_that_an_engine_may_have_hung_on_is_not_kept(place: Place) -> None:
    _kept_with(place, EVERY_RANK, distrusted=("flashinfer_autotune",))
    assert not (place.live / AUTOTUNE).exists()


def test_a_family_that_an_engine_may_have_hung_on_is_not_restored(place: Place) -> None:
    place.wipe()
    result = place.restore(distrusted=("triton",))
    assert "triton" not in {one.family for one in result.commit}
    assert result.rejected["excluded"] > 0


def test_a_live_cache_from_before_a_reboot_is_not_kept(place: Place) -> None:
    request = place.request(host_boot="boot-1")
    write_marker(place.live, marker_for(request, restore(request, RESTORING)))
    assert place.restore(plan="keep", host_boot="boot-2").outcome == "hit"


def test_a_live_cache_of_another_model_keeps_its_toolchain_families_only(place: Place) -> None:
    request = place.request(facts=fake.facts(home="/other"))
    write_marker(place.live, marker_for(request, restore(request, RESTORING)))
    result = place.restore(plan="keep", store="")
    assert str(place.live / "inductor") in result.clear
    assert str(place.live / "triton") not in result.clear


def test_the_marker_of_other_files_is_gone_before_anything_can_replace_them(place: Place) -> None:
    request = place.request(facts=fake.facts(home="/other"))
    write_marker(place.live, marker_for(request, restore(request, RESTORING)))
    place.restore()
    assert read_marker(place.live) is None


def test_a_family_can_be_excluded(place: Place) -> None:
    place.wipe()
    result = place.restore(exclude=("flashinfer_autotune",))
    assert "flashinfer_autotune" not in result.families
    assert result.outcome == "hit"


def test_ranks_never_get_one_ranks_autotune_file(tmp_path: Path) -> None:
    place = Place(tmp_path)
    fake.fill(place.live)
    facts = fake.facts(argv=["vllm", "serve", "m", "-tp", "2"])
    place.publish(facts=facts)
    place.wipe()
    assert "flashinfer_autotune" not in place.restore(facts=facts).families


def test_facts_that_are_garbage_cost_warmth_and_nothing_else(tmp_path: Path) -> None:
    assert Place(tmp_path).restore(facts={"argv": 7, "environment": "x", "gpus": 3}).outcome == "miss"


def test_the_progress_ends_with_everything(place: Place) -> None:
    place.wipe()
    seen: list[Any] = []
    result = place.restore(RestoreTools(clock=time.monotonic, sleep=lambda _s: None, on_progress=seen.append))
    assert seen[-1].bytes_done == seen[-1].bytes_total == result.bytes
