"""What a restore from a bucket costs, as a multiple of the bare parallel download of the same bytes in one run.

Run it by hand, `python -m tests.bench.bench_bucket`; nothing here is a test, and no number is asserted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import obstore

from sidecar.caches.messages import PublishRequest, RestoreRequest
from tests.bench import cache_tree
from tests.bench.figures import Figure, machine, save, table
from tests.bench.probing import median
from tests.bench.store_calls import Cost, apart
from tests.fakes.live_cache import facts
from tests.object_server import ObjectServer, served

MIB = 1 << 20
BUCKET = "warm-bench"
#: One client of a large public bucket gets some 100 MB/s for each connection and little more than 1 GB/s in all; a
#: node with 10 Gbit/s shared by several pods a part of that. Bytes a second; 0: as fast as loopback.
RATES = (0, 125 * 10**6, 60 * 10**6, 30 * 10**6)
#: The trees that are restored, by a word for them.
SHAPES: Mapping[str, Callable[[Path], int]] = {
    "many kernels": cache_tree.fill,
    "as on an H200": cache_tree.fill_as_on_h200,
}
#: The same requests as a restore's (`sidecar.caches.landing`), and nothing done with what comes.
DOWNLOAD = """
import sys
from concurrent.futures import ThreadPoolExecutor
import obstore
from tests.object_server import ObjectServer
from sidecar.caches.landing import AT_A_TIME, PART
client = ObjectServer(sys.argv[1]).client(sys.argv[2])
found = [(one["path"], one["size"]) for batch in obstore.list(client) for one in batch if "/packs/" in one["path"]]
parts = [(name, start, min(PART, size - start)) for name, size in found for start in range(0, size, PART)]
with ThreadPoolExecutor(AT_A_TIME) as pool:
    sizes = pool.map(lambda one: len(obstore.get_range(client, one[0], start=one[1], length=one[2])), parts)
    assert sum(sizes) == sum(size for _, size in found)
"""


def relay(listener: socket.socket, server: tuple[str, int], rate: int) -> None:
    """Pass connections on to the server, answers no faster than `rate` bytes a second in all."""
    lock = threading.Lock()
    free_at = [time.monotonic()]

    def pump(source: socket.socket, target: socket.socket, limited: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 18):
                if limited:
                    with lock:
                        free_at[0] = max(free_at[0], time.monotonic()) + len(data) / rate
                        pause = free_at[0] - time.monotonic()
                    time.sleep(max(0.0, pause))
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    while True:
        near, _ = listener.accept()
        far = socket.create_connection(server)
        threading.Thread(target=pump, args=(near, far, False), daemon=True).start()
        threading.Thread(target=pump, args=(far, near, True), daemon=True).start()


def relayed(server: ObjectServer, rate: int) -> tuple[ObjectServer, multiprocessing.Process]:
    """Start a relay in a process of its own."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    host, _, port = server.endpoint.removeprefix("http://").partition(":")
    process = multiprocessing.Process(target=relay, args=(listener, (host, int(port)), rate), daemon=True)
    process.start()
    return ObjectServer(f"http://127.0.0.1:{listener.getsockname()[1]}"), process


def downloaded(server: ObjectServer, bucket: str) -> tuple[float, float]:
    """Give seconds and CPU seconds of a bare download, the start of its process left out by a second one without it."""
    spent = []
    for code in (DOWNLOAD, DOWNLOAD.partition("found =")[0]):
        began, cpu = time.monotonic(), cpu_of_children()
        subprocess.run([sys.executable, "-c", code, server.endpoint, bucket], check=True)
        spent.append((time.monotonic() - began, cpu_of_children() - cpu))
    return spent[0][0] - spent[1][0], spent[0][1] - spent[1][1]


def cpu_of_children() -> float:
    """Give the CPU seconds of the processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def restored(root: Path, server: ObjectServer, number: int, store: str, cache: Path | None = None) -> Cost:
    """Restore into a staging area, which is removed."""
    staging = root / "staged"
    request = RestoreRequest(
        store=store,
        live_cache=str(root / "live"),
        facts=facts(),
        attempt=f"{number}-1-{number:08x}",
        staging=str(staging),
        pack_cache=str(cache or ""),
        pack_cache_bytes=1 << 40,
    )
    cost = apart(request, {**os.environ, **server.variables()})
    shutil.rmtree(staging)
    return cost


def measured(root: Path, server: ObjectServer, bucket: str, part: str, repeat: int) -> list[Figure]:
    """Restore and download in turns."""
    ours, bare = list[Cost](), list[tuple[float, float]]()
    for number in range(repeat):
        bare.append(downloaded(server, bucket))
        ours.append(restored(root, server, number + 1, f"s3://{bucket}"))
    note = f"median of {repeat} in turns"
    ratios = [each.seconds / alone for each, (alone, _) in zip(ours, bare, strict=True)]
    return [
        Figure(part, "restore, every byte checked", median([each.seconds for each in ours]), "s", None, note),
        Figure(part, "bare parallel download", median([seconds for seconds, _ in bare]), "s", None, note),
        Figure(part, "restore, CPU of all its processes", median([each.cpu_s for each in ours]), "s", None, note),
        Figure(part, "bare parallel download, CPU", median([cpu for _, cpu in bare]), "s", None, note),
        Figure(part, "restore as a multiple of the download", median(ratios), "×", 1.3, "median of the pairs"),
        Figure(part, "worker with its processes, peak", max(each.worker for each in ours) / MIB, "MiB", 256, note),
        Figure(part, "calling process, peak", max(each.client for each in ours) / MIB, "MiB", None, note),
    ]


def on_disk(root: Path, server: ObjectServer, bucket: str, part: str, repeat: int) -> Figure:
    """Restore the same from a directory: what is left of a restore's CPU seconds without a bucket."""
    client = server.client(bucket)
    folder = root / "directory" / bucket
    for batch in obstore.list(client):
        for one in batch:
            path = folder / str(one["path"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(obstore.get(client, str(one["path"])).bytes()))
    costs = [restored(root, server, 200 + number, str(folder)).cpu_s for number in range(repeat)]
    return Figure(part, "restore, CPU of all its processes", median(costs), "s", None, f"median of {repeat}")


def with_byte_code(root: Path, server: ObjectServer) -> None:
    """Let workers load byte code as it is installed: a checkout may have none, and compiling it is no part of their work."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(root / "byte code")
    server.make(BUCKET)
    cache_tree.fill(root / "live", kernels=10, large=0)
    published(root, BUCKET)
    restored(root, server, 1, f"s3://{BUCKET}", root / "node" / BUCKET)


def published(root: Path, bucket: str) -> Cost:
    """Publish the live cache, and make it an empty one."""
    live = root / "live"
    cost = apart(
        PublishRequest(store=f"s3://{bucket}", live_cache=str(live), facts=facts(), attempt="bench", settle_s=0.0)
    )
    shutil.rmtree(live)
    live.mkdir()
    return cost


def measure(root: Path, repeat: int) -> list[Figure]:
    """Measure every shape."""
    found = list[Figure]()
    with served(root / "server") as server:
        os.environ |= server.variables()
        with_byte_code(root, server)
        for number, (shape, fill) in enumerate(SHAPES.items()):
            found += _measured_shape(root, server, f"{BUCKET}-{number}", repeat, shape, fill)
    return found


def _measured_shape(
    root: Path, server: ObjectServer, bucket: str, repeat: int, shape: str, fill: Callable[[Path], int]
) -> list[Figure]:
    """Publish once, and restore over ways of several speeds, then from a directory and from the cache of the node."""
    server.make(bucket)
    size = fill(root / "live")
    files = sum(len(names) for _, _, names in os.walk(root / "live"))
    full, note = published(root, bucket), f"once; {files:,} files, {size / 1e6:.0f} MB unpacked"
    found = [
        Figure(f"{shape}, bucket", "full publish, low priority", full.seconds, "s", None, note),
        Figure(f"{shape}, bucket", "publishing worker, peak", full.worker / MIB, "MiB", 256, note),
        Figure(f"{shape}, bucket", "packed", full.packed / 1e6, "MB", None, note),
    ]
    for rate in RATES:
        near, process = relayed(server, rate) if rate else (server, None)
        way = f"bucket at {rate // 10**6} MB/s" if rate else "bucket on loopback"
        found += measured(root, near, bucket, f"{shape}, {way}", repeat)
        if process is not None:
            process.kill()
    found.append(on_disk(root, server, bucket, f"{shape}, directory", repeat))
    cache = root / "node" / bucket
    restored(root, server, 100, f"s3://{bucket}", cache)
    again = [restored(root, server, 101 + number, f"s3://{bucket}", cache).seconds for number in range(repeat)]
    found.append(Figure(f"{shape}, packs on the node", "restore", median(again), "s", None, f"median of {repeat}"))
    return found


def main() -> None:
    """Print the figures as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--repeat", type=int, default=3, help="how often each is done (default 3)")
    given = parser.parse_args()
    before = machine()
    with tempfile.TemporaryDirectory(prefix="warmup-bench-", dir="/dev/shm") as folder:
        figures = measure(Path(folder), given.repeat)
    print(table(figures))
    print(f"\n`python -m tests.bench.bench_bucket`; {before}.")
    if given.json:
        save(given.json, figures)


if __name__ == "__main__":
    main()
