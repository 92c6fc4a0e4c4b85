"""A live cache of about 1 GB on a real disk: thousands of small Triton kernels and some large DeepGEMM ones.

How it is stored and restored is not known here.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

MIB = 1 << 20
#: 2,000 Triton entries of five files and twelve large cubins: shaped like a Hopper pod's cache, not copied from one.
KERNELS, TEXT_BYTES, CUBIN_BYTES = 2_000, 40 << 10, 64 << 10
LARGE, LARGE_BYTES = 12, 64 * MIB


def fill(live: Path) -> int:
    """Write the tree under a live cache; give its bytes."""
    draw = random.Random(7)
    phrase = draw.randbytes(4096)
    written = 0
    for number in range(KERNELS):
        folder = live / "triton" / f"{number:052X}"
        names = [f"k.{kind}" for kind in ("cubin", "ptx", "ttgir", "json")]
        children = {name: str(folder / name) for name in names}
        written += _write(folder / "k.cubin", _content(CUBIN_BYTES, phrase))
        for name in names[1:3]:
            written += _write(folder / name, _content(TEXT_BYTES // 2, phrase))
        written += _write(folder / "k.json", json.dumps({"name": "k", "hash": f"{number:x}"}).encode())
        written += _write(folder / "__grp__k.json", json.dumps({"child_paths": children}).encode())
    for number in range(LARGE):
        folder = live / "deep_gemm" / "cache" / f"kernel.{number:x}"
        written += _write(folder / "kernel.cu", b"// large")
        written += _write(folder / "kernel.cubin", _content(LARGE_BYTES, phrase))
    return written


def _content(size: int, phrase: bytes) -> bytes:
    """Make bytes that compress to about two fifths, as machine code does: noise and a phrase that comes back."""
    piece = 1640
    pieces = -(-size // 4096)
    noise = os.urandom(piece * pieces)
    rest = phrase[: 4096 - piece]
    return b"".join(noise[index * piece : (index + 1) * piece] + rest for index in range(pieces))[:size]


def _write(path: Path, data: bytes) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data)
