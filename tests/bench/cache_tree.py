"""Live caches shaped like a Hopper pod's on a real disk: one of thousands of kernels, and one as a single model leaves it.

How it is stored and restored is not known here.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

MIB = 1 << 20
#: Triton entries of five files, and large cubins: 20,016 files, 0.96 GB.
KERNELS, TEXT_BYTES, CUBIN_BYTES = 4_000, 40 << 10, 64 << 10
LARGE, LARGE_BYTES = 8, 64 * MIB
FILES_OF_KERNEL = 5
#: What one model left on an H200 after its first traffic, 900 files and 84 MB (vLLM 0.25.1, 2026-11-29): folder, files, bytes.
#: Triton's 652 files and DeepGEMM's 100 are made as kernels; the rest as files of one size.
ON_H200 = (
    ("vllm/torch_compile_cache/torch_aot_compile/model", 52, 36_500_000),
    ("flashinfer/.cache/flashinfer/0.7.2/90a/generated/modules", 74, 28_400_000),
    ("inductor/ab", 8, 1_100_000),
    ("tvm_ffi/modules", 14, 3_000_000),
)
TRITON_ON_H200, TRITON_SCALE, DEEP_GEMM_ON_H200, DEEP_GEMM_BYTES = 130, 0.85, 50, 56_000


def fill(live: Path, kernels: int = KERNELS, large: int = LARGE, scale: float = 1.0, first: int = 0) -> int:
    """Write the tree under a live cache; give its bytes. `scale` makes kernels smaller, `first` numbers them on."""
    phrase = random.Random(7).randbytes(4096)
    cubin, text = int(CUBIN_BYTES * scale), int(TEXT_BYTES // 2 * scale)
    written = 0
    for number in range(first, first + kernels):
        folder = live / "triton" / f"{number:052X}"
        names = [f"k.{kind}" for kind in ("cubin", "ptx", "ttgir", "json")]
        children = {name: str(folder / name) for name in names}
        written += _write(folder / "k.cubin", _content(cubin, phrase))
        for name in names[1:3]:
            written += _write(folder / name, _content(text, phrase))
        written += _write(folder / "k.json", json.dumps({"name": "k", "hash": f"{number:x}"}).encode())
        written += _write(folder / "__grp__k.json", json.dumps({"child_paths": children}).encode())
    for number in range(first, first + large):
        written += _deep_gemm(live, number, _content(LARGE_BYTES, phrase))
    return written


def fill_as_on_h200(live: Path) -> int:
    """Write what one model leaves under a live cache; give its bytes."""
    phrase = random.Random(7).randbytes(4096)
    written = fill(live, TRITON_ON_H200, 0, TRITON_SCALE)
    for number in range(DEEP_GEMM_ON_H200):
        written += _deep_gemm(live, number, _content(DEEP_GEMM_BYTES, phrase))
    for folder, files, size in ON_H200:
        for number in range(files):
            written += _write(live / folder / f"{number:02}.bin", _content(size // files, phrase))
    return written


def _deep_gemm(live: Path, number: int, cubin: bytes) -> int:
    folder = live / "deep_gemm" / "cache" / f"kernel.{number:x}"
    return _write(folder / "kernel.cu", b"// large") + _write(folder / "kernel.cubin", cubin)


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
