"""How each kind of step turns into bursts that fit the engine, noting what had to be clipped or dropped.

Order, seeds and warnings are the business of `planner.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sidecar.engines.protocol import EngineFacts
from sidecar.warmup.bursts import Ask, Burst, single
from sidecar.warmup.clipping import Clipping, times
from sidecar.warmup.features import fields_of, json_fields, regex_fields
from sidecar.warmup.roles import NOT_FOR_PREFILL, for_role
from sidecar.warmup.sizes import Limits, resolve, resolve_all
from sidecar.warmup.steps import (
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
from sidecar.warmup.task_expansion import TaskExpansion
from sidecar.warmup.task_steps import TASK_OF_KIND, AnyStep

#: Prompt tokens of a chat request beyond its words: the template's own. An estimate, for the sum of a plan
#: only.
TEMPLATE_TOKENS = 24


class StepPlanner:
    """Turns steps into bursts for one engine. `kv_share`: how much of the KV cache one may fill (0..1)."""

    def __init__(self, limits: Limits, facts: EngineFacts, kv_share: float) -> None:
        self._limits = limits
        self._facts = facts
        self._clip = Clipping(limits, kv_share)
        self._tasks = TaskExpansion(limits, facts, self._clip)
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
            **self._tasks.kinds,
        }

    @property
    def clipped(self) -> tuple[str, ...]:
        """Say in sentences what was clipped."""
        return tuple(self._clip.sentences)

    @property
    def not_applicable(self) -> tuple[str, ...]:
        """Say in sentences which steps are about something that this engine doesn't have."""
        return tuple(self._tasks.not_applicable)

    def bursts_of(self, step: AnyStep) -> list[Burst]:
        """Give the bursts of a step, each once; bursts that clipping made equal are merged."""
        task = TASK_OF_KIND.get(step.kind, "generate")
        if task not in (self._facts.tasks or ("generate",)):
            self._tasks.not_applicable.append(f"{step.title}: the engine has no endpoint for this ({task}).")
            return []
        if self._facts.role == "prefill" and step.kind in NOT_FOR_PREFILL:
            self._tasks.not_applicable.append(f"{step.title}: an engine of role prefill doesn't decode.")
            return []
        found: dict[str, Burst] = {}
        for burst in self._kinds[type(step)](step):
            found.setdefault(burst.key, for_role(burst, self._facts.role))
        return list(found.values())

    def _prefill(self, step: PrefillStep) -> list[Burst]:
        output = self._clip.output(step.output_tokens)
        return [
            single(times(count, str(length)), Ask(count, length, output))
            for length in self._clip.lengths(step, step.tokens, output, step.at_most)
            for count in self._clip.batches(step, step.concurrency, length + output)
        ]

    def _decode(self, step: DecodeStep) -> list[Burst]:
        output = self._clip.output(step.output_tokens)
        return [
            single(f"{count} x {length}", Ask(count, length, output))
            for length in self._clip.lengths(step, step.prompt_tokens, output)
            for count in self._clip.batches(step, step.batch, length + output)
        ]

    def _mixed(self, step: MixedStep) -> list[Burst]:
        long, short = self._clip.output(step.decode_output_tokens), self._clip.output(step.output_tokens)
        start = self._clip.lengths(step, (step.decode_prompt_tokens,), long)[0]
        if self._limits.max_num_seqs < 2:
            self.dropped.append(f"{step.title}: dropped, because the engine runs one request at a time.")
            return []
        found = []
        for length in self._clip.lengths(step, step.prefill_tokens, short):
            decodes = min(
                resolve(step.decodes, self._limits), self._limits.max_num_seqs - 1, self._clip.room(start + long)
            )
            arriving = min(resolve(step.prefills, self._limits), self._limits.max_num_seqs - decodes)
            left = self._clip.left(decodes * (start + long))
            if left is not None and left < length + short:
                self._clip.note(
                    step,
                    f"prefills of {length} tokens are left out: the KV cache has no room beside the decodes",
                )
                continue
            if left is not None:
                arriving = min(arriving, left // (length + short))
            found.append(
                Burst(
                    f"{decodes} + {times(arriving, str(length))}",
                    ((Ask(decodes, start, long),), (Ask(arriving, length, short),)),
                    "after_first_token",
                )
            )
        return found

    def _shared_prefix(self, step: SharedPrefixStep) -> list[Burst]:
        output = self._clip.output(step.output_tokens)
        found = []
        suffixes = resolve_all(step.suffix_tokens, self._limits)
        for suffix in (0, *suffixes) if step.whole else suffixes:
            for prefix in self._clip.lengths(step, step.prefix_tokens, output + suffix):
                # The engine stores a shared prefix once, so only suffixes and outputs count for each request.
                room = self._clip.left(prefix + suffix)
                each = suffix + output
                for count in self._clip.batches(step, step.concurrency, each):
                    fitting = count if room is None else max(1, min(count, room // each))
                    ask = Ask(1, prefix + suffix, output, prefix_tokens=prefix)
                    found.append(Burst(f"{fitting} x {prefix}+{suffix}", ((ask,), (replace(ask, count=fitting),))))
        return found

    def _small(self, step: SamplingStep | LogprobsStep | StructuredStep) -> tuple[int, int, list[int]]:
        """Give prompt length, output length and batches of a step about features rather than sizes."""
        output = self._clip.output(step.output_tokens)
        length = self._clip.lengths(step, (step.prompt_tokens,), output)[0]
        return length, output, self._clip.batches(step, step.concurrency, length + output)

    def _sampling(self, step: SamplingStep) -> list[Burst]:
        length, output, counts = self._small(step)
        found = []
        for count in counts:
            for feature in step.features:
                found.append(
                    single(times(count, feature), _with_fields(Ask(count, length, output), fields_of(feature)))
                )
        return found

    def _logprobs(self, step: LogprobsStep) -> list[Burst]:
        length, output, counts = self._small(step)
        found = []
        for count in counts:
            ask = Ask(count, length, output)
            found += [
                single(times(count, f"logprobs {value}"), _with_fields(ask, {"logprobs": value}))
                for value in step.values
            ]
            # An engine doesn't stream log-probabilities of the prompt: 400 in vllm/entrypoints/openai, 0.32.
            found += [
                single(
                    times(count, f"prompt_logprobs {value}"),
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
                found.append(single(times(count, "json"), _with_fields(ask, json_fields(step.json_schema))))
            if step.regex is not None:
                fields = regex_fields(step.regex, self._facts.version)
                found.append(single(times(count, "regex"), _with_fields(ask, fields)))
        return found

    def _chat(self, step: ChatStep) -> list[Burst]:
        if self._facts.chat is False:
            self.dropped.append(f"{step.title}: dropped, because the engine has no chat template.")
            return []
        output = self._clip.output(step.output_tokens)
        messages = ({"role": "system", "content": step.system}, {"role": "user", "content": step.user})
        length = TEMPLATE_TOKENS + sum(len(each["content"].split()) for each in messages) * 3 // 2
        return [
            single(times(count, "chat"), Ask(count, length, output, temperature=1.0, messages=messages))
            for count in self._clip.batches(step, step.concurrency, length + output)
        ]


def _with_fields(ask: Ask, fields: Mapping[str, Any]) -> Ask:
    """Add request fields; `temperature` has a place of its own in a request."""
    rest = {name: value for name, value in fields.items() if name != "temperature"}
    return replace(ask, temperature=float(fields.get("temperature", ask.temperature)), fields=rest)
