"""A language model that is only arithmetic, for scripted engines that golden checks ask: tokens, likelihoods, and its faults.

The next token follows from the last ones, always in the same way; about every fourth place is a near tie. No HTTP lives here.
"""

from __future__ import annotations

import math
import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

FAULTS = (
    "", "near_ties", "nan", "nan_late", "nan_null", "empty", "null", "repeat", "prefix", "batch", "drift", "other_weights",
    "other_tokenizer", "no_details", "no_reading", "exact",
)  # fmt: skip
#: What `near_ties` and faults of one way act on: requests that hit a cached prefix, or are sent in a batch.
BATCH = "-batch-"
#: Prompts that are longer come out as no numbers with `nan_late`. Tokens.
LONG = 40
LOOK_BACK = 12
CANDIDATES = 6
PIECE = re.compile(r"\s*\w+|\s*[^\w\s]|\s+")


@dataclass
class Language:
    """Answers requests. `fault` is one of FAULTS; `hits` counts requests whose salt had been seen with that beginning."""

    vocab_size: int
    fault: str = ""
    seed: int = 1
    hits: int = 0
    _seen: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)

    def ids_of(self, text: str) -> list[int]:
        """Cut a text into tokens."""
        salt = "other " if self.fault == "other_tokenizer" else ""
        return [10 + zlib.crc32((salt + piece).encode()) % (self.vocab_size - 10) for piece in PIECE.findall(text)]

    def text_of(self, ids: Sequence[int]) -> str:
        """Write tokens as text."""
        return "".join("!" if each == 0 else f" w{each}" for each in ids)

    def places(self, context: Sequence[int]) -> dict[int, float]:
        """Give the log-probabilities of the likeliest next tokens, the best first."""
        seed = self.seed + (self.fault == "other_weights")
        rng = random.Random(zlib.crc32(repr((seed, list(context[-LOOK_BACK:]))).encode()))
        lead = rng.uniform(0.01, 0.1) if rng.random() < 0.25 else rng.uniform(1.5, 5.0)
        logits = [0.0, -lead, *(-lead - 1 - step for step in range(CANDIDATES - 2))]
        tokens = rng.sample(range(10, self.vocab_size), CANDIDATES)
        if self.fault == "drift":
            logits = [each + rng.gauss(0, 0.7) for each in logits]
        whole = math.log(sum(map(math.exp, logits)))
        return dict(sorted(((t, x - whole) for t, x in zip(tokens, logits, strict=True)), key=lambda pair: -pair[1]))

    def answer(self, body: dict[str, Any], chat: bool) -> dict[str, Any] | None:
        """Give the choice of a whole answer with what was asked for; None where only an HTTP 500 is possible."""
        prompt = body.get("prompt")
        if chat:
            prompt = " ".join(str(each["content"]) for each in body["messages"])
        ids = list(prompt) if isinstance(prompt, list) else self.ids_of(str(prompt))
        hit = self._hit(str(body.get("cache_salt") or ""), ids)
        if self._nan(ids) and (body.get("logprobs") or body.get("prompt_logprobs")):
            return None
        count = int(body.get("max_tokens") or 16)
        made, places = self._generate(ids, count, hit, str(body.get("cache_salt") or ""))
        text = None if self.fault == "null" else self.text_of(made)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        if self.fault == "no_details":
            return choice
        if body.get("return_token_ids"):
            choice |= {"token_ids": made, "prompt_token_ids": ids}
        if body.get("logprobs"):
            choice["logprobs"] = self._told(made, places, chat)
        if body.get("prompt_logprobs") is not None and self.fault != "no_reading":
            choice["prompt_logprobs"] = [self._read(ids, at) for at in range(len(ids))]
        return choice

    def _nan(self, ids: Sequence[int]) -> bool:
        return self.fault == "nan" or (self.fault == "nan_late" and len(ids) > LONG)

    def _hit(self, salt: str, ids: Sequence[int]) -> bool:
        seen = (salt, tuple(ids[:16]))
        found = seen in self._seen
        self._seen.add(seen)
        self.hits += found
        return found

    def _generate(self, ids: list[int], count: int, hit: bool, salt: str) -> tuple[list[int], list[dict[int, float]]]:
        if self.fault in ("empty", "null"):
            return [], []
        if self._nan(ids) or self.fault in ("nan_null", "repeat"):
            token = 7 if self.fault == "repeat" else 0
            return [token] * count, [{token: -0.5, 9: -3.0}] * count
        elsewhere = hit or BATCH in salt
        made: list[int] = []
        places: list[dict[int, float]] = []
        for at in range(count):
            found = self.places([*ids, *made])
            first, second, *_ = found
            if elsewhere and self.fault in ("near_ties", "exact") and found[first] - found[second] < 0.2:
                # What batching does: both move a little, and change places.
                found = {second: found[first], first: found[second], **dict(list(found.items())[2:])}
            wrong = (hit and self.fault == "prefix") or (BATCH in salt and self.fault == "batch")
            if wrong and at == 1 and sum(ids) % 3 == 0:
                found = {8: -0.05, **{token: value - 4 for token, value in found.items()}}
            places.append(found)
            made.append(next(iter(found)))
        return made, places

    def _told(self, made: Sequence[int], places: Sequence[dict[int, float]], chat: bool) -> dict[str, Any]:
        names = [f"token_id:{each}" for each in made]
        values = [None if self.fault == "nan_null" else found[each] for each, found in zip(made, places, strict=True)]
        tops = [{f"token_id:{token}": value for token, value in found.items()} for found in places]
        if not chat:
            return {"tokens": names, "token_logprobs": values, "top_logprobs": tops}
        listed = [[{"token": name, "logprob": value} for name, value in top.items()] for top in tops]
        return {
            "content": [
                {"token": name, "logprob": value, "top_logprobs": top}
                for name, value, top in zip(names, values, listed, strict=True)
            ]
        }

    def _read(self, ids: Sequence[int], at: int) -> dict[str, Any] | None:
        if at == 0:
            return None
        found = self.places(ids[:at])
        best = next(iter(found))
        token = ids[at]
        told = {str(token): {"logprob": found.get(token, -14.0), "rank": 1 if token == best else 2}}
        return told | {str(best): {"logprob": found[best], "rank": 1}}
