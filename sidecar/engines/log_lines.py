"""Learn from lines of an engine's log what neither its endpoints nor its command line tell.

The launcher relays such lines; only vLLM's wordings are known here.
"""

from __future__ import annotations

import re

from sidecar.engines.protocol import Hint

#: vllm/config/scheduler.py, 0.8 to 0.33: the value that counts after all defaults, whatever the flags say.
_BATCHED_TOKENS = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")


def hints_from_line(text: str) -> dict[str, Hint]:
    """Give the facts of EngineFacts that one line tells; empty for all others."""
    found = _BATCHED_TOKENS.search(text)
    return {"max_num_batched_tokens": Hint(int(found[1]), "the engine's log")} if found else {}
