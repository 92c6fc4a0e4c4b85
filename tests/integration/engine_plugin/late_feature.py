"""A logits processor for vLLM whose code is compiled at the first request that asks for it with `vllm_xargs`.

It is loaded by the engine, through vLLM's own interface for such plug-ins. On CPU vLLM itself has one function that is
compiled while serving, for log-probabilities, and the sidecar's output check asks for those before the pod is ready.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor  # type: ignore[import-not-found]


@torch.compile(dynamic=True)  # type: ignore[untyped-decorator]
def _softened(logits: Any) -> Any:
    return torch.tanh(logits) * 3.0 + logits * 0.5


def _soften(_output: list[int], logits: Any) -> Any:
    return _softened(logits)


class LateFeature(AdapterLogitsProcessor):  # type: ignore[misc]
    """Softens the logits of requests that say `{"vllm_xargs": {"late": 1}}`."""

    def is_argmax_invariant(self) -> bool:
        """Say that the most likely token may change, so that greedy requests come here too."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """Give what is done to a request's logits; None: nothing."""
        return _soften if (params.extra_args or {}).get("late") else None
