"""Two ways to poison a live cache with kernels that are whole by every digest: code that can't run, and code that computes
something else.

Nothing is started or measured here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

NATIVE = (".cubin", ".so")
ASSEMBLE_S = 120.0
#: log2(e) as PTX writes it: Triton makes every exp() of it, so that of SiLU as well. Half of it takes its place.
CHANGES = ((re.compile(r"0f3FB8AA3B"), "0f3F38AA3B"), (re.compile(r"0fBFB8AA3B"), "0fBF38AA3B"))
TARGET = re.compile(r"^\.target\s+(\w+)", re.MULTILINE)


def make_unrunnable(live: Path) -> int:
    """Overwrite the middle half of every kernel's code; give how many."""
    spoilt = [path for path in live.rglob("*") if path.suffix in NATIVE and path.is_file()]
    for path in spoilt:
        code = bytearray(path.read_bytes())
        first, last = len(code) // 4, len(code) // 4 * 3
        code[first:last] = b"\xff" * (last - first)
        path.write_bytes(code)
    return len(spoilt)


def make_wrong(live: Path, suffix: str = ".cubin") -> list[str]:
    """Assemble Triton kernels anew with another constant in their exp(); give the names of those that were changed.

    Raises FileNotFoundError without `ptxas`, and CalledProcessError when it refuses a kernel.
    """
    changed = []
    for source in sorted(live.rglob("*.ptx")):
        code = source.with_suffix(suffix)
        text = wrong(source.read_text(encoding="utf-8"))
        target = TARGET.search(text or "")
        if text is None or target is None or not code.is_file():
            continue
        source.write_text(text, encoding="utf-8")
        subprocess.run(
            [assembler(), f"--gpu-name={target[1]}", str(source), "-o", str(code)],
            check=True, capture_output=True, timeout=ASSEMBLE_S,
        )  # fmt: skip
        changed.append(source.stem)
    return changed


def wrong(text: str) -> str | None:
    """Change the constants of PTX; None where it has none of them."""
    changed = text
    for pattern, other in CHANGES:
        changed = pattern.sub(other, changed)
    return None if changed == text else changed


def assembler() -> str:
    """Find ptxas. Raises FileNotFoundError."""
    for path in (shutil.which("ptxas"), "/usr/local/cuda/bin/ptxas"):
        if path and Path(path).is_file():
            return path
    raise FileNotFoundError("ptxas is not on PATH nor in /usr/local/cuda/bin; it comes with the CUDA toolkit")
