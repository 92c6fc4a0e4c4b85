"""Claims about publish: only what is whole, only what is new, and never less than was there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.fingerprint import fingerprint
from sidecar.caches.messages import PublishRequest, PublishResult
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.store import DirectoryStore
from tests.fakes import live_cache as fake

Files = dict[str, dict[str, Any]]


class Pod:
    """One pod's live cache, at the same path as every other's, beside a shared store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live, self.store = root / "live", root / "store"
        self.live.mkdir()
        self.store.mkdir(exist_ok=True)

    def publish(self, **changes: Any) -> PublishResult:
        hooks = {name: changes.pop(name) for name in ("checkpoint", "on_progress", "now") if name in changes}
        tools = PublishTools(**{"clock": time.monotonic, "now": time.time, "sleep": lambda _s: None, **hooks})
        values = {"store": str(self.store), "facts": fake.facts(), "attempt": "p", **changes}
        return publish(PublishRequest(live_cache=str(self.live), **values), tools)

    def replaced(self) -> None:
        """Put another pod with an empty live cache in this one's place."""
        shutil.rmtree(self.live)
        self.live.mkdir()

    def published_by_another(self, kernel: str) -> PublishResult:
        """Publish one kernel as a pod would that has no other, while this pod's live cache is out of the way."""
        away = self.live.rename(self.root / "away")
        self.live.mkdir()
        fake.triton_kernel(self.live, kernel)
        result = self.publish()
        shutil.rmtree(self.live)
        away.rename(self.live)
        return result

    def newest(self, scope: str) -> Files:
        place = sorted(self.store.glob(f"v1/{scope}/*/generations/*/manifest.json"))[-1]
        return {f"{one['family']}/{one['path']}": one for one in json.loads(place.read_text())["files"]}


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_a_second_publish_of_the_same_files_is_nothing_new(pod: Pod) -> None:
    fake.fill(pod.live)
    assert pod.publish().outcome == "published"
    again = pod.publish()
    assert (again.outcome, again.generation, again.bytes) == ("nothing_new", None, 0)
    assert len(list(pod.store.glob("v1/packs/*"))) == 2


def test_an_empty_live_cache_publishes_nothing(pod: Pod) -> None:
    assert pod.publish().outcome == "nothing_new"
    assert not list(pod.store.glob("v1/exact/*"))


def test_a_later_publish_packs_only_what_is_new_on_the_parents_packs(pod: Pod) -> None:
    fake.fill(pod.live)
    first = pod.publish()
    fake.deep_gemm_kernel(pod.live, "late")
    second = pod.publish()
    assert second.new_files == 2
    assert second.generations.keys() == {"toolchain"}
    assert second.parent == first.generations["toolchain"]
    manifest = json.loads(sorted(pod.store.glob("v1/toolchain/*/generations/*/manifest.json"))[-1].read_text())
    assert len(manifest["packs"]) == 2


def test_two_pods_that_compiled_different_kernels_make_a_union(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "ONE")
    pod.publish()
    pod.replaced()
    fake.triton_kernel(pod.live, "TWO")
    pod.publish()
    assert {path.split("/")[1] for path in pod.newest("toolchain")} == {"ONE", "TWO"}


def test_two_pods_that_compiled_the_same_kernel_store_it_once(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "ONE")
    pod.publish()
    pod.replaced()
    fake.triton_kernel(pod.live, "ONE", content=b"compiled elsewhere")
    assert pod.publish().outcome == "nothing_new"


def test_an_entry_that_the_engine_rebuilt_from_the_restored_version_takes_its_place_whole(pod: Pod) -> None:
    fake.flashinfer_module(pod.live, "m")
    first = pod.publish()
    library = pod.live / "flashinfer/.cache/flashinfer/0.7.2/90a/cached_ops/m/m.so"
    fake.put(library, b"rebuilt", mtime_ns=fake.OLD_NS + 5)
    second = pod.publish(restored=first.generations)
    assert second.outcome == "published"
    assert len({one["pack"] for one in pod.newest("toolchain").values()}) == 1, "ninja's state goes with its objects"
    assert second.new_files == second.files == 6


def test_what_the_engine_changes_after_a_publish_of_its_pod_goes_out_with_the_next_one(pod: Pod) -> None:
    """Tables of tactics, indices and ninja's shared log grow in place, and their entries have no file more than before."""
    table = pod.live / "flashinfer_autotune/0.7.2/90a/k/autotune_configs_dp0_rank0.json"
    index = pod.live / "nv/index"
    fake.put(table, b'{"one": 1}')
    fake.put(index, b"one")
    packed = pod.publish().packed
    fake.put(table, b'{"one": 1, "two": 2}')
    fake.put(index, b"one two")
    fake.put(pod.live / "nv/1/2/two", b"kernel")
    second = pod.publish(packed=packed)
    assert pod.newest("exact")["flashinfer_autotune/0.7.2/90a/k/autotune_configs_dp0_rank0.json"]["size"] == 20
    assert pod.newest("toolchain")["nv/index"]["size"] == 7
    fake.put(index, b"one two three")
    pod.publish(packed=(*packed, *second.packed))
    assert pod.newest("toolchain")["nv/index"]["size"] == 13


def test_what_another_pod_published_is_not_replaced_by_what_differs_here(pod: Pod) -> None:
    fake.put(pod.live / "nv/index", b"the other's")
    pod.publish()
    fake.put(pod.live / "nv/index", b"ours")
    fake.put(pod.live / "nv/1/2/ours", b"kernel")
    packed = pod.publish().packed
    fake.put(pod.live / "nv/index", b"ours, longer")
    pod.publish(packed=packed)
    assert pod.newest("toolchain")["nv/index"]["size"] == len(b"the other's")


def test_a_link_that_another_pod_published_is_not_replaced_by_one_that_leads_elsewhere(pod: Pod) -> None:
    link = fake.inductor_kernel(pod.live, "ca1kernel").with_name("current.so")
    fake.inductor_kernel(pod.live, "ca2kernel")
    fake.link(link, "ca1kernel.so")
    packed = pod.publish().packed
    link.unlink()
    fake.link(link, "ca2kernel.so")
    fake.inductor_kernel(pod.live, "ca3kernel")
    assert pod.publish(packed=packed).outcome == "published"
    assert pod.newest("exact")["inductor/ca/current.so"]["link"] == "ca1kernel.so"


def test_an_entry_with_more_files_takes_the_place_of_one_with_fewer(pod: Pod) -> None:
    folder = fake.deep_gemm_kernel(pod.live, "k")
    pod.publish()
    fake.put(folder / "kernel.cubin", b"other", mtime_ns=fake.OLD_NS + 5)
    fake.put(folder / "kernel.json", b"{}")
    assert pod.publish().new_files == 3


@pytest.mark.parametrize("damage", ["half json", "no json", "child missing", "elsewhere", "empty cubin"])
def test_a_triton_entry_that_is_not_whole_is_not_published(pod: Pod, damage: str) -> None:
    fake.triton_kernel(pod.live, "GOOD")
    folder = fake.triton_kernel(pod.live, "BAD")
    if damage == "half json":
        fake.put(folder / "k.json", b'{"na')
    elif damage == "no json":
        fake.put(folder / "__grp__k.json", b"")
    elif damage == "child missing":
        (folder / "k.cubin").unlink()
    elif damage == "elsewhere":
        fake.put(folder / "__grp__k.json", json.dumps({"child_paths": {"k.cubin": "/root/.triton/cache/BAD/k.cubin"}}))
    else:
        fake.put(folder / "k.cubin", b"")
    result = pod.publish()
    assert {path.split("/")[1] for path in pod.newest("toolchain")} == {"GOOD"}
    reasons = {"child missing": "incomplete", "elsewhere": "elsewhere", "half json": "json"}
    assert set(result.skipped) == {reasons.get(damage, "empty")}


#: Where torch.compile keeps Triton kernels of its own.
WITHIN = ["inductor/triton/0", "vllm/torch_compile_cache/0123456789/rank_0_0/triton_cache"]


@pytest.mark.parametrize("within", WITHIN)
def test_a_triton_kernel_within_another_cache_that_is_not_whole_stays_out_and_the_rest_travels(
    pod: Pod, within: str
) -> None:
    good, half, cut = (letter * 52 for letter in "GHC")
    for name in (good, half, cut):
        fake.triton_kernel(pod.live, name, within=within)
    fake.put(pod.live / within / half / "k.json", '{"name":')
    fake.put(pod.live / within / cut / "__grp__k.json", "")
    # No file of Triton's, and whether it can be read is not known.
    fake.put(pod.live / within / "../cache_key_factors.json", "{half")
    result = pod.publish()
    assert result.skipped == {"json": 3, "empty": 3}
    assert {path.split("/")[-2] for path in pod.newest("exact") if path.endswith("cubin")} == {good}
    assert any(path.endswith("cache_key_factors.json") for path in pod.newest("exact"))


@pytest.mark.parametrize("cubin", [b"", None])
def test_a_deep_gemm_entry_without_a_cubin_is_not_published(pod: Pod, cubin: bytes | None) -> None:
    fake.deep_gemm_kernel(pod.live, "good")
    folder = fake.deep_gemm_kernel(pod.live, "bad", cubin or b"")
    if cubin is None:
        (folder / "kernel.cubin").unlink()
    pod.publish()
    assert {path.split("/")[2] for path in pod.newest("toolchain")} == {"kernel.good"}


def test_a_module_that_ninja_has_not_finished_is_not_published(pod: Pod) -> None:
    fake.flashinfer_module(pod.live, "good")
    folder = fake.flashinfer_module(pod.live, "linking")
    fake.put(folder / ".ninja_log", "# ninja log v6\n1\t2\t3\tlinking.cuda.o\tab\n")
    unbuilt = fake.flashinfer_module(pod.live, "unbuilt")
    (unbuilt / "unbuilt.so").unlink()
    pod.publish()
    names = " ".join(pod.newest("toolchain"))
    assert "good" in names
    assert "linking" not in names
    assert "unbuilt" not in names


def test_an_entry_that_was_touched_just_now_waits_for_the_next_publish(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "OLD")
    folder = fake.triton_kernel(pod.live, "NEW")
    os.utime(folder / "k.cubin", ns=(0, 2_000_000_000 * 10**9))
    result = pod.publish(now=lambda: 2_000_000_001.0, settle_s=2.0)
    assert {path.split("/")[1] for path in pod.newest("toolchain")} == {"OLD"}
    assert result.skipped == {"unstable": 3}
    assert "next publish" in result.sentence
    assert pod.publish(now=lambda: 2_000_000_003.0, settle_s=2.0).new_files == 3


@pytest.mark.parametrize("change", ["rewritten", "removed", "grown"])
def test_an_entry_that_changes_while_it_is_packed_is_left_out_whole(pod: Pod, change: str) -> None:
    fake.triton_kernel(pod.live, "QUIET")
    folder = fake.triton_kernel(pod.live, "BUSY")

    def touch(step: str) -> None:
        if step == "pack opened" and change == "rewritten":
            fake.put(folder / "k.cubin", b"other", mtime_ns=fake.OLD_NS + 1)
        elif step == "pack opened" and change == "removed":
            (folder / "k.cubin").unlink()
        elif step == "pack opened":
            fake.put(folder / "k.cubin", b"x" * 100_000)

    result = pod.publish(checkpoint=touch)
    assert {path.split("/")[1] for path in pod.newest("toolchain")} == {"QUIET"}
    assert result.skipped == {"unstable": 3}


def test_a_rebuilt_entry_that_changes_while_it_is_packed_stays_as_it_was_published(pod: Pod) -> None:
    fake.flashinfer_module(pod.live, "m")
    first = pod.publish()
    before = pod.newest("toolchain")
    library = pod.live / "flashinfer/.cache/flashinfer/0.7.2/90a/cached_ops/m/m.so"
    fake.put(library, b"rebuilt", mtime_ns=fake.OLD_NS + 5)
    fake.triton_kernel(pod.live, "NEW")

    def touch(step: str) -> None:
        if step == "pack opened":
            fake.put(library, b"once more", mtime_ns=fake.OLD_NS + 9)

    assert pod.publish(restored=first.generations, checkpoint=touch).new_files == 3
    after = pod.newest("toolchain")
    assert {path: after[path] for path in before} == before


def test_the_loser_of_a_race_adds_what_it_has_to_the_winner(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "MINE")
    raced: list[PublishResult] = []

    def race(step: str) -> None:
        if step == "pack renamed" and not (pod.root / "away").exists():
            raced.append(pod.published_by_another("THEIRS"))

    result = pod.publish(checkpoint=race)
    assert result.parent == raced[0].generation
    assert result.new_files == 3
    assert {path.split("/")[1] for path in pod.newest("toolchain")} == {"MINE", "THEIRS"}


def test_a_publisher_that_always_loses_gives_up_with_a_sentence(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "MINE")
    steps: list[str] = []

    def lose(step: str) -> None:
        steps.append(step)
        if step == "generation directory" and not (pod.root / "away").exists():
            pod.published_by_another(f"THEIRS{len(steps)}")

    result = pod.publish(checkpoint=lose)
    assert result.outcome == "failed"
    assert "next publish" in result.sentence


def test_nothing_is_built_on_a_quarantined_generation_and_its_number_stays_taken(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "POISON")
    poisoned = pod.publish().generations["toolchain"]
    key = fingerprint(fake.facts(), str(pod.live)).toolchain_key
    store = DirectoryStore(pod.store, "read-write", lambda _s: None)
    store.quarantine("toolchain", key, poisoned, {"reason": "test"})
    pod.replaced()
    fake.triton_kernel(pod.live, "CLEAN")
    result = pod.publish()
    assert result.parent is None
    assert result.generation is not None
    assert result.generation.startswith("00000002-")
    assert {path.split("/")[1] for path in pod.newest("toolchain")} == {"CLEAN"}


def test_nothing_is_built_on_a_generation_that_two_deaths_condemned(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "K", b"poison")
    poisoned = pod.publish().generations["toolchain"]
    key = fingerprint(fake.facts(), str(pod.live)).toolchain_key
    store = DirectoryStore(pod.store, "read-write", lambda _s: None)
    store.record_boot("toolchain", key, f"{poisoned}.died.x", {})
    pod.replaced()
    cubin = fake.triton_kernel(pod.live, "K", b"sound") / "k.cubin"
    for path in cubin.parent.iterdir():
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert pod.publish().outcome == "nothing_new", "one death may be an accident"
    store.record_boot("toolchain", key, f"{poisoned}.died.y", {})
    result = pod.publish()
    assert (result.parent, (result.generation or "")[:9]) == (None, "00000002-")
    stored = pod.newest("toolchain")["triton/K/k.cubin"]
    assert stored["sha256"] == hashlib.sha256(cubin.read_bytes()).hexdigest()


def test_a_kernel_from_before_the_clock_was_set_back_does_not_wait_until_it_gets_there(pod: Pod) -> None:
    for name, ahead_s in (("DAY", 86400), ("NOW", 1)):
        for path in fake.triton_kernel(pod.live, name).iterdir():
            os.utime(path, (time.time() + ahead_s,) * 2)
    assert pod.publish().skipped == {"unstable": 3}
    assert {path.split("/")[1] for path in pod.newest("toolchain")} == {"DAY"}


@pytest.mark.parametrize("why", ["quarantined", "condemned"])
def test_what_came_with_a_generation_that_must_not_be_used_is_not_published_again(pod: Pod, why: str) -> None:
    fake.triton_kernel(pod.live, "POISON")
    bad = pod.publish().generations["toolchain"]
    key = fingerprint(fake.facts(), str(pod.live)).toolchain_key
    store = DirectoryStore(pod.store, "read-write", lambda _s: None)
    if why == "quarantined":
        store.quarantine("toolchain", key, bad, {"reason": "test"})
    for boot in "xy" if why == "condemned" else "":
        store.record_boot("toolchain", key, f"{bad}.died.{boot}", {})
    result = pod.publish()
    assert (result.outcome, result.skipped) == ("nothing_new", {"quarantined": 3})
    assert "must not be used" in result.sentence
    fake.triton_kernel(pod.live, "LATE")
    assert pod.publish().outcome == "published"
    assert {path.split("/")[1] for path in pod.newest("toolchain")} == {"LATE"}
    for path in (pod.live / "triton/POISON").iterdir():
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert pod.publish().new_files == 3, "compiled anew"


def test_what_a_sound_generation_holds_too_is_no_reason_to_hold_a_rebuilt_module_back(pod: Pod) -> None:
    module = fake.flashinfer_module(pod.live, "batch")
    sound = pod.publish().generations
    fake.triton_kernel(pod.live, "POISON")
    bad = pod.publish().generations["toolchain"]
    key = fingerprint(fake.facts(), str(pod.live)).toolchain_key
    DirectoryStore(pod.store, "read-write", lambda _s: None).quarantine("toolchain", key, bad, {"reason": "test"})
    # A pod of the sound one builds anew: ninja leaves the plan and the source as they are.
    for name, content in (("batch.cuda.o", b"object anew"), ("batch.so", b"library anew")):
        fake.put(module / name, content, mtime_ns=fake.OLD_NS + 1)
    result = pod.publish(restored=sound)
    assert result.parent == sound["toolchain"]
    assert result.skipped == {"quarantined": 3}, "the poison"
    new = pod.newest("toolchain")
    [library] = [one for path, one in new.items() if path.endswith("batch.so")]
    assert library["sha256"] == hashlib.sha256(b"library anew").hexdigest()
    assert not any("POISON" in path for path in new)


def test_a_damaged_archive_of_a_sound_generation_is_mended_by_a_pod_that_has_its_files(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "K")
    sound = pod.publish().generations
    [pack] = pod.store.glob("v1/packs/*.tar.zst")
    fake.triton_kernel(pod.live, "POISON")
    bad = pod.publish().generations["toolchain"]
    key = fingerprint(fake.facts(), str(pod.live)).toolchain_key
    DirectoryStore(pod.store, "read-write", lambda _s: None).quarantine("toolchain", key, bad, {"reason": "test"})
    pack.write_bytes(b"damaged")
    assert pod.publish(restored=sound).outcome == "published"
    assert {path.split("/")[1] for path in pod.newest("toolchain")} == {"K"}


def test_a_damaged_generation_blocks_nobody(pod: Pod) -> None:
    fake.triton_kernel(pod.live, "ONE")
    pod.publish()
    next(pod.store.glob("v1/toolchain/*/generations/*/manifest.json")).write_bytes(b"{")
    result = pod.publish()
    assert result.outcome == "published"
    assert (result.generation or "").startswith("00000002-")


def test_compile_artifacts_in_the_unsafe_format_are_not_published(pod: Pod) -> None:
    fake.fill(pod.live)
    pod.publish(facts=fake.facts(environment={"VLLM_COMPILE_CACHE_SAVE_FORMAT": "unpacked"}))
    assert not any(name.startswith("vllm_compile/") for name in pod.newest("exact"))


def test_a_read_only_store_is_told_apart_from_a_failure(pod: Pod) -> None:
    fake.fill(pod.live)
    result = pod.publish(store_mode="read-only")
    assert result.outcome == "read_only"
    assert "WARMUP_STORE_MODE" in result.sentence
    assert list(pod.store.iterdir()) == []


def test_without_a_store_publish_is_disabled_and_with_a_missing_one_it_fails(pod: Pod) -> None:
    assert pod.publish(store="").outcome == "disabled"
    missing = pod.publish(store=str(pod.root / "nothing"))
    assert missing.outcome == "failed"
    assert "does not exist" in missing.sentence


def test_packs_are_plain_archives_that_standard_tools_unpack_with_times(pod: Pod, tmp_path: Path) -> None:
    fake.fill(pod.live)
    pod.publish()
    (tmp_path / "out").mkdir()
    for pack in pod.store.glob("v1/packs/*.tar.zst"):
        subprocess.run(["tar", "--zstd", "-xf", str(pack), "-C", str(tmp_path / "out")], check=True)
    before, after = fake.tree(pod.live), fake.tree(tmp_path / "out")
    assert after["triton/TRIa1/k.cubin"] == before["triton/TRIa1/k.cubin"]
    assert after["inductor/ca/current.so"][0] == "ca1kernel.so"
    assert len(after) == 24


def test_what_a_key_stands_for_is_recorded_and_holds_no_secret(pod: Pod) -> None:
    fake.fill(pod.live)
    pod.publish(facts=fake.facts(environment={"VLLM_SOME_TOKEN": "hunter2"}))
    places = list(pod.store.glob("v1/*/*/facts.json"))
    assert len(places) == 2
    assert "hunter2" not in "".join(place.read_text() for place in places)


def test_archives_of_publishers_that_died_long_ago_are_swept_and_fresh_ones_are_not(pod: Pod) -> None:
    packs = pod.store / "v1/packs"
    packs.mkdir(parents=True)
    old = fake.put(packs / ".pack.17.0123456789ab.tmp", b"", mtime_ns=fake.OLD_NS)
    fresh = packs / ".pack.18.0123456789ab.tmp"
    fresh.write_bytes(b"")
    pod.publish()
    assert not old.exists()
    assert fresh.exists()


def test_a_file_name_that_is_not_text_travels(pod: Pod) -> None:
    name = os.fsdecode(b"torch_aot_compile/\xff\xfe")
    fake.put(pod.live / "vllm/torch_compile_cache" / name, b"data")
    pod.publish()
    assert f"vllm_compile/{name}" in pod.newest("exact")


def test_timings_that_a_start_rewrites_are_no_reason_for_a_generation(pod: Pod) -> None:
    timing = pod.live / "inductor" / "ab" / "kernel.best_config"
    timing.parent.mkdir(parents=True)
    timing.write_text('{"XBLOCK": 128, "time_taken_ms": 12}')
    (timing.parent / "wrapper.py").write_text("# graph")
    assert pod.publish(now=lambda: time.time() + 60).outcome == "published"
    timing.write_text('{"XBLOCK": 128, "time_taken_ms": 17}')
    assert pod.publish(now=lambda: time.time() + 60).outcome == "nothing_new"
    (timing.parent / "late.py").write_text("# graph")
    assert pod.publish(now=lambda: time.time() + 60).outcome == "published"


@pytest.mark.parametrize(("age_s", "stays"), [(0.0, True), (3600.0, False)])
def test_a_pack_of_a_young_generation_that_is_not_seen_yet_is_no_damage(pod: Pod, age_s: float, stays: bool) -> None:
    assert pod.published_by_another("OTHER").outcome == "published"
    (pack,) = pod.store.glob("v1/packs/*.tar.zst")
    unseen = pack.rename(pod.root / "unseen")
    for manifest in pod.store.glob("v1/*/*/generations/*/manifest.json"):
        made = manifest.stat().st_mtime - age_s
        os.utime(manifest, (made, made))
    fake.triton_kernel(pod.live, "OWN")
    assert pod.publish().outcome == "published"
    unseen.rename(pack)
    kept = {name.split("/")[1] for name in pod.newest("toolchain")}
    assert ("OTHER" in kept, "OWN" in kept) == (stays, True)
