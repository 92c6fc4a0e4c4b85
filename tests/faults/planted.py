"""A store with a generation of some thousand files, and whether a live cache holds all of a family of it or nothing.

How it gets from one to the other is the product's business.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.engine_script import Kernels, Script
from tests.faults.rig import PATIENCE_S, Place, Pod, until

TRITON_KERNELS = 600
INDUCTOR_KERNELS = 200


@dataclass(frozen=True)
class Planted:
    """A published store and the files of each family that a pod compiled before it was published."""

    store: Path
    families: Mapping[str, Mapping[str, bytes]]

    def copy_to(self, store: Path) -> None:
        """Give a pod a store of its own."""
        shutil.copytree(self.store, store, dirs_exist_ok=True)

    def states(self, live: Path) -> dict[str, str]:
        """Say of each family whether all of its files are in the live cache as they were, or none, or something else."""
        return {name: _state(files, _files(live / name)) for name, files in self.families.items()}


def _state(wanted: Mapping[str, bytes], found: Mapping[str, bytes]) -> str:
    same = sum(found.get(path) == content for path, content in wanted.items())
    there = sum(path in found for path in wanted)
    if same == len(wanted):
        return "whole"
    return "empty" if there == 0 else f"half: {same} of {len(wanted)} files, {there - same} damaged"


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plant(root: Path, place: Place) -> Planted:
    """Let a pod publish a store whose kernels nobody would compile again by chance."""
    pod = Pod(root, place)
    try:
        daemon = pod.start_daemon(publish_quiet_s=1)
        pod.start_container()
        pod.engine_pid()
        asyncio.run(_compile(place.live_cache))
        # What the pod's own warm-up compiles, the next one may compile as well.
        asyncio.run(_compile(root / "planted"))
        daemon.wait_until_ready(PATIENCE_S)
        until(lambda: daemon.status()["publish"]["outcome"] == "published", "a published generation")
        families = {}
        for name in ("triton", "inductor"):
            found, ours = _files(place.live_cache / name), _files(root / "planted" / name)
            families[name] = {path: content for path, content in found.items() if path in ours}
    finally:
        pod.close()
    return Planted(pod.directories.store, families)


async def _compile(live: Path) -> None:
    kernels = Kernels(Script(log_jit=False), live / "triton", live / "inductor")
    for number in range(TRITON_KERNELS):
        await kernels.need(f"planted|{number}")
    for number in range(INDUCTOR_KERNELS):
        await kernels.need(f"logprobs|planted {number}")
