"""Prompts that no cache has seen: unique token ids inside the vocabulary, and unique cache salts.

Knows the shape of a request and nothing of when it is sent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from sidecar.engines.protocol import CompletionRequest
from sidecar.warmup.bursts import Ask, Burst

#: Random ids are drawn once and cut from a pool: a prompt of 100,000 tokens then costs a copy, not 100,000
#: draws.
POOL = 16384
#: Of so many ids the head of each prompt is made, which counts the prompts; below one KV block of any engine.
HEAD = 3


def usable_ids(vocab_size: int) -> range:
    """Give the token ids that are safe to send.

    Control tokens sit at the very bottom of a vocabulary (Mistral's Tekken reserves the first 1,000) or near
    its top (Qwen, Llama, DeepSeek, with placeholders for images among them); a prompt of those is refused or
    means something.
    """
    return range(min(1024, vocab_size // 8), max(vocab_size // 8 + 2, vocab_size * 9 // 10))


@dataclass
class PromptSource:
    """Makes prompts that differ within their first three tokens. `rng` must differ between runs."""

    rng: random.Random
    vocab_size: int
    _made: int = 0
    _pool: tuple[int, ...] = field(default=(), repr=False)
    _run: str = ""

    def __post_init__(self) -> None:
        ids = usable_ids(self.vocab_size)
        self._pool = tuple(self.rng.choices(ids, k=POOL))
        self._run = f"{self.rng.getrandbits(64):016x}"
        self._made = self.rng.randrange(len(ids) ** HEAD)

    def tokens(self, count: int) -> tuple[int, ...]:
        """Make a prompt of so many token ids; those of three tokens and more never repeat within a run."""
        ids = usable_ids(self.vocab_size)
        self._made += 1
        number, head = self._made, []
        for _ in range(min(HEAD, count)):
            number, digit = divmod(number, len(ids))
            head.append(ids[digit])
        start, missing = self.rng.randrange(POOL), count - len(head)
        body: tuple[int, ...] = self._pool[start : start + missing]
        while len(body) < missing:
            body += self._pool[: missing - len(body)]
        return (*head, *body)

    def salt(self) -> str:
        """Make a cache salt that no other burst and no other run has."""
        self._made += 1
        return f"warmup-{self._run}-{self._made:x}"

    def requests(self, burst: Burst, deadline_s: float) -> list[list[CompletionRequest]]:
        """Make the requests of a burst, a list for each phase, with fresh prompts."""
        longest = max(ask.prefix_tokens for phase in burst.phases for ask in phase)
        prefix, salt = self.tokens(longest) if longest else (), self.salt()
        return [
            [
                self._request(ask, prefix, salt if ask.prefix_tokens else self.salt(), deadline_s)
                for ask in phase
                for _ in range(ask.count)
            ]
            for phase in burst.phases
        ]

    def _request(self, ask: Ask, prefix: tuple[int, ...], salt: str, deadline_s: float) -> CompletionRequest:
        prompt: tuple[int, ...] | str | None = None
        if ask.text is not None:
            prompt = ask.text
        elif ask.messages is None:
            own = self.tokens(ask.prompt_tokens - ask.prefix_tokens) if ask.prompt_tokens > ask.prefix_tokens else ()
            prompt = (*prefix[: ask.prefix_tokens], *own)
        return CompletionRequest(
            prompt=prompt,
            messages=ask.messages,
            max_tokens=ask.output_tokens,
            temperature=ask.temperature,
            extra={"ignore_eos": True, **ask.fields},
            stream=ask.stream,
            cache_salt=salt,
            deadline_s=deadline_s,
        )
