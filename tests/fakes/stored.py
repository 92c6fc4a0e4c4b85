"""A store for tests of retention and exchange: generations with real archives, made by the product's own publish; time that passes.

What the store holds is checked by its readers.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from sidecar.caches.commit import commit
from sidecar.caches.fingerprint import KeyScope, fingerprint
from sidecar.caches.messages import PublishRequest, PublishResult, RestoreRequest, RestoreResult
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import RestoreTools, restore
from sidecar.caches.store import open_store
from tests.fakes import live_cache as fake

SCOPE: KeyScope = "toolchain"


class Stored:
    """A store in a folder below `root`, or at another place; one live cache for all pods, and what publishes and restores there."""

    def __init__(self, root: Path, name: str = "store", place: Any = None) -> None:
        # A path, or what is used as one: tests look at it and plant things there.
        self.root, self.place, self.live = root, place or root / name, root / "live"
        self.place.mkdir(parents=True, exist_ok=True)
        self.store = open_store(str(self.place), "read-write", lambda _s: None)
        self.key = fingerprint(fake.facts(), str(self.live)).toolchain_key

    def publish(self, *kernels: str, facts: dict[str, Any] | None = None, **fields: Any) -> PublishResult:
        """Publish kernels of an engine that had nothing else."""
        shutil.rmtree(self.live, ignore_errors=True)
        for kernel in kernels:
            fake.deep_gemm_kernel(self.live, kernel, cubin=b"cubin of " + kernel.encode() * 50)
        request = PublishRequest(
            store=str(self.place),
            live_cache=str(self.live),
            facts=facts or fake.facts(),
            attempt="p",
            settle_s=0,
            **fields,
        )
        return publish(request, PublishTools(clock=time.monotonic, now=time.time, sleep=lambda _s: None))

    def restore(self, **fields: Any) -> RestoreResult:
        """Restore into an empty live cache."""
        shutil.rmtree(self.live, ignore_errors=True)
        self.live.mkdir()
        request = RestoreRequest(
            store=str(self.place), live_cache=str(self.live), facts=fake.facts(), attempt="1-1-00000000", **fields
        )
        result = restore(request, RestoreTools(clock=time.monotonic, sleep=lambda _s: None))
        commit(self.live, result.commit, result.clear)
        return result

    def kernels(self) -> set[str]:
        """Name the kernels in the live cache."""
        return {path.name.removeprefix("kernel.") for path in (self.live / "deep_gemm" / "cache").glob("*")}

    def generations(self) -> list[str]:
        """Name the generations of the key, oldest first."""
        return sorted(
            path.parent.name for path in self.place.glob(f"v1/{SCOPE}/{self.key}/generations/*/manifest.json")
        )

    def packs(self) -> set[str]:
        """Name the archives."""
        return {path.name.removesuffix(".tar.zst") for path in self.place.glob("v1/packs/*.tar.zst")}

    def pass_time(self, seconds: float) -> None:
        """Make everything in the store as much older."""
        for path in sorted(self.place.rglob("*"), reverse=True):
            then = path.lstat().st_mtime - seconds
            os.utime(path, (then, then), follow_symlinks=False)
