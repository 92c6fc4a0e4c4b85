"""How one engine can be asked: what a request for an answer or for reading one back holds, and what it is too old for.

Nothing is sent from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sidecar.engines.protocol import CompletionRequest
from sidecar.golden.prompts import Prompt

#: Tells one tokenizer from another: several alphabets, digits, indentation. Never change it: files hold its tokens.
SENTENCE = "Golden 1234567890: the quick river, l'été à Zürich, 東京の春, мост;\n    if x != y_2: return [0.5]\n"
#: vLLM warms its kernel for 5 alternatives itself, and for 1 where a prompt is read (SamplingParams.for_sampler_warmup).
ALTERNATIVES = 5
READ_ALTERNATIVES = 1
#: Memory for logits of a prompt that is read back, in bytes; vLLM makes them for all its tokens at once, 10 bytes for each
#: token of the vocabulary (bf16, and twice float32; v1/worker/gpu_model_runner.py, _get_prompt_logprobs_dict).
LOGITS_BYTES, LOGIT_BYTES = 512 * 1024 * 1024, 10
#: Where the engine doesn't tell its vocabulary: larger than any that is usual.
LARGE_VOCABULARY = 262_144


@dataclass(frozen=True, slots=True)
class Manner:
    """What this engine takes: alternatives per token, salts, token ids. `lacks` says in words what it does not."""

    alternatives: int = ALTERNATIVES
    salted: bool = True
    ids: bool = True
    lacks: str = ""


#: Tried in this order until the engine takes one.
MANNERS = (
    Manner(),
    Manner(1, lacks="The engine gives one alternative for a token, so near ties are told less well."),
    Manner(1, salted=False, ids=False, lacks="The engine takes no cache salts, so what is cached may differ from check to check."),
    Manner(0, salted=False, ids=False, lacks="The engine gives no log-probabilities, so only texts are compared."),
)  # fmt: skip


def answer_request(
    prompt: Prompt, passages: Mapping[str, str], manner: Manner, salt: str, deadline_s: float
) -> CompletionRequest:
    """Make the request for an answer: greedy, with a fixed seed, its own cache salt, and not streamed."""
    text, messages = prompt.content(passages)
    extra: dict[str, object] = {"seed": 0, "repetition_penalty": 1.0}
    if manner.ids:
        extra |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    if manner.alternatives and messages is None:
        extra["logprobs"] = manner.alternatives
    elif manner.alternatives:
        extra |= {"logprobs": True, "top_logprobs": manner.alternatives}
    return CompletionRequest(
        prompt=text,
        messages=messages,
        max_tokens=prompt.max_tokens,
        temperature=0.0,
        extra=extra,
        stream=False,
        cache_salt=salt if manner.salted else None,
        deadline_s=deadline_s,
    )


def reading_request(ids: Sequence[int], manner: Manner, salt: str, deadline_s: float) -> CompletionRequest:
    """Make the request that reads a prompt and its recorded answer back, for the probability of each token."""
    return CompletionRequest(
        prompt=tuple(ids),
        max_tokens=1,
        temperature=0.0,
        extra={"seed": 0, "prompt_logprobs": READ_ALTERNATIVES},
        stream=False,
        cache_salt=salt if manner.salted else None,
        deadline_s=deadline_s,
    )


def readable(tokens: int, vocab_size: int | None) -> bool:
    """Say whether so many tokens may be read back without risk for the engine's memory."""
    return tokens * (vocab_size or LARGE_VOCABULARY) * LOGIT_BYTES <= LOGITS_BYTES
