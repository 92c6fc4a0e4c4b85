"""A small live cache shaped like a real one, on a real disk: kernels of several families, and what must not travel.

No engine is run for it; its files only look like what compilers leave.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

OLD_NS = 1_700_000_000_123_456_789


def put(path: Path, data: bytes | str, mtime_ns: int = OLD_NS, mode: int = 0o644) -> Path:
    """Write a file with a modification time (ns) and a mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    path.chmod(mode)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return path


def triton_kernel(live: Path, name: str, content: bytes = b"cubin", within: str = "triton") -> Path:
    """Add a Triton kernel with its group file, which names its children by absolute path."""
    folder = live / within / name
    children = {f"k.{kind}": str(folder / f"k.{kind}") for kind in ("cubin", "json")}
    put(folder / "k.cubin", content + name.encode())
    put(folder / "k.json", json.dumps({"name": name}))
    put(folder / "__grp__k.json", json.dumps({"child_paths": children}))
    return folder


def deep_gemm_kernel(live: Path, name: str, cubin: bytes = b"cubin") -> Path:
    """Add a DeepGEMM kernel: source and cubin."""
    folder = live / "deep_gemm" / "cache" / f"kernel.{name}"
    put(folder / "kernel.cu", f"// {name}")
    put(folder / "kernel.cubin", cubin)
    return folder


def flashinfer_module(live: Path, name: str) -> Path:
    """Add a FlashInfer module with ninja's state, as dot-files, and its generated source."""
    base = live / "flashinfer/.cache/flashinfer/0.7.2/90a"
    folder = base / "cached_ops" / name
    put(base / "generated" / name / f"{name}.cu", f"// {name}")
    put(folder / "build.ninja", f"build {name}.so")
    put(folder / f"{name}.cuda.o", b"object" + name.encode())
    put(folder / f"{name}.so", b"library" + name.encode(), mode=0o755)
    put(folder / ".ninja_log", f"# ninja log v6\n1\t2\t3\t{name}.cuda.o\tab\n1\t2\t3\t{name}/{name}.so\tcd\n")
    put(folder / ".ninja_deps", b"deps")
    return folder


def inductor_kernel(live: Path, name: str) -> Path:
    """Add a CPU kernel of Inductor."""
    put(live / "inductor" / name[:2] / f"{name}.cpp", f"// {name}")
    return put(live / "inductor" / name[:2] / f"{name}.so", b"so " + name.encode(), mode=0o755)


def link(path: Path, target: str) -> None:
    """Add a link that is old enough to be no longer at work."""
    path.symlink_to(target)
    os.utime(path, ns=(OLD_NS, OLD_NS), follow_symlinks=False)


def fill(live: Path, tag: str = "a") -> None:
    """Fill a live cache: two kernels of each family, a link, and files that must never travel."""
    for number in (1, 2):
        triton_kernel(live, f"TRI{tag}{number}")
        deep_gemm_kernel(live, f"gemm.{tag}{number}")
        inductor_kernel(live, f"c{tag}{number}kernel")
    flashinfer_module(live, f"batch_{tag}")
    put(live / "vllm/modelinfos/Qwen3.json", '{"arch": "Qwen3"}')
    put(live / "vllm/torch_compile_cache/torch_aot_compile/abc/rank_0_0/model", b"aot " * 1000)
    put(live / "flashinfer_autotune/0.7.2/90/abc/autotune_configs.json", "{}")
    link(live / "inductor" / f"c{tag}" / "current.so", f"c{tag}1kernel.so")
    put(live / "vllm/gpu_p2p_access_cache_for_0,1.json", "{}")
    put(live / "inductor/locks/x.lock", b"")
    put(live / "triton/tmp.pid_1_ab/k.cubin", b"half")
    put(live / "vllm/torch_compile_cache/torch_aot_compile/abc/rank_0_0/model.17.tmp", b"half")
    put(live / "flashinfer/.cache/flashinfer/0.7.2/90a/flashinfer_jit.log", b"log")


def facts(**changes: Any) -> dict[str, Any]:
    """Return facts like the launcher's; keyword arguments replace top-level facts."""
    found: dict[str, Any] = {
        "format": 1,
        "attempt": "1-1-aaaaaaaa",
        "argv": ["/usr/local/bin/vllm", "serve", "/models/q", "--max-model-len", "2048", "--port", "8000"],
        "environment": {"VLLM_USE_AOT_COMPILE": "0", "VLLM_HOST_IP": "10.0.0.7"},
        "python": {"version": "3.12.3", "prefix": "/usr", "abi": "cpython-312"},
        "packages": {
            "vllm": {"version": "0.33.0", "record": "ab" * 32},
            "torch": {"version": "2.14.0", "record": None},
        },
        "toolchain": {
            "nvcc": "13.0",
            "nvcc_path": "/usr/local/cuda/bin/nvcc",
            "cuda_home": "/usr/local/cuda",
            "cxx": "13",
        },
        "driver": {"version": "580.159"},
        "gpus": [{"name": "NVIDIA H200", "index": 0}],
        "cpu": {"arch": "x86_64", "model": "Xeon", "flags": "00112233"},
        "libc": "glibc 2.39",
        "uid": 0,
        "gid": 0,
        "home": "/root",
        "cwd": "/",
        "world": {"node_rank": 0},
    }
    return {**found, **changes}


def tree(root: Path) -> dict[str, tuple[bytes | str, int, int]]:
    """Describe every file below `root`: content (or a link's target), modification time in ns, mode."""
    found: dict[str, tuple[bytes | str, int, int]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            found[str(path.relative_to(root))] = (os.readlink(path), status.st_mtime_ns, 0)
        elif path.is_file():
            found[str(path.relative_to(root))] = (path.read_bytes(), status.st_mtime_ns, status.st_mode & 0o777)
    return found
