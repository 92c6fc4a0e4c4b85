"""How long cleaning up a store of ten thousand generations takes, and the memory it needs, against issue 9's reach.

Run it by hand, `python -m tests.bench.bench_retention [FOLDER]`; nothing here is a test, and no number is asserted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sidecar.caches import manifest as manifests
from sidecar.caches.manifest import Manifest, Pack, generation_name
from tests.bench.figures import Figure, machine, table

KEYS, GENERATIONS = 200, 50
PACKS = 5
ELAPSED_S, PEAK_MIB = 10.0, 100.0
#: The command itself, with its peak memory on the last line.
COMMAND = (
    "import resource, sys; from sidecar.cli import main\n"
    "try: main()\n"
    "except SystemExit: pass\n"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


def fill(place: Path) -> None:
    """Make the generations of each key, every one with an archive of its own and those of the four before it."""
    then = time.time() - 30 * 86400
    (place / "v1/packs").mkdir(parents=True)
    for number in range(KEYS):
        key, packs = f"{number:032x}", list[Pack]()
        for sequence in range(1, GENERATIONS + 1):
            digest = hashlib.sha256(f"{key}/{sequence}".encode()).hexdigest()
            (place / f"v1/packs/{digest}.tar.zst").write_bytes(b"0123456789")
            packs = [*packs[1 - PACKS :], Pack(digest=digest, bytes=10, unpacked=100)]
            name = generation_name("exact", key, sequence)
            made = Manifest(
                scope="exact",
                key=key,
                name=name,
                parent=None,
                created_unix_s=then,
                created_by="bench",
                packs=tuple(packs),
            )
            folder = place / f"v1/exact/{key}/generations/{name}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_bytes(b"".join(manifests.lines(made)))


def cleaned(place: Path, *flags: str) -> tuple[float, float, int]:
    """Run the command; give its seconds, its peak in MiB, and how many generations went."""
    words = ["store", "gc", "--json", "--store-keep-count", "3", "--store", str(place), *flags]
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, check=True)
    seconds = time.monotonic() - began
    said, _, peak = done.stdout.rstrip().rpartition("\n")
    return seconds, int(peak) / 1024, len(json.loads(said)["generations"])


def main() -> None:
    """Measure a dry run, the run itself, and one that finds nothing to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="where the store is made; default: the temporary directory")
    figures = []
    with tempfile.TemporaryDirectory(dir=parser.parse_args().folder) as folder:
        fill(Path(folder))
        for name, flags in (("dry run", ["--dry-run"]), ("run", []), ("run with nothing to do", [])):
            seconds, peak, gone = cleaned(Path(folder), *flags)
            note = f"{gone} of {KEYS * GENERATIONS} generations go"
            figures.append(Figure("store gc", f"{name}, whole command", seconds, "s", ELAPSED_S, note))
            figures.append(Figure("store gc", f"{name}, peak memory", peak, "MiB", PEAK_MIB, note))
    print(machine())
    print(table(figures))


if __name__ == "__main__":
    main()
