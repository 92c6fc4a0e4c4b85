"""The table of cache families: where each lies, what moves it, how far it may travel, what in it is a kernel.

Only declarations and the questions they answer; no file is opened here. Sources name the file of vLLM 0.33.0 (or
of the package itself, in the version that vLLM pins) in which the path, variable or layout was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

Scope = Literal["exact", "toolchain", "never"]
Validity = Literal["none", "triton", "cubin", "ninja"]

# Locks and unfinished files of every compiler in the table: filelock, uuid and pid temporary names, NFS leftovers.
NEVER_STORED = (
    "**/*.lock",
    "**/locks/**",
    "**/tmp/**",
    "**/tmp.*/**",
    "**/*.tmp",
    "**/*.tmp.*",
    "**/.staging*/**",
    "**/.nfs*",
    "**/flashinfer_jit.log",
)

# Inductor's autotuning results hold time_taken_ms: on an H200, 8 of 16 were rewritten by a restored start that
# compiled nothing. In AOT mode they lie in vLLM's directory.
TIMINGS = ("**/*.best_config",)


@dataclass(frozen=True)
class Family:
    """One kind of live cache.

    `directory` is relative to the live cache; `variables` maps an engine variable to a template in which `{live}` is
    the live cache. `unit` is a pattern whose groups name the kernel entry a file belongs to: such entries are kept,
    dropped and replaced whole. A family without it is kept or left empty as a whole. `restless` files are rewritten at
    each start with nothing in them that matters, such as timings; a change in them alone is no reason to publish.
    """

    name: str
    directory: str
    scope: Scope
    default_path: str
    variables: Mapping[str, str]
    note: str
    kernels: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    leave_out_multi_rank: tuple[str, ...] = ()
    restless: tuple[str, ...] = ()
    unit: str | None = None
    validity: Validity = "none"


FAMILIES: tuple[Family, ...] = (
    Family(
        name="inductor",
        directory="inductor",
        scope="exact",
        default_path="$TMPDIR/torchinductor_$USER",
        variables={"TORCHINDUCTOR_CACHE_DIR": "{live}/inductor"},
        kernels=("**/*.so", "**/*.cubin"),
        restless=TIMINGS,
        note="Wrappers, graphs and CPU kernels of torch.compile. vLLM's AOT mode puts them under vllm_compile instead "
        "(compilation/decorators.py:583-590). Host code is built for this CPU, so every fact must agree.",
    ),
    Family(
        name="vllm_compile",
        directory="vllm/torch_compile_cache",
        scope="exact",
        default_path="$VLLM_CACHE_ROOT/torch_compile_cache",
        variables={"VLLM_CACHE_ROOT": "{live}/vllm"},
        kernels=("**/*.so", "**/*.cubin", "torch_aot_compile/*/rank_*/model"),
        restless=TIMINGS,
        note="AOT artifacts and the compile backend's directory (compilation/decorators.py:574-594, backends.py:1086). "
        "vLLM's own key leaves out facts that matter, so every fact must agree.",
    ),
    Family(
        name="vllm_modelinfos",
        directory="vllm/modelinfos",
        scope="toolchain",
        default_path="$VLLM_CACHE_ROOT/modelinfos",
        variables={"VLLM_CACHE_ROOT": "{live}/vllm"},
        unit=r"(.*)",
        note="What vLLM learnt of its own model classes; keyed by a digest of their source.",
    ),
    Family(
        name="flashinfer_autotune",
        directory="flashinfer_autotune",
        scope="exact",
        default_path="$VLLM_CACHE_ROOT/flashinfer_autotune_cache, ~/.cache/flashinfer/autotune",
        variables={
            "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR": "{live}/flashinfer_autotune",
            "FLASHINFER_AUTOTUNE_CACHE_DIR": "{live}/flashinfer_autotune",
        },
        leave_out_multi_rank=("**/autotune_configs*.json",),
        note="Tactics chosen by timing. The per-rank files of several ranks are left out: a rank that finds its file "
        "skips collectives in which the others wait (warmup/flashinfer_autotune_cache.py:83-121).",
    ),
    Family(
        name="triton",
        directory="triton",
        scope="toolchain",
        default_path="~/.triton/cache",
        variables={"TRITON_CACHE_DIR": "{live}/triton"},
        kernels=("*/*.cubin", "*/*.hsaco"),
        unit=r"([^/]+)/",
        validity="triton",
        note="One directory per kernel; its group file holds absolute paths (Triton 3.8 runtime/cache.py:73-93).",
    ),
    Family(
        name="flashinfer",
        directory="flashinfer",
        scope="toolchain",
        default_path="~/.cache/flashinfer/<version>/<arch>",
        variables={"FLASHINFER_WORKSPACE_BASE": "{live}/flashinfer"},
        kernels=("**/cached_ops/**/*.so", "**/*_cute_dsl/*.o"),
        leave_out=("**/cubins/**",),
        unit=r"(.*/)(?:cached_ops|generated)/([^/]+)/",
        validity="ninja",
        note="Modules built by nvcc and ninja; up to date only with their modification times, ninja's logs and the "
        "same absolute paths (FlashInfer 0.7.2 jit/env.py:66-70, core.py:536-605). Downloaded cubins are not kernels.",
    ),
    Family(
        name="deep_gemm",
        directory="deep_gemm",
        scope="toolchain",
        default_path="$VLLM_CACHE_ROOT/deep_gemm",
        variables={"DG_JIT_CACHE_DIR": "{live}/deep_gemm"},
        kernels=("cache/kernel.*/kernel.cubin",),
        unit=r"(cache/[^/]+)/",
        validity="cubin",
        note="FP8 matrix products (utils/deep_gemm.py:281-285); an entry without its cubin crashes the engine.",
    ),
    Family(
        name="trtllm_dg",
        directory="trtllm_dg",
        scope="toolchain",
        default_path="~/.tensorrt_llm",
        variables={"TRTLLM_DG_CACHE_DIR": "{live}/trtllm_dg"},
        kernels=("**/*.cubin",),
        unit=r"(cache/[^/]+)/",
        validity="cubin",
        note="TensorRT-LLM's DeepGEMM inside FlashInfer, block-scaled FP8 on Hopper.",
    ),
    Family(
        name="nv",
        directory="nv",
        scope="toolchain",
        default_path="~/.nv/ComputeCache",
        variables={"CUDA_CACHE_PATH": "{live}/nv", "CUDA_CACHE_MAXSIZE": "4294967296"},
        kernels=("*/*/*",),
        note="Machine code the CUDA driver made from PTX; its index and entries belong together. The driver's default "
        "limit of 1 GiB evicts, so 4 GiB is set.",
    ),
    Family(
        name="tvm_ffi",
        directory="tvm_ffi",
        scope="toolchain",
        default_path="~/.cache/tvm-ffi",
        variables={"TVM_FFI_CACHE_DIR": "{live}/tvm_ffi"},
        kernels=("**/*.so",),
        unit=r"([^/]+)(?:/|$)",
        validity="ninja",
        note="C++ and CUDA modules built by ninja (apache-tvm-ffi 0.1.11).",
    ),
    Family(
        name="tilelang",
        directory="tilelang",
        scope="toolchain",
        default_path="~/.tilelang/cache",
        variables={"TILELANG_CACHE_DIR": "{live}/tilelang/cache", "TILELANG_TMP_DIR": "{live}/tilelang/tmp"},
        kernels=("**/kernel_lib.so",),
        unit=r"(.*)/[^/]+",
        note="One directory per kernel with a library and pickled parameters (TileLang 0.1.12).",
    ),
    Family(
        name="cute_dsl",
        directory="cute_dsl",
        scope="toolchain",
        default_path="$TMPDIR/$USER/cutlass_python_cache",
        variables={"CUTE_DSL_CACHE_DIR": "{live}/cute_dsl"},
        kernels=("**/*.mlir",),
        unit=r"(.*)",
        note="Generated MLIR. Its own version digest is empty (nvidia-cutlass-dsl 4.8.0 dsl.py:1617), so the package's "
        "version in the toolchain key is what keeps versions apart.",
    ),
    Family(
        name="fa_cute",
        directory="fa_cute",
        scope="toolchain",
        default_path="$TMPDIR/$USER/flash_attention_cute_dsl_cache",
        variables={"FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "{live}/fa_cute"},
        kernels=("**/*.o",),
        unit=r"(.*)",
        note="FlashAttention 4; written only with FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1, which is the user's choice.",
    ),
    Family(
        name="quack",
        directory="quack",
        scope="toolchain",
        default_path="$TMPDIR/$USER/quack_cache",
        variables={"QUACK_CACHE_DIR": "{live}/quack"},
        kernels=("**/*.o",),
        unit=r"(.*)",
        note="Kernels of quack-kernels 0.6.5.",
    ),
    Family(
        name="b12x",
        directory="b12x",
        scope="toolchain",
        default_path="~/.cache/b12x/compile",
        variables={"B12X_COMPILE_CACHE_DIR": "{live}/b12x"},
        kernels=("**/*.o",),
        unit=r"(.*/[^/.]+)",
        note="SM 12.0 and 12.1 kernels: an object and its JSON per key.",
    ),
    Family(
        name="humming",
        directory="humming",
        scope="toolchain",
        default_path="~/.humming",
        variables={"HUMMING_CACHE_DIR": "{live}/humming/cache", "HUMMING_TMP_DIR": "{live}/humming/tmp"},
        kernels=("**/*.cubin",),
        note="Keyed by absolute paths and modification times of its headers, so it is reused on the same image only.",
    ),
    Family(
        name="torch_ext",
        directory="torch_ext",
        scope="toolchain",
        default_path="~/.cache/torch_extensions",
        variables={"TORCH_EXTENSIONS_DIR": "{live}/torch_ext"},
        kernels=("**/*.so",),
        unit=r"(.*)/[^/]+",
        validity="ninja",
        note="torch.utils.cpp_extension: ninja builds, one directory per extension.",
    ),
    Family(
        name="torch_headers",
        directory="",
        scope="never",
        default_path="$TMPDIR/torchinductor_$USER/precompiled_headers",
        variables={},
        note="About 150 MB of precompiled C++ header, bound to the exact compiler and CPU, which g++ rebuilds in "
        "seconds and no variable but TMPDIR moves: carrying it would cost more than it saves.",
    ),
    Family(
        name="vllm_p2p",
        directory="vllm",
        scope="never",
        default_path="$VLLM_CACHE_ROOT/gpu_p2p_access_cache_for_*.json",
        variables={"VLLM_CACHE_ROOT": "{live}/vllm"},
        note="Which GPUs of this very machine reach each other, keyed by device index alone: wrong on another machine.",
    ),
    Family(
        name="vllm_assets",
        directory="vllm/assets",
        scope="never",
        default_path="$VLLM_CACHE_ROOT/assets",
        variables={"VLLM_CACHE_ROOT": "{live}/vllm"},
        note="Downloads, not kernels.",
    ),
    Family(
        name="vllm_startup_plan",
        directory="vllm/startup_plan",
        scope="never",
        default_path="$VLLM_CACHE_ROOT/startup_plan",
        variables={"VLLM_CACHE_ROOT": "{live}/vllm"},
        note="Free GPU memory as measured on one machine at one time.",
    ),
    Family(
        name="usage_stats",
        directory="",
        scope="never",
        default_path="~/.config/vllm/usage_stats.json",
        variables={},
        note="Usage statistics of one installation.",
    ),
)

BY_NAME: Mapping[str, Family] = MappingProxyType({family.name: family for family in FAMILIES})


def stored_families() -> tuple[Family, ...]:
    """List the families that may travel: every scope but `never`."""
    return tuple(family for family in FAMILIES if family.scope != "never")


def environment(live_cache: str) -> dict[str, str]:
    """Return the engine variables that put every family under the live cache. HOME and TMPDIR stay as they are."""
    root = live_cache.rstrip("/")
    return {
        name: template.replace("{live}", root) for family in FAMILIES for name, template in family.variables.items()
    }


def directories(live_cache: str) -> list[str]:
    """List the absolute directories which must exist before the engine starts, parents first."""
    root = live_cache.rstrip("/")
    found = {root}
    for value in environment(live_cache).values():
        if value.startswith(root + "/"):
            found.add(value)
    found.update(f"{root}/{family.directory}" for family in stored_families())
    return sorted(found)


def is_kernel(family: Family | str, relpath: str) -> bool:
    """Say whether a file of a family is one compiled kernel (path relative to the family's directory)."""
    known = BY_NAME[family] if isinstance(family, str) else family
    return _matches(known.kernels, relpath)


def is_left_out(family: Family, relpath: str, world_size: int = 1) -> bool:
    """Say whether a file never travels: locks, temporary names, and what the family's row leaves out."""
    if _matches(NEVER_STORED, relpath) or _matches(family.leave_out, relpath):
        return True
    return world_size > 1 and _matches(family.leave_out_multi_rank, relpath)


def is_restless(family: Family, relpath: str) -> bool:
    """Say whether a change of this file says nothing."""
    return _matches(family.restless, relpath)


def unit_of(family: Family, relpath: str) -> str | None:
    """Name the kernel entry that a file belongs to; None when the family has none, or the file is beside them."""
    if family.unit is None:
        return None
    found = _pattern(family.unit).match(relpath)
    return "".join(found.groups()) if found else None


def _matches(globs: Iterable[str], relpath: str) -> bool:
    joined = _joined(tuple(globs))
    return joined is not None and joined.fullmatch(relpath) is not None


@cache
def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(source, re.DOTALL)


@cache
def _joined(globs: tuple[str, ...]) -> re.Pattern[str] | None:
    if not globs:
        return None
    return re.compile("|".join(f"(?:{_translated(one)})" for one in globs), re.DOTALL)


def _translated(glob: str) -> str:
    """Turn a glob into a pattern: `**/` any folders, a last `**` anything, `*` and `?` within one name."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(meaning.get(piece, re.escape(piece)) for piece in pieces)
