"""The answers of SGLang's own /generate, event by event, as if they were OpenAI's.

Source: SGLang 0.5.23, srt/managers/tokenizer_manager.py (`text`, `output_ids` and `meta_info` of each event), and its
documentation "SGLang Native APIs". Text and ids are those from the beginning on, or only the new ones where the server
was started with --incremental-streaming-output (older: --stream-output).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.engines.stream import Answer
from sidecar.engines.values import mapping


@dataclass(slots=True)
class NativeAnswer(Answer):
    """What /generate has said so far; what came before is remembered for each of several outputs."""

    before: dict[int, tuple[str, list[Any], int]] = field(default_factory=dict)

    def _take_event(self, event: Mapping[str, Any], at: float, echo: bool, payload: bytes) -> None:
        if "meta_info" not in event:
            Answer._take_event(self, event, at, echo, payload)
            return
        told = mapping(event["meta_info"])
        index = event["index"] if isinstance(event.get("index"), int) else 0
        if (why := mapping(told.get("finish_reason"))).get("type") == "abort":
            self.fail("broken", f"the engine gave the request up: {why.get('message') or 'it says no reason'}")
            self.put_off(why, "status_code")
            return
        choice = {"index": index, "finish_reason": _reason(told), **self._news(index, event, told)}
        usage = {name: told.get(name) for name in ("prompt_tokens", "completion_tokens")}
        Answer._take_event(self, {"choices": [choice], "usage": usage}, at, echo, payload)
        if (prompt := _by_id(told.get("input_token_logprobs"))) is not None:
            self.prompt_logprobs = prompt

    def _news(self, index: int, event: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
        """Give what an event adds to those before it."""
        text, ids, seen = self.before.get(index, ("", [], 0))
        now = event["text"] if isinstance(event.get("text"), str) else ""
        given = event["output_ids"] if isinstance(event.get("output_ids"), list) else []
        new_text = now[len(text) :] if now.startswith(text) else now
        new_ids = given[len(ids) :] if given[: len(ids)] == ids else given
        logprobs = told.get("output_token_logprobs")
        listed = logprobs if isinstance(logprobs, list) else []
        new_logprobs = listed[seen:] if len(listed) >= seen else listed
        self.before[index] = (
            now if now.startswith(text) else text + now,
            given if given[: len(ids)] == ids else [*ids, *given],
            max(seen, len(listed)),
        )
        values = [each[0] for each in new_logprobs if isinstance(each, list) and each]
        return {
            "text": new_text,
            "token_ids": new_ids,
            "logprobs": {"token_logprobs": values} if isinstance(logprobs, list) else None,
        }


def _reason(told: Mapping[str, Any]) -> str | None:
    """Give why it ended: an object with a type; a text in old versions."""
    found = told.get("finish_reason")
    kind = found.get("type") if isinstance(found, Mapping) else found
    return kind if isinstance(kind, str) else None


def _by_id(found: object) -> tuple[Mapping[int, float], ...] | None:
    """Read one [log-probability, id, text] for each place of the prompt; the first has none."""
    if not isinstance(found, list) or not found:
        return None
    return tuple(_one(each) for each in found)


def _one(place: object) -> Mapping[int, float]:
    match place:
        case [float() | int() as value, int() as token, *_]:
            return {token: float(value)}
    return {}
