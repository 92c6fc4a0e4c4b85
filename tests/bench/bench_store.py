"""What restore and publish cost, as ratios to standard tools in one run, with peak memory.

Run it by hand, `python -m tests.bench.bench_store`; nothing here is a test, and no number is asserted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.caches.messages import PublishRequest, RestoreRequest
from tests.bench import cache_tree
from tests.bench.figures import Figure, machine, save, table
from tests.bench.probing import median
from tests.bench.store_calls import Cost, apart
from tests.fakes.live_cache import facts

MIB = 1 << 20
PARTS = ("disk", "memory", "slow", "delta", "sizes")
#: What `zstd` does by itself.
TAR_LEVEL = 3
DELAY_US = 1000
SIZES = (1_000, 10_000, 100_000, 300_000)
WORKER_LIMIT = 160 * MIB
SHIM = Path(__file__).with_name("slow_files.c")


@dataclass
class Place:
    """A folder with a live cache, a store, and the same tree as an archive; attempts are numbered."""

    root: Path
    attempts: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def live(self) -> Path:
        """The live cache, always at this path: it is part of the key."""
        return self.root / "live"

    @property
    def store(self) -> Path:
        """The store that `publish` fills."""
        return self.root / "store"

    def publish(self, store: Path | None = None) -> Cost:
        """Publish what lies in the live cache."""
        into = store or self.store
        into.mkdir(exist_ok=True)
        values = {"live_cache": str(self.live), "facts": facts(), "attempt": "bench", "settle_s": 0.0}
        return apart(PublishRequest(store=str(into), **values))  # type: ignore[arg-type]

    def restore(self, store: Path | None = None, environment: Mapping[str, str] | None = None) -> Cost:
        """Restore into a staging area, which is removed."""
        number = next(self.attempts)
        staging = self.root / "staged"
        request = RestoreRequest(
            store=str(store or self.store),
            live_cache=str(self.live),
            facts=facts(),
            attempt=f"{number}-1-{number:08x}",
            staging=str(staging),
        )
        cost = apart(request, environment)
        shutil.rmtree(staging)
        return cost


def against_tar(part: str, place: Place, repeat: int) -> list[Figure]:
    """Restore and unpack the same files in turns, on the filesystem of `place`."""
    size = cache_tree.fill(place.live)
    archive = place.root / "tree.tar.zst"
    full = place.publish()
    subprocess.run(["tar", f"-Izstd -{TAR_LEVEL}", "-cf", str(archive), "-C", str(place.live), "."], check=True)
    shutil.rmtree(place.live)
    place.live.mkdir()
    ours, theirs = list[Cost](), list[float]()
    out = place.root / "out"
    for _ in range(repeat):
        ours.append(place.restore())
        theirs.append(timed(["tar", "--zstd", "-xf", str(archive), "-C", str(out)], out))
    restoring, unpacking = median([each.seconds for each in ours]), median(theirs)
    ratios = [each.seconds / tar for each, tar in zip(ours, theirs, strict=True)]
    note = f"median of {repeat} in turns, 20,016 files, {size / 1e9:.2f} GB"
    return [
        Figure(part, "restore, every byte checked", restoring, "s", None, note),
        Figure(part, "`tar --zstd -xf`", unpacking, "s", None, note),
        Figure(part, "restore as a multiple of tar", median(ratios), "×", 1.0, "median of the pairs"),
        Figure(part, "worker with its processes, peak", max(each.worker for each in ours) / MIB, "MiB", 160, note),
        Figure(part, "calling process, peak", max(each.client for each in ours) / MIB, "MiB", None, note),
        Figure(part, "longest pause of the caller's event loop", 1e3 * max(e.pause_s for e in ours), "ms", 50, note),
        Figure(part, "full publish, low priority", full.seconds, "s", None, "once"),
        Figure(part, "publishing worker, peak", full.worker / MIB, "MiB", 160, "once"),
        Figure(part, "packed, as a multiple of `zstd -3`", full.packed / archive.stat().st_size, "×", None, "once"),
    ]


def against_copies(place: Place, shim: Path) -> list[Figure]:
    """Restore from a store with a delay on every operation, and copy the unpacked tree from the same."""
    cache_tree.fill(place.live)
    place.publish()
    tree = place.live.rename(place.root / "tree")
    place.live.mkdir()
    slow = {"LD_PRELOAD": str(shim), "SLOW_US": str(DELAY_US)}
    note = f"once, {DELAY_US / 1000:g} ms more for each operation"
    part = "slow volume"
    ours = place.restore(environment={**slow, "SLOW_ROOT": str(place.store)}).seconds
    found = [Figure(part, "restore", ours, "s", None, note)]
    out = place.root / "out"
    for name, command in (
        ("cp -a", ["cp", "-a", f"{tree}/.", str(out)]),
        ("rsync -a", ["rsync", "-a", f"{tree}/", str(out)]),
    ):
        if shutil.which(command[0]) is None:
            print(f"{name} is not installed and was not measured")
            continue
        copying = timed(command, out, {**slow, "SLOW_ROOT": str(tree)})
        found.append(Figure(part, f"`{name}` of the unpacked tree", copying, "s", None, note))
        found.append(Figure(part, f"restore as a part of `{name}`", ours / copying, "×", 1 / 3, note))
    return found


def deltas(place: Place, repeat: int) -> list[Figure]:
    """Publish 1 GB, then one per cent more of it, several times; each full publish goes into a store of its own."""
    part = "1 % delta"
    cache_tree.fill(place.live)
    fulls, small = list[Cost](), list[Cost]()
    for number in range(repeat):
        store = place.root / f"store{number}"
        fulls.append(place.publish(store))
        first = 10_000 * (number + 1)
        more = cache_tree.fill(place.live, cache_tree.KERNELS // 100, 0, first=first)
        large = place.live / "deep_gemm" / "cache" / f"kernel.more{first}"
        large.mkdir()
        rest = cache_tree.LARGE * cache_tree.LARGE_BYTES // 100
        (large / "kernel.cubin").write_bytes(os.urandom(rest))
        small.append(place.publish(store))
        shutil.rmtree(store)
    note = f"median of {repeat}, {cache_tree.KERNELS * 5 // 100 + 1} files, {(more + rest) / 1e6:.1f} MB"
    seconds = [one.seconds / full.seconds for one, full in zip(small, fulls, strict=True)]
    computed = [one.cpu_s / full.cpu_s for one, full in zip(small, fulls, strict=True)]
    packed = [one.packed / full.packed for one, full in zip(small, fulls, strict=True)]
    return [
        Figure(part, "full publish", median([each.seconds for each in fulls]), "s", None, note),
        Figure(part, "publish of the delta", median([each.seconds for each in small]), "s", None, note),
        Figure(part, "full publish, CPU", median([each.cpu_s for each in fulls]), "CPU s", None, note),
        Figure(part, "publish of the delta, CPU", median([each.cpu_s for each in small]), "CPU s", None, note),
        Figure(part, "delta, seconds", 100 * median(seconds), "% of full", 5, note),
        Figure(part, "delta, CPU seconds", 100 * median(computed), "% of full", 5, note),
        Figure(part, "delta, bytes", 100 * median(packed), "% of full", 5, note),
    ]


def sizes(place: Place, counts: list[int]) -> list[Figure]:
    """Publish and restore trees of more and more small files: does time grow with them, and memory how far?"""
    found = list[Figure]()
    for count in counts:
        size = cache_tree.fill(place.live, count // cache_tree.FILES_OF_KERNEL, 0, scale=1 / 32)
        published = place.publish()
        shutil.rmtree(place.live)
        place.live.mkdir()
        restored = place.restore()
        note = f"once, {size / 1e6:.0f} MB"
        for name, cost in (("restore", restored), ("publish", published)):
            part = f"{count:,} files, {name}"
            found += [
                Figure(part, "time", cost.seconds, "s", None, note),
                Figure(part, "CPU", cost.cpu_s, "CPU s", None, note),
                Figure(part, "time of 1,000 files", 1e6 * cost.seconds / count, "ms", None, note),
                Figure(part, "worker with its processes, peak", cost.worker / MIB, "MiB", 160, note),
                Figure(part, "calling process, peak", cost.client / MIB, "MiB", None, note),
            ]
        for folder in (place.live, place.store):
            shutil.rmtree(folder)
    return found


def with_byte_code(folder: Path) -> None:
    """Let workers load byte code as it is installed: a checkout may have none, and compiling it is no part of their work."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "byte code")
    place = Place(folder / "first")
    cache_tree.fill(place.live, kernels=10, large=0)
    place.publish()
    place.restore()


def timed(command: list[str], into: Path, environment: Mapping[str, str] | None = None) -> float:
    """Give the seconds that a command takes that fills a folder, which is removed."""
    into.mkdir()
    began = time.monotonic()
    subprocess.run(command, check=True, env={**os.environ, **(environment or {})})
    seconds = time.monotonic() - began
    shutil.rmtree(into)
    return seconds


def compiled(folder: Path) -> Path:
    """Compile the library that makes files slow."""
    shim = folder / "slow_files.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(shim), str(SHIM), "-ldl"], check=True)
    return shim


def main() -> None:
    """Print the figures as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repeat", type=int, default=5, help="how often each is done (default 5)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {', '.join(PARTS)} (default all)")
    parser.add_argument("--files", default=",".join(map(str, SIZES)), help="file counts of the part sizes")
    given = parser.parse_args()
    chosen = given.only.split(",")
    if not set(chosen) <= set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}")
    for tool in ("tar", "zstd", "cc", "cp"):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is needed to compare with; install it")
    counts = [int(one) for one in given.files.split(",")]
    parts: dict[str, Callable[[Place], list[Figure]]] = {
        "disk": lambda place: against_tar("1 GB on disk", place, given.repeat),
        "memory": lambda place: against_tar("1 GB on tmpfs", place, given.repeat),
        "slow": lambda place: against_copies(place, compiled(place.root)),
        "delta": lambda place: deltas(place, given.repeat),
        "sizes": lambda place: sizes(place, counts),
    }
    before, figures = machine(), list[Figure]()
    with tempfile.TemporaryDirectory(prefix="warmup-bench-") as code:
        with_byte_code(Path(code))
        for name in chosen:
            # Only the comparison on a disk is one of disks; the others measure what is done to it.
            where = None if name == "disk" else "/dev/shm"
            with tempfile.TemporaryDirectory(prefix="warmup-bench-", dir=where) as folder:
                new = parts[name](Place(Path(folder)))
            print(table(new), flush=True)
            figures += new
    print(f"\n`python -m tests.bench.bench_store`; {before}.")
    if given.json:
        save(given.json, figures)


if __name__ == "__main__":
    main()
