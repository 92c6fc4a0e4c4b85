"""One request for text, from its body to its classified result.

Which endpoint and model to use, and what a lost connection means, is the engine client's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import aiohttp

from sidecar.engines.connection import Connection, Reply, read_limited
from sidecar.engines.protocol import Completion, CompletionRequest
from sidecar.engines.recognition import json_object
from sidecar.engines.stream import Answer, EventLines, kind_of, message_of, snippet

KEY_ADVICE = "give its key in the file that WARMUP_API_KEY_FILE names"


async def converse(
    http: Connection,
    path: str,
    body: dict[str, Any],
    answer: Answer,
    clock: Callable[[], float],
    headers: Mapping[str, str],
) -> None:
    """Send the body and read the answer into `answer` until it ends or goes wrong.

    Raises UnansweredError when no complete HTTP answer comes; has no deadline of its own.
    """
    echo = bool(body.get("echo"))
    async with http.stream(path, body, headers) as response:
        answer.status = response.status
        if response.status != 200:
            content = await read_limited(response)
            answer.fail(kind_of(response.status), refusal(path, response.status, content))
        elif response.content_type == "text/event-stream":
            await _read_events(response, answer, clock, echo, http.reading)
        else:
            answer.take(await response.read(), clock(), echo=echo)
            answer.times.clear()


def body_of(request: CompletionRequest, model: str) -> dict[str, Any]:
    """Give the JSON of a request; `extra` counts over everything else, fields that are None are left out."""
    body: dict[str, Any] = {"model": model, "max_tokens": request.max_tokens, "temperature": request.temperature}
    if request.messages is not None:
        body["messages"] = [dict(message) for message in request.messages]
    else:
        body["prompt"] = request.prompt or ""
    if request.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if request.top_p is not None:
        body["top_p"] = request.top_p
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    return {name: value for name, value in (body | dict(request.extra)).items() if value is not None}


def refusal(path: str, status: int, content: bytes) -> str:
    """Say in a sentence what an answer that isn't 200 says."""
    parsed = json_object(Reply(200, content, new_connection=False))
    said = message_of(parsed) if parsed is not None else snippet(content)
    advice = f"; {KEY_ADVICE}" if status in (401, 403) else ""
    return f"HTTP {status} to {path}: {said or 'no text'}{advice}"


async def _read_events(
    response: aiohttp.ClientResponse, answer: Answer, clock: Callable[[], float], echo: bool, turns: asyncio.Semaphore
) -> None:
    lines = EventLines()
    try:
        async for chunk in response.content.iter_any():
            # The time of arrival, and not of the turn.
            at = clock()
            async with turns:
                for payload in lines.feed(chunk):
                    answer.take(payload, at, echo=echo)
                if answer.done or answer.error_kind:
                    return
                await asyncio.sleep(0)
        answer.take(lines.rest(), clock(), echo=echo)
    except ValueError as error:
        answer.fail("not_json", f"the stream holds {error}")
        return
    if not answer.done:
        answer.fail("broken", "the stream ended without [DONE]")


def completion_of(answer: Answer, started: float, ended: float) -> Completion:
    """Give the result of an answer; `started` and `ended` in seconds of the same clock as its pieces."""
    times = answer.times
    counted = len(answer.token_ids) if answer.token_ids else answer.chunks
    return Completion(
        ok=answer.error_kind is None and answer.status == 200,
        status=answer.status,
        ttft_s=times[0] - started if times else None,
        total_s=ended - started,
        gaps_s=tuple(after - before for before, after in pairwise(times)),
        text="".join(answer.texts),
        tokens=counted if answer.tokens is None else answer.tokens,
        prompt_tokens=answer.prompt_tokens or 0,
        finish_reason=answer.finish_reason,
        error=answer.error,
        error_kind=answer.error_kind,
        logprobs=None if answer.logprobs is None else tuple(answer.logprobs),
        token_ids=None if answer.token_ids is None else tuple(answer.token_ids),
        prompt_token_ids=answer.prompt_token_ids,
        alternatives=tuple(answer.alternatives) or None,
        prompt_logprobs=answer.prompt_logprobs,
    )
