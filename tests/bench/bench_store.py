"""What a restore costs beside unpacking the same files with `tar --zstd -xf`, which checks nothing: a first look.

Run it by hand, `python -m tests.bench.bench_store`; nothing here is a test, and no number is asserted. Both read from
the page cache and write to the same disk, in turns.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sidecar.caches.client import CacheClient
from sidecar.caches.messages import PublishRequest, RestoreRequest
from tests.bench import cache_tree
from tests.bench.figures import Figure, machine, save, table
from tests.bench.probing import median
from tests.bench.store_calls import publish, restore
from tests.fakes.live_cache import facts

MIB = 1 << 20
PART = "restore of 1 GB"
#: The level at which the store packs is not known here; this is what `zstd` does by itself.
TAR_LEVEL = 3


def compare(root: Path, repeat: int) -> list[Figure]:
    """Publish a tree, then unpack it in turns by a restore, through its worker, and by tar."""
    live, store, archive = root / "live", root / "store", root / "tree.tar.zst"
    store.mkdir()
    size = cache_tree.fill(live)
    caches = CacheClient(time.monotonic)
    request = PublishRequest(store=str(store), live_cache=str(live), facts=facts(), attempt="bench", settle_s=0)
    publishing, _ = timed(lambda: publish(caches, request))
    subprocess.run(["tar", f"-Izstd -{TAR_LEVEL}", "-cf", str(archive), "-C", str(live), "."], check=True)
    shutil.rmtree(live)
    restores, unpacks = list[tuple[float, float]](), list[tuple[float, float]]()
    for number in range(repeat):
        attempt = f"{number + 1}-1-{number:08x}"
        wish = RestoreRequest(store=str(store), live_cache=str(live), facts=facts(), attempt=attempt)
        for done, work in ((restores, partial(restore, caches, wish)), (unpacks, partial(unpack, archive, live))):
            live.mkdir()
            done.append(timed(work))
            shutil.rmtree(live)
    ours, theirs = (median([wall for wall, _ in each]) for each in (restores, unpacks))
    packed = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    note = f"median of {repeat}, {size / MIB:.0f} MiB"
    return [
        Figure(PART, "through the worker, every byte checked", ours, "s", None, note),
        Figure(PART, "the same, CPU", median([cpu for _, cpu in restores]), "CPU s", None, note),
        Figure(PART, "`tar --zstd -xf`", theirs, "s", None, note),
        Figure(PART, "the same, CPU", median([cpu for _, cpu in unpacks]), "CPU s", None, note),
        Figure(PART, "restore as a multiple of tar", ours / theirs, "×", None, note),
        Figure("publish of 1 GB", "through the worker, low priority", publishing, "s", None, "once"),
        Figure("publish of 1 GB", "bytes in the store", packed / MIB, "MiB"),
        Figure("publish of 1 GB", f"bytes of `zstd -{TAR_LEVEL}`", archive.stat().st_size / MIB, "MiB"),
    ]


def unpack(archive: Path, into: Path) -> None:
    """Unpack an archive as an operator would by hand."""
    subprocess.run(["tar", "--zstd", "-xf", str(archive), "-C", str(into)], check=True)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Give the seconds that something takes, and the CPU seconds of the processes it starts and reaps."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def main() -> None:
    """Print the figures as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repeat", type=int, default=5, help="how often each is done (default 5)")
    given = parser.parse_args()
    for tool in ("tar", "zstd"):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is needed to compare with; install it")
    before = machine()
    with tempfile.TemporaryDirectory(prefix="warmup-bench-") as folder:
        figures = compare(Path(folder), given.repeat)
    print(table(figures))
    print(f"\n`python -m tests.bench.bench_store`; {before}.")
    if given.json:
        save(given.json, figures)


if __name__ == "__main__":
    main()
