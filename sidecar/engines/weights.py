"""The scheme of a model's weights behind the names that engines and checkpoints give to it.

Names only; which kernels a scheme uses on which GPU is said in the profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar.engines.values import mapping

#: vLLM's names for quantisation that mean one scheme (vllm/model_executor/layers/quantization, 0.32).
_NAMES = {
    "none": "none",
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "modelopt": "fp8",
    "modelopt_fp4": "nvfp4",
    "modelopt_mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "fp8_block_scales": "fp8_block",
    "mxfp4": "mxfp4",
    "mxfp8": "mxfp8",
    "awq": "int4",
    "awq_marlin": "int4",
    "gptq": "int4",
    "gptq_marlin": "int4",
}


def scheme_of_name(quantization: str) -> str | None:
    """Give the scheme that a name of the engine stands for; None where it can be several."""
    return _NAMES.get(quantization.lower())


def scheme_of_config(quantization: Mapping[str, Any]) -> str | None:
    """Give the scheme of a checkpoint's `quantization_config`; None where it doesn't tell.

    Block-wise FP8 has `weight_block_size`; NVFP4 is `quant_algo: NVFP4` of ModelOpt, or 4 bits of type float in
    groups of 16 of compressed-tensors.
    """
    method = str(quantization.get("quant_method", "")).lower()
    algorithm = str(quantization.get("quant_algo", "")).lower()
    if algorithm in ("nvfp4", "fp8", "mxfp8"):
        return algorithm
    if algorithm.startswith(("nvfp4", "w4a16_nvfp4", "w4a8_nvfp4")):
        return "nvfp4"
    if method == "fp8":
        return "fp8_block" if quantization.get("weight_block_size") else "fp8"
    if method == "compressed-tensors":
        return _compressed(quantization)
    return None


def _compressed(quantization: Mapping[str, Any]) -> str | None:
    for group in mapping(quantization.get("config_groups")).values():
        weights = mapping(mapping(group).get("weights"))
        bits, kind = weights.get("num_bits"), weights.get("type")
        if kind == "float" and bits == 4:
            return "nvfp4" if weights.get("group_size") == 16 else "mxfp4"
        if kind == "float" and bits == 8:
            return "fp8_block" if weights.get("strategy") == "block" else "fp8"
        if kind == "int" and bits in (4, 8):
            return f"int{bits}"
    return None
