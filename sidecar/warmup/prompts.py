"""Prompts that no cache has seen: unique token ids inside the vocabulary, and unique cache salts.

Knows the shape of a request and nothing of when it is sent.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sidecar.engines.long_prompt import LONG, LongPrompt, Pool
from sidecar.engines.protocol import CompletionRequest
from sidecar.warmup.asks import addressed
from sidecar.warmup.bursts import Ask, Burst

#: So many requests of a burst are streamed, which tells when the first token came; of the others only the end is. A step
#: of 512 streams is 512 events at once, which hold the event loop for longer than probes should wait.
STREAMED = 64
#: A request that is yet to be made.
Draft: TypeAlias = Callable[[], CompletionRequest]
#: Random ids are drawn once and cut from a pool: a prompt of 100,000 tokens then costs a copy, not 100,000
#: draws.
POOL = 16384
#: Of so many ids the head of each prompt is made, which counts the prompts; below one KV block of any engine.
HEAD = 3
#: Fields of every request that servers which keep to OpenAI's refuse, in the order in which they can be done without: prompts
#: are unique anyway, and without the second an answer may end early.
BEYOND_OPENAI = ("cache_salt", "ignore_eos")


def usable_ids(vocab_size: int) -> range:
    """Give the token ids that are safe to send.

    Control tokens sit at the very bottom of a vocabulary (Mistral's Tekken reserves the first 1,000) or near
    its top (Qwen, Llama, DeepSeek, with placeholders for images among them); a prompt of those is refused or
    means something.
    """
    return range(min(1024, vocab_size // 8), max(vocab_size // 8 + 2, vocab_size * 9 // 10))


@dataclass
class PromptSource:
    """Makes prompts that differ within their first three tokens. `rng` must differ between runs.

    `lacks`: those of `BEYOND_OPENAI` that requests go without.
    """

    rng: random.Random
    vocab_size: int
    lacks: tuple[str, ...] = ()
    _made: int = 0
    _pool: Pool = field(default=Pool(()), repr=False)
    _run: str = ""

    def __post_init__(self) -> None:
        ids = usable_ids(self.vocab_size)
        self._pool = Pool(self.rng.choices(ids, k=POOL))
        self._run = f"{self.rng.getrandbits(64):016x}"
        self._made = self.rng.randrange(len(ids) ** HEAD)

    def tokens(self, count: int) -> Sequence[int]:
        """Make a prompt of so many token ids; those of three tokens and more never repeat within a run.

        Short ones are tuples.
        """
        ids = usable_ids(self.vocab_size)
        self._made += 1
        number, head = self._made, []
        for _ in range(min(HEAD, count)):
            number, digit = divmod(number, len(ids))
            head.append(ids[digit])
        start = self.rng.randrange(POOL)
        if count > LONG:
            return LongPrompt(head, self._pool, start, count)
        return (*head, *self._pool.cut(start, count - len(head)))

    def salt(self) -> str:
        """Make a cache salt that no other burst and no other run has."""
        self._made += 1
        return f"warmup-{self._run}-{self._made:x}"

    def drafts(self, burst: Burst, deadline_s: float) -> list[list[Draft]]:
        """Give the requests of a burst, a list for each phase, each to be made with a fresh prompt when it is sent.

        512 prompts of 100,000 tokens would fill 400 MB, and hold the event loop for seconds, if all were made at once.
        """
        longest = max(ask.prefix_tokens for phase in burst.phases for ask in phase)
        prefix, salt = self.tokens(longest) if longest else (), self.salt()
        every = 1 if burst.then == "after_first_token" else math.ceil(burst.concurrency / STREAMED)
        found: list[list[Draft]] = []
        for phase in burst.phases:
            asks = [ask for ask in phase for _ in range(ask.count)]
            found.append(
                [
                    functools.partial(
                        self._request,
                        ask if index % every == 0 or not ask.stream else dataclasses.replace(ask, stream=False),
                        prefix,
                        salt if ask.prefix_tokens else None,
                        deadline_s,
                    )
                    for index, ask in enumerate(asks)
                ]
            )
        return found

    def requests(self, burst: Burst, deadline_s: float) -> list[list[CompletionRequest]]:
        """Make all requests of a burst at once, a list for each phase."""
        return [[draft() for draft in phase] for phase in self.drafts(burst, deadline_s)]

    def _request(self, ask: Ask, prefix: Sequence[int], salt: str | None, deadline_s: float) -> CompletionRequest:
        prompt: Sequence[int] | str | None = None
        if ask.text is not None:
            prompt = ask.text
        elif ask.messages is None:
            own = self.tokens(ask.prompt_tokens - ask.prefix_tokens) if ask.prompt_tokens > ask.prefix_tokens else ()
            prompt = (*prefix[: ask.prefix_tokens], *own) if prefix else own
        request = CompletionRequest(
            prompt=prompt,
            messages=ask.messages,
            max_tokens=ask.output_tokens,
            temperature=ask.temperature,
            extra={name: each for name, each in {"ignore_eos": True, **ask.fields}.items() if name not in self.lacks},
            stream=ask.stream,
            cache_salt=salt or self.salt(),
            deadline_s=deadline_s,
        )
        # What has no token ids differs by its salt, and so needs one though it isn't sent.
        made = addressed(ask, request)
        return dataclasses.replace(made, cache_salt=None) if "cache_salt" in self.lacks else made
