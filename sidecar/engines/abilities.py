"""What an engine can be asked to do, found out through questions that are no work for the GPU.

What the answers are used for is decided in `server_facts.py`.
"""

from __future__ import annotations

import asyncio
import base64
import io
import wave
from collections.abc import Mapping
from typing import Any

from sidecar.engines.connection import Connection, UnansweredError
from sidecar.engines.work import TASK_PATHS

_GREETING: tuple[Mapping[str, Any], ...] = ({"role": "user", "content": "Hello"},)
#: A white square of 28 pixels as PNG: enough to be refused by a model without eyes, and cheap to prepare for one that has them.
_SQUARE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABwAAAAcCAIAAAD9b0jDAAAAIklEQVR42mP4TwPAMGroqKGjho4aOm"
    "roqKGjho4aOjIMBQDyYCdYB5gw6gAAAABJRU5ErkJggg=="
)
#: Samples a second that speech models take.
_SAMPLE_RATE = 16000
_PICTURE: tuple[Mapping[str, Any], ...] = (
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": _SQUARE}}, {"type": "text", "text": "What is this?"}],
    },
)


async def tasks_of(http: Connection, timeout_s: float) -> tuple[str, ...] | None:
    """Ask which endpoints there are: a GET is refused with 405 where only POST is allowed, and with 404 elsewhere.

    None when that can't be told. Before about 0.13 vLLM had the endpoints of all tasks whatever the model does.
    """
    answers = await asyncio.gather(*(_status(http, path, timeout_s) for path in TASK_PATHS.values()))
    found = tuple(task for task, status in zip(TASK_PATHS, answers, strict=True) if status == 405)
    if any(status not in (404, 405) for status in answers) or not found or {"generate", "embed"} <= set(found):
        return None
    return found


async def has_chat(http: Connection, model: str, timeout_s: float) -> bool | None:
    """Ask whether there is a chat template, by having it applied."""
    return await _applies(http, model, _GREETING, timeout_s)


async def has_images(http: Connection, model: str, timeout_s: float) -> bool | None:
    """Ask whether the model takes pictures, by having one prepared for it; that runs on the CPU alone."""
    return await _applies(http, model, _PICTURE, timeout_s)


async def has_sounds(http: Connection, model: str, timeout_s: float) -> bool | None:
    """Ask whether the model takes recordings in messages, the same way."""
    part = {"type": "input_audio", "input_audio": {"data": _silence(), "format": "wav"}}
    content = [part, {"type": "text", "text": "What is this?"}]
    return await _applies(http, model, ({"role": "user", "content": content},), timeout_s)


def _silence() -> str:
    """Give a second of silence as a WAV file, in base64."""
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(_SAMPLE_RATE)
        recording.writeframes(bytes(2 * _SAMPLE_RATE))
    return base64.b64encode(file.getvalue()).decode("ascii")


async def _applies(
    http: Connection, model: str, messages: tuple[Mapping[str, Any], ...], timeout_s: float
) -> bool | None:
    body = {"model": model, "messages": [dict(message) for message in messages]}
    try:
        reply = await http.post("/tokenize", body, timeout_s=timeout_s, key=True)
    except UnansweredError:
        return None
    return {200: True, 400: False, 422: False}.get(reply.status)


async def _status(http: Connection, path: str, timeout_s: float) -> int | None:
    try:
        return (await http.get(path, timeout_s=timeout_s, key=True)).status
    except UnansweredError:
        return None
