"""Cache families that engines other than vLLM alone write.

Only declarations, as in `family_table`. Read in SGLang 0.5.23 (srt/environ.py, kernels/jit/utils/compile/cache.py) and
TensorRT-LLM 1.x (_torch/pyexecutor/model_engine.py, autotuner.py); not seen on a real engine.
"""

from __future__ import annotations

from sidecar.caches.family import Family

OTHER_ENGINES: tuple[Family, ...] = (
    Family(
        name="sglang",
        since="SGLang 0.5",
        directory="sglang",
        scope="exact",
        default_path="~/.cache/sglang",
        variables={"SGLANG_CACHE_DIR": "{live}/sglang"},
        kernels=("**/*.so", "**/*.cubin"),
        note="SGLang's root. It puts Triton's, Inductor's, TileLang's, FlashInfer's and the driver's cache below it only "
        "where their own variables are not set; here they are, so what is left are its compile artifacts.",
    ),
    Family(
        name="sglang_jit",
        since="SGLang 0.5",
        directory="sglang_jit",
        scope="toolchain",
        default_path="~/.cache/sglang/jit",
        variables={"SGLANG_JIT_CACHE_DIR": "{live}/sglang_jit"},
        kernels=("**/*.so",),
        unit=r"(.*/deps-[^/]+)/",
        note="SGLang's own kernels: one directory per content, which it hashes again before it uses it.",
    ),
    Family(
        name="sglang_cute_aot",
        since="SGLang 0.5",
        directory="sglang_cute_aot",
        scope="toolchain",
        default_path="~/.cache/sglang/cute_aot",
        variables={"SGLANG_CUTE_AOT_CACHE_DIR": "{live}/sglang_cute_aot"},
        kernels=("**/*.o", "**/*.so"),
        note="SGLang's kernels in CuTe DSL, compiled ahead of time.",
    ),
    Family(
        name="trtllm_autotuner",
        since="TensorRT-LLM 1.0",
        directory="trtllm_autotuner",
        scope="exact",
        default_path="",
        variables={"TLLM_AUTOTUNER_CACHE_PATH": "{live}/trtllm_autotuner/tactics.json"},
        validity="json",
        note="Tactics chosen by timing; without the variable each start measures them again. TensorRT-LLM takes the file "
        "whatever GPU and version it names, so the key keeps configurations apart: every fact must agree.",
    ),
)
