"""How each kind of step turns into bursts that fit the engine, noting what had to be clipped or dropped.

Order, seeds and warnings are the business of `planner.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from sidecar.engines.protocol import EngineFacts
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.features import fields_of, json_fields, regex_fields
from sidecar.warmup.sizes import Limits, Sizes, resolve, resolve_all
from sidecar.warmup.steps import (
    AnyStep,
    ChatStep,
    DecodeStep,
    LogprobsStep,
    MixedStep,
    PrefillStep,
    SamplingStep,
    SharedPrefixStep,
    StepBase,
    StructuredStep,
)

#: Prompt tokens of a chat request beyond its words: the template's own. An estimate, for the sum of a plan
#: only.
TEMPLATE_TOKENS = 24
_Step = TypeVar("_Step", bound=StepBase)


class StepPlanner:
    """Turns steps into bursts for one engine. `kv_share`: how much of the KV cache one may fill (0..1)."""

    def __init__(self, limits: Limits, facts: EngineFacts, kv_share: float) -> None:
        self._limits = limits
        self._facts = facts
        self._kv_share = kv_share
        self.clipped: list[str] = []
        self.dropped: list[str] = []
        self._kinds: Mapping[type[StepBase], Callable[[Any], list[Burst]]] = {
            PrefillStep: self._prefill,
            DecodeStep: self._decode,
            MixedStep: self._mixed,
            SharedPrefixStep: self._shared_prefix,
            SamplingStep: self._sampling,
            LogprobsStep: self._logprobs,
            StructuredStep: self._structured,
            ChatStep: self._chat,
        }

    def bursts_of(self, step: AnyStep) -> list[Burst]:
        """Give the bursts of a step, each once; bursts that clipping made equal are merged."""
        found: dict[str, Burst] = {}
        for burst in self._kinds[type(step)](step):
            found.setdefault(burst.key, burst)
        return list(found.values())

    # --- clipping
    # -----------------------------------------------------------------------------------------------

    def _output(self, wanted: int) -> int:
        """Leave at least half of the model's length to the prompt."""
        return max(1, min(wanted, self._limits.max_model_len // 2))

    def _lengths(self, step: StepBase, sizes: Sizes, output: int, at_most: int | None = None) -> list[int]:
        """Resolve prompt lengths and clip them to what the model takes beside `output` tokens."""
        room = max(1, self._limits.max_model_len - output)
        if at_most is not None:
            room = min(room, at_most)
        resolved = resolve_all(sizes, self._limits)
        beyond = [size for size in resolved if size > room]
        if beyond:
            limit = f"the model takes {self._limits.max_model_len} with {output} of output"
            if at_most is not None and room == at_most:
                limit = f"the step has at_most: {at_most}"
            self._clip(step, f"prompts of {_listed(beyond)} tokens are clipped to {room}: {limit}")
        return sorted({min(size, room) for size in resolved})

    def _batches(self, step: StepBase, sizes: Sizes, tokens_each: int) -> list[int]:
        """Resolve numbers of concurrent requests and clip them to the engine's sequences and KV cache."""
        resolved = resolve_all(sizes, self._limits)
        seats = self._limits.max_num_seqs
        beyond = [size for size in resolved if size > seats]
        if beyond:
            self._clip(
                step,
                f"{_listed(beyond)} concurrent requests are clipped to {seats}, the engine's max_num_seqs",
            )
        room = self._room(tokens_each)
        crowded = [size for size in resolved if min(size, seats) > room]
        if crowded:
            self._clip(
                step,
                f"{_listed(crowded)} concurrent requests of {tokens_each} tokens are clipped to {room}: "
                f"the KV cache holds {self._limits.kv_tokens} tokens",
            )
        return sorted({min(size, seats, room) for size in resolved})

    def _room(self, tokens_each: int) -> int:
        if self._limits.kv_tokens is None:
            return self._limits.max_num_seqs
        return max(1, int(self._limits.kv_tokens * self._kv_share) // max(1, tokens_each))

    def _clip(self, step: StepBase, sentence: str) -> None:
        line = f"{step.title}: {sentence}."
        if line not in self.clipped:
            self.clipped.append(line)

    # --- the kinds
    # ----------------------------------------------------------------------------------------------

    def _prefill(self, step: PrefillStep) -> list[Burst]:
        output = self._output(step.output_tokens)
        return [
            single(_times(count, str(length)), Ask(count, length, output))
            for length in self._lengths(step, step.tokens, output, step.at_most)
            for count in self._batches(step, step.concurrency, length + output)
        ]

    def _decode(self, step: DecodeStep) -> list[Burst]:
        output = self._output(step.output_tokens)
        return [
            single(f"{count} x {length}", Ask(count, length, output))
            for length in self._lengths(step, step.prompt_tokens, output)
            for count in self._batches(step, step.batch, length + output)
        ]

    def _mixed(self, step: MixedStep) -> list[Burst]:
        long, short = self._output(step.decode_output_tokens), self._output(step.output_tokens)
        start = self._lengths(step, (step.decode_prompt_tokens,), long)[0]
        if self._limits.max_num_seqs < 2:
            self.dropped.append(f"{step.title}: dropped, because the engine runs one request at a time.")
            return []
        found = []
        for length in self._lengths(step, step.prefill_tokens, short):
            decodes = min(resolve(step.decodes, self._limits), self._limits.max_num_seqs - 1, self._room(start + long))
            arriving = min(resolve(step.prefills, self._limits), self._limits.max_num_seqs - decodes)
            left = self._left(decodes * (start + long))
            if left is not None and left < length + short:
                self._clip(
                    step,
                    f"prefills of {length} tokens are left out: the KV cache has no room beside the decodes",
                )
                continue
            if left is not None:
                arriving = min(arriving, left // (length + short))
            found.append(
                Burst(
                    f"{decodes} + {_times(arriving, str(length))}",
                    ((Ask(decodes, start, long),), (Ask(arriving, length, short),)),
                    "after_first_token",
                )
            )
        return found

    def _left(self, used: int) -> int | None:
        """Give the tokens of the KV cache that are left, None when its size is unknown."""
        if self._limits.kv_tokens is None:
            return None
        return int(self._limits.kv_tokens * self._kv_share) - used

    def _shared_prefix(self, step: SharedPrefixStep) -> list[Burst]:
        output = self._output(step.output_tokens)
        found = []
        for suffix in resolve_all(step.suffix_tokens, self._limits):
            for prefix in self._lengths(step, step.prefix_tokens, output + suffix):
                # The engine stores a shared prefix once, so only suffixes and outputs count for each request.
                room = self._left(prefix + suffix)
                each = suffix + output
                for count in self._batches(step, step.concurrency, each):
                    fitting = count if room is None else max(1, min(count, room // each))
                    ask = Ask(1, prefix + suffix, output, prefix_tokens=prefix)
                    found.append(Burst(f"{fitting} x {prefix}+{suffix}", ((ask,), (replace(ask, count=fitting),))))
        return found

    def _small(self, step: SamplingStep | LogprobsStep | StructuredStep) -> tuple[int, int, list[int]]:
        """Give prompt length, output length and batches of a step about features rather than sizes."""
        output = self._output(step.output_tokens)
        length = self._lengths(step, (step.prompt_tokens,), output)[0]
        return length, output, self._batches(step, step.concurrency, length + output)

    def _sampling(self, step: SamplingStep) -> list[Burst]:
        length, output, counts = self._small(step)
        found = []
        for count in counts:
            for feature in step.features:
                found.append(
                    single(_times(count, feature), _with_fields(Ask(count, length, output), fields_of(feature)))
                )
        return found

    def _logprobs(self, step: LogprobsStep) -> list[Burst]:
        length, output, counts = self._small(step)
        found = []
        for count in counts:
            ask = Ask(count, length, output)
            found += [
                single(_times(count, f"logprobs {value}"), _with_fields(ask, {"logprobs": value}))
                for value in step.values
            ]
            # An engine doesn't stream log-probabilities of the prompt: 400 in vllm/entrypoints/openai, 0.32.
            found += [
                single(
                    _times(count, f"prompt_logprobs {value}"),
                    _with_fields(replace(ask, stream=False), {"prompt_logprobs": value}),
                )
                for value in step.prompt_values
            ]
        return found

    def _structured(self, step: StructuredStep) -> list[Burst]:
        length, output, counts = self._small(step)
        found = []
        for count in counts:
            ask = Ask(count, length, output, temperature=1.0)
            if step.json_schema is not None:
                found.append(single(_times(count, "json"), _with_fields(ask, json_fields(step.json_schema))))
            if step.regex is not None:
                fields = regex_fields(step.regex, self._facts.version)
                found.append(single(_times(count, "regex"), _with_fields(ask, fields)))
        return found

    def _chat(self, step: ChatStep) -> list[Burst]:
        if self._facts.chat is False:
            self.dropped.append(f"{step.title}: dropped, because the engine has no chat template.")
            return []
        output = self._output(step.output_tokens)
        messages = ({"role": "system", "content": step.system}, {"role": "user", "content": step.user})
        length = TEMPLATE_TOKENS + sum(len(each["content"].split()) for each in messages) * 3 // 2
        return [
            single(_times(count, "chat"), Ask(count, length, output, temperature=1.0, messages=messages))
            for count in self._batches(step, step.concurrency, length + output)
        ]


def _with_fields(ask: Ask, fields: Mapping[str, Any]) -> Ask:
    """Add request fields; `temperature` has a place of its own in a request."""
    rest = {name: value for name, value in fields.items() if name != "temperature"}
    return replace(ask, temperature=float(fields.get("temperature", ask.temperature)), fields=rest)


def _times(count: int, what: str) -> str:
    return what if count == 1 else f"{count} x {what}"


def _listed(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    if len(ordered) <= 4:
        return ", ".join(map(str, ordered))
    return f"{ordered[0]}, {ordered[1]} … {ordered[-1]} ({len(ordered)} sizes)"
