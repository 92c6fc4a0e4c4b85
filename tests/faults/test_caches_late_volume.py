"""The same claims on a local directory and on a volume whose two mounts see each other late and whose locks lie."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.fingerprint import fingerprint
from sidecar.caches.live_cache import DIRECTORY_MODE
from sidecar.files import create_folder_exclusively
from tests.fakes import live_cache as fake
from tests.faults.disk import PATIENT_S, ROOT, Mount, Worker, calls
from tests.faults.weed import two_mounts

LATE_S = 0.6


class Fleet:
    """Pods with live caches at one relative path, each with a mount of its own of one store."""

    def __init__(self, root: Path, kind: str, stores: tuple[Path, ...]) -> None:
        self.root, self.kind, self.store = root, kind, stores[0]
        self.store.mkdir()
        self.stores = itertools.cycle(stores)

    @property
    def late_s(self) -> float:
        """After this time (seconds) every mount sees what another did."""
        return {"late": LATE_S, "weed": 1.0}.get(self.kind, 0.0)

    def mount(self, **changes: Any) -> Mount | None:
        if self.kind != "late" and not changes:
            return None
        late: dict[str, Any] = {"late_s": LATE_S, "locks_lie": True} if self.kind == "late" else {}
        return Mount(root=self.store, **{**late, **changes})

    def pod(self, name: str) -> Path:
        """Give a pod's directory; its live cache is `live` in it."""
        made = self.root / name / "live"
        made.mkdir(parents=True, exist_ok=True)
        return made

    def start(self, task: str, pod: str, mount: Mount | None = None, **changes: Any) -> Worker:
        self.pod(pod)
        request = {"live_cache": "live", "facts": fake.facts(), "attempt": "1-1-ab", **changes}
        store = self.store if mount else next(self.stores)
        return Worker(
            {"task": task, "request": {"store": str(store), **request}}, self.root / pod, mount or self.mount()
        )

    def publish(self, pod: str, mount: Mount | None = None, **changes: Any) -> dict[str, Any]:
        return self.start("publish", pod, mount, **changes).result()

    def restore(self, pod: str, mount: Mount | None = None, **changes: Any) -> dict[str, Any]:
        return self.start("restore", pod, mount, **changes).result()

    def settle(self, until: Callable[[], bool] = lambda: False) -> None:
        """Wait until every mount sees everything, at the longest."""
        ends = time.monotonic() + self.late_s
        while time.monotonic() < ends and not until():
            time.sleep(0.01)

    def generations(self, scope: str = "toolchain") -> list[Path]:
        return sorted(self.store.glob(f"v1/{scope}/*/generations/*/manifest.json"))

    def kernels(self) -> set[str]:
        """Name the DeepGEMM kernels of the newest generation."""
        files = json.loads(self.generations()[-1].read_text())["files"]
        return {one["path"].split("/")[1].removeprefix("kernel.") for one in files}

    def check_whole(self) -> None:
        """Check that whatever can be seen is whole, and that no publisher left anything behind."""
        for scope in ("exact", "toolchain"):
            for manifest in self.generations(scope):
                for pack in json.loads(manifest.read_text())["packs"]:
                    assert (self.store / f"v1/packs/{pack['digest']}.tar.zst").stat().st_size == pack["bytes"]
        assert not list(self.store.rglob(".*.tmp"))


@pytest.fixture(scope="session")
def mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    with two_mounts(tmp_path_factory.mktemp("weed")) as made:
        yield made


@pytest.fixture(params=["local", "late", pytest.param("weed", marks=pytest.mark.slow)])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Fleet:
    """Give pods on a volume of each kind; the pods of one on `weed` mounts use both mounts by turns."""
    if request.param != "weed":
        return Fleet(tmp_path, request.param, (tmp_path / "store",))
    one, two = request.getfixturevalue("mounts")
    return Fleet(tmp_path, "weed", (one / tmp_path.name, two / tmp_path.name))


def test_what_one_pod_published_another_restores(fleet: Fleet) -> None:
    fake.deep_gemm_kernel(fleet.pod("one"), "ONE")
    fake.inductor_kernel(fleet.pod("one"), "caone")
    assert fleet.publish("one")["outcome"] == "published"
    assert fleet.restore("two")["outcome"] in ("hit", "partial", "miss"), "it may not be there yet"
    fleet.settle()
    assert fleet.restore("two")["outcome"] == "hit"
    fleet.check_whole()


def test_two_pods_that_publish_at_the_same_moment_make_a_union(fleet: Fleet) -> None:
    for name in ("ONE", "TWO"):
        fake.deep_gemm_kernel(fleet.pod(name), name)
    running = [fleet.start("publish", name) for name in ("ONE", "TWO")]
    assert [one.result()["outcome"] for one in running] == ["published"] * 2
    assert fleet.kernels() == {"ONE", "TWO"}
    fleet.check_whole()


def test_a_pod_that_can_not_see_the_newest_generation_yet_builds_on_it_all_the_same(fleet: Fleet) -> None:
    for name in ("ONE", "TWO", "THREE"):
        fake.deep_gemm_kernel(fleet.pod(name), name)
        assert fleet.publish(name)["outcome"] == "published"
    assert [int(one.parent.name.split("-")[0]) for one in fleet.generations()] == [1, 2, 3]
    assert fleet.kernels() == {"ONE", "TWO", "THREE"}
    fleet.check_whole()


def test_sixteen_pods_that_publish_at_once_make_the_union_of_what_they_had(fleet: Fleet) -> None:
    names = [f"KERNEL{number}" for number in range(16)]
    for name in names:
        fake.deep_gemm_kernel(fleet.pod(name), name)
        fake.deep_gemm_kernel(fleet.pod(name), "COMMON")
    log = fleet.root / "calls"
    # Sixteen take turns at one number after the other, and each is seen so much later.
    mount = fleet.mount(late_s=LATE_S / 3, log=log) if fleet.kind == "late" else None
    running = [fleet.start("publish", name, mount) for name in names]
    outcomes = Counter(one.result()["outcome"] for one in running)
    assert outcomes == {"published": 16}
    assert [int(one.parent.name.split("-")[0]) for one in fleet.generations()] == list(range(1, 17))
    assert fleet.kernels() == {*names, "COMMON"}
    fleet.check_whole()
    assert not [call for call in calls(log) if call[0] == "lock"], "locks of a shared volume are not to be relied on"


def test_a_quarantined_generation_is_passed_over_by_every_mount(fleet: Fleet) -> None:
    fake.deep_gemm_kernel(fleet.pod("one"), "ONE")
    first = fleet.publish("one")["generations"]["toolchain"]
    fake.deep_gemm_kernel(fleet.pod("one"), "LATER")
    second = fleet.publish("one")["generations"]["toolchain"]
    request = {
        "store": str(fleet.store),
        "scope": "toolchain",
        "key": fingerprint(fake.facts(), "live").toolchain_key,
        "generation": second,
        "kind": "quarantine",
        "name": second,
        "record": {"reason": "two engines died"},
    }
    assert Worker({"task": "record", "request": request}, fleet.root / "one", fleet.mount()).result() == {"trouble": ""}
    fleet.settle()
    restored = fleet.restore("two")
    assert restored["generations"]["toolchain"] == first
    fake.deep_gemm_kernel(fleet.pod("three"), "THREE")
    assert fleet.publish("three")["parent"] == first
    assert fleet.kernels() == {"ONE", "THREE"}
    fleet.check_whole()


def test_boots_recorded_at_the_same_moment_are_all_there(fleet: Fleet) -> None:
    key = fingerprint(fake.facts(), "live").toolchain_key
    request = {"store": str(fleet.store), "scope": "toolchain", "key": key, "generation": "g", "kind": "boot"}
    fleet.pod("one")
    running = [
        Worker(
            {"task": "record", "request": {**request, "name": f"1-{number}-ab", "record": {"outcome": "ready"}}},
            fleet.root / "one",
            fleet.mount(),
        )
        for number in range(4)
    ]
    assert [one.result() for one in running] == [{"trouble": ""}] * 4
    assert len(list(fleet.store.glob(f"v1/toolchain/{key}/boots/*"))) == 4


def test_a_rename_that_succeeds_and_stays_unseen_is_published_all_the_same(fleet: Fleet) -> None:
    fake.deep_gemm_kernel(fleet.pod("one"), "ONE")
    assert fleet.publish("one", fleet.mount(late_s=60, own_late=True))["outcome"] == "published"
    fleet.settle()
    fake.deep_gemm_kernel(fleet.pod("two"), "TWO")
    assert fleet.publish("two")["outcome"] == "published"
    assert fleet.kernels() == {"ONE", "TWO"}
    fleet.check_whole()


def test_of_two_mounts_that_take_one_name_at_the_same_moment_one_wins_and_its_words_stand(fleet: Fleet) -> None:
    stores, together = (next(fleet.stores), next(fleet.stores)), threading.Barrier(2)

    def take(store: Path, words: bytes, name: str) -> list[bytes]:
        together.wait()
        try:
            create_folder_exclusively(store / name, "manifest.json", words, store)
        except FileExistsError:
            return []
        return [words]

    with ThreadPoolExecutor(2) as pool:
        for number in range(40):
            name = f"generation{number}"
            [winner] = itertools.chain(*pool.map(take, stores, (b"one", b"two"), (name, name)))
            fleet.settle(until=lambda name=name: all((store / name).exists() for store in stores))
            assert {(store / name / "manifest.json").read_bytes() for store in stores} == {winner}
    assert not list(fleet.store.glob(".*"))


@pytest.mark.slow
def test_a_publisher_killed_at_any_step_blocks_nobody(fleet: Fleet) -> None:
    def stepped(pod: str, die_at: int, store: Path) -> str:
        command = [sys.executable, "-m", "tests.faults.cache_steps", "publish", "live", str(store), str(die_at)]
        mount = Mount(root=store, late_s=fleet.late_s, locks_lie=True) if fleet.kind == "late" else None
        done = subprocess.run(
            mount.command(*command) if mount else command,
            cwd=fleet.root / pod,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENT_S,
        )
        return done.stdout

    for name in ("dead", "next"):
        fake.deep_gemm_kernel(fleet.pod(name), name)
    steps = json.loads(stepped("dead", 0, fleet.store))["steps"]

    def tried(die_at: int) -> None:
        store = fleet.root / f"store{die_at}"
        store.mkdir()
        assert stepped("dead", die_at, store) == ""
        said = json.loads(stepped("next", 0, store))
        assert said["outcome"] == "published", f"after {steps[die_at - 1]}: {said}"
        manifests = sorted(store.glob("v1/toolchain/*/generations/*/manifest.json"))
        names = {one["path"].split("/")[1] for one in json.loads(manifests[-1].read_text())["files"]}
        assert "kernel.next" in names
        assert len(manifests) == 1 or names == {"kernel.dead", "kernel.next"}
        shutil.rmtree(store)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(tried, range(1, len(steps) + 1)))


def test_every_directory_of_the_store_is_the_groups_whoever_made_it(fleet: Fleet) -> None:
    fake.deep_gemm_kernel(fleet.pod("one"), "ONE")
    fleet.publish("one")
    assert {one.stat().st_mode & 0o7777 for one in (fleet.store / "v1").rglob("*") if one.is_dir()} == {DIRECTORY_MODE}
