"""The rows of the cache families, and the caches that are none, each with its reason.

Only declarations; the questions they answer are in `families`. Sources name the file of vLLM 0.33.0 (or of the package
itself, in the version that vLLM pins) in which the path, variable or layout was read.
"""

from __future__ import annotations

from sidecar.caches.family import Family, NoFamily

# Inductor's autotuning results hold time_taken_ms: on an H200, 8 of 16 were rewritten by a restored start that
# compiled nothing. In AOT mode they lie in vLLM's directory.
TIMINGS = ("**/*.best_config",)

# Versions of vLLM in which a cache was seen. When it came is not known, so nothing earlier is claimed.
SEEN_0_25 = "0.25 or older"
SEEN_0_32 = "0.32 or older"
SEEN_0_33 = "0.33 or older"

FAMILIES: tuple[Family, ...] = (
    Family(
        name="inductor",
        since=SEEN_0_25,
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
        since="0.11 or older; the default from 0.19 (torch 2.10) on",
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
        name="warmup_coverage",
        since="the sidecar's own",
        directory="warmup_coverage",
        scope="exact",
        default_path="",
        variables={},
        unit=r"(.*)",
        ours=True,
        note="No cache of the engine: which traffic compiled what and which sizes were visited, so that the next pod replays "
        "just that.",
    ),
    Family(
        name="vllm_modelinfos",
        since=SEEN_0_33,
        directory="vllm/modelinfos",
        scope="toolchain",
        default_path="$VLLM_CACHE_ROOT/modelinfos",
        variables={"VLLM_CACHE_ROOT": "{live}/vllm"},
        unit=r"(.*)",
        note="What vLLM learnt of its own model classes; keyed by a digest of their source.",
    ),
    Family(
        name="flashinfer_autotune",
        since="0.25 or older; one file per rank and the store of single entries: 0.33 or older",
        directory="flashinfer_autotune",
        scope="exact",
        default_path="$VLLM_CACHE_ROOT/flashinfer_autotune_cache, ~/.cache/flashinfer/autotune",
        variables={
            "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR": "{live}/flashinfer_autotune",
            "FLASHINFER_AUTOTUNE_CACHE_DIR": "{live}/flashinfer_autotune",
        },
        per_rank=r"(?P<set>(?:.*/)?)autotune_configs_dp\d+_rank\d+\.json",
        leave_out_multi_rank=("**/autotune_configs.json",),
        note="Tactics chosen by timing. A rank that finds its file skips collectives in which the others wait "
        "(warmup/flashinfer_autotune_cache.py:83-121): of several ranks the files travel only when every rank of the "
        "engine runs here and has one, and a file that all share never does.",
    ),
    Family(
        name="triton",
        since=SEEN_0_25,
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
        since=SEEN_0_25,
        directory="flashinfer",
        scope="toolchain",
        default_path="~/.cache/flashinfer/<version>/<arch>",
        variables={"FLASHINFER_WORKSPACE_BASE": "{live}/flashinfer"},
        kernels=("**/cached_ops/**/*.so", "**/*_cute_dsl/*.o"),
        leave_out=("**/autotune/**",),
        unit=r"(.*/)(?:cached_ops|generated)/([^/]+)/",
        validity="ninja",
        note="Modules built by nvcc and ninja; up to date only with their modification times, ninja's logs and the "
        "same absolute paths (FlashInfer 0.7.2 jit/env.py:66-70, core.py:536-605). Cubins that it downloaded lie in "
        "`cubins` and travel too, so that pods without a way out have them; FLASHINFER_CUBIN_DIR is not set, because "
        "it would hide those of the flashinfer-cubin wheel (jit/env.py:93-110).",
    ),
    Family(
        name="flashinfer_tuning",
        since=SEEN_0_33,
        directory="flashinfer_tuning",
        scope="exact",
        default_path="~/.cache/flashinfer/<version>/<arch>/autotune, ~/.cache/flashinfer/moe_ep_knob_cache.json",
        variables={
            "FLASHINFER_AUTOTUNE_DIR": "{live}/flashinfer_tuning",
            "FLASHINFER_MOE_EP_KNOB_CACHE": "{live}/flashinfer_tuning/moe_ep_knob_cache.json",
        },
        leave_out=("**/pcie_ipc_*",),
        leave_out_multi_rank=("**/moe_ep_knob*",),
        note="FlashInfer's other measurements, good on the same GPU only. What it measured between the GPUs of one "
        "machine (`pcie_ipc_*`) stays there; the file that several ranks share is left out when there are several.",
    ),
    Family(
        name="deep_gemm",
        since=SEEN_0_25,
        directory="deep_gemm",
        scope="toolchain",
        default_path="$VLLM_CACHE_ROOT/deep_gemm",
        # SGLang overwrites the first by the second (srt/environ.py, 0.5.23).
        variables={"DG_JIT_CACHE_DIR": "{live}/deep_gemm", "SGLANG_DG_CACHE_DIR": "{live}/deep_gemm"},
        kernels=("cache/kernel.*/kernel.cubin",),
        unit=r"(cache/[^/]+)/",
        validity="cubin",
        note="FP8 matrix products (utils/deep_gemm.py:281-285); an entry without its cubin crashes the engine.",
    ),
    Family(
        name="trtllm_dg",
        since=SEEN_0_25,
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
        since=SEEN_0_33,
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
        since=SEEN_0_25,
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
        since=SEEN_0_33,
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
        since=SEEN_0_33,
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
        since=SEEN_0_33,
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
        since=SEEN_0_33,
        directory="quack",
        scope="toolchain",
        default_path="$TMPDIR/$USER/quack_cache",
        variables={"QUACK_CACHE_DIR": "{live}/quack"},
        kernels=("**/*.o",),
        unit=r"(.*)",
        note="Kernels of quack-kernels 0.6.5.",
    ),
    Family(
        name="quack_autotune",
        since=SEEN_0_33,
        directory="quack_autotune",
        scope="exact",
        default_path="~/.quack/cache",
        variables={},
        links={"~/.quack/cache": "{live}/quack_autotune"},
        note="What quack-kernels found by timing. No variable moves it, so the launcher links it.",
    ),
    Family(
        name="b12x",
        since=SEEN_0_33,
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
        since=SEEN_0_33,
        directory="humming",
        scope="toolchain",
        default_path="~/.humming",
        variables={"HUMMING_CACHE_DIR": "{live}/humming/cache", "HUMMING_TMP_DIR": "{live}/humming/tmp"},
        kernels=("**/*.cubin",),
        note="Keyed by absolute paths and modification times of its headers, so it is reused on the same image only.",
    ),
    Family(
        name="torch_ext",
        since=SEEN_0_33,
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
        since=SEEN_0_32,
        directory="",
        scope="never",
        default_path="$TMPDIR/torchinductor_$USER/precompiled_headers",
        variables={},
        note="About 150 MB of precompiled C++ header, bound to the exact compiler and CPU, which g++ rebuilds in "
        "seconds and no variable but TMPDIR moves: carrying it would cost more than it saves.",
    ),
    Family(
        name="vllm_p2p",
        since=SEEN_0_33,
        directory="vllm",
        scope="never",
        default_path="$VLLM_CACHE_ROOT/gpu_p2p_access_cache_for_*.json",
        variables={"VLLM_CACHE_ROOT": "{live}/vllm"},
        note="Which GPUs of this very machine reach each other, keyed by device index alone: wrong on another machine.",
    ),
    Family(
        name="vllm_assets",
        since=SEEN_0_33,
        directory="vllm/assets",
        scope="never",
        default_path="$VLLM_CACHE_ROOT/assets",
        variables={"VLLM_CACHE_ROOT": "{live}/vllm"},
        note="Downloads, not kernels.",
    ),
    Family(
        name="vllm_startup_plan",
        since=SEEN_0_33,
        directory="vllm/startup_plan",
        scope="never",
        default_path="$VLLM_CACHE_ROOT/startup_plan",
        variables={"VLLM_CACHE_ROOT": "{live}/vllm"},
        note="Free GPU memory as measured on one machine at one time.",
    ),
    Family(
        name="usage_stats",
        since=SEEN_0_33,
        directory="",
        scope="never",
        default_path="~/.config/vllm/usage_stats.json",
        variables={},
        note="Usage statistics of one installation.",
    ),
)

NO_FAMILY: tuple[NoFamily, ...] = (
    NoFamily(
        "flashinfer_wheels",
        "site-packages/flashinfer_jit_cache, flashinfer_cubin",
        "Installed with the image and only read; the key knows them by their RECORD files.",
    ),
    NoFamily(
        "nccl_allocator",
        "$TMPDIR/nccl_allocator.so",
        "vLLM builds it straight into TMPDIR, in no directory of its own "
        "(distributed/device_communicators/pynccl_allocator.py:75): it can't be moved without moving TMPDIR.",
    ),
    NoFamily(
        "numba",
        "__pycache__ beside the source, else ~/.cache/numba",
        "One function of one model uses it. Its index is written before the code it names (numba 0.65 "
        "core/caching.py), so a copy taken in between would call the wrong code.",
        places=("~/.cache/numba",),
    ),
    NoFamily(
        "outlines",
        "~/.cache/outlines/outlines_cache.db",
        "Off by default (VLLM_V1_USE_OUTLINES_CACHE). SQLite in WAL mode: not to be copied while it is open.",
        places=("~/.cache/outlines", "~/.cache/.cache/outlines"),
    ),
    NoFamily("grammars", "memory", "xgrammar and llguidance keep compiled grammars in memory only."),
    NoFamily("nccl", "none", "NCCL writes nothing by default."),
    NoFamily(
        "hf_hub",
        "$HF_HOME",
        "Weights, tokenizers and the code of models, downloaded. HF_HOME stays where it is.",
        places=(
            "~/.cache/huggingface",
            "~/.huggingface",
            "~/.cache/modelscope",
            "~/.cache/vllm/assets",
            "~/.cache/torch/hub",
        ),
    ),
    NoFamily(
        "media",
        "VLLM_MEDIA_CACHE, VLLM_LORA_RESOLVER_CACHE_DIR",
        "Downloads that the user asked for, at a place the user chose.",
    ),
    NoFamily(
        "settings",
        "~/.config, ~/.local",
        "Settings and usage statistics of programs, not kernels.",
        places=("~/.config", "~/.local", "~/.ssh", "~/.aws", "~/.kube", "~/.docker", "~/.gnupg"),
    ),
    NoFamily(
        "packages",
        "~/.cache/pip and the like",
        "Downloads of package managers.",
        places=("~/.cache/pip", "~/.cache/uv", "~/.npm", "~/.cargo", "~/.cache/bazel", "~/.conda"),
    ),
    NoFamily(
        "fonts",
        "~/.cache/matplotlib, ~/.cache/fontconfig",
        "Lists of fonts.",
        places=("~/.cache/matplotlib", "~/.cache/fontconfig", "~/.matplotlib"),
    ),
    NoFamily(
        "sockets",
        "$TMPDIR",
        "Sockets, logs and shared memory of Ray, PyTorch's launcher, multiprocessing and the desktop.",
        places=(
            "$TMPDIR/ray",
            "$TMPDIR/torchelastic_*",
            "$TMPDIR/pymp-*",
            "$TMPDIR/.X11-unix",
            "$TMPDIR/.ICE-unix",
            "$TMPDIR/systemd-private-*",
            "$TMPDIR/prometheus*",
            "~/.ipython",
            "~/.vscode-server",
        ),
    ),
)
