"""What a scripted engine refuses, as vLLM 0.32 does: asked of the real one on CPU, request by request.

What it does with a request that it takes is in `engine.py`.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from tests.fakes.engine_script import Script, prompt_tokens

_PNG = b"\x89PNG\r\n\x1a\n"


def error(status: int, message: str, kind: str = "BadRequestError") -> web.Response:
    """Give an error in vLLM's shape."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return web.json_response(body, status=status)


def refuse_text(script: Script, body: dict[str, Any], *, chat: bool) -> web.Response | None:
    """Refuse a request for text, or take it."""
    body.setdefault("model", script.model)
    prompt = body.get("messages" if chat else "prompt")
    wanted = int(16 if body.get("max_tokens") is None else body["max_tokens"])
    if not chat and (not prompt or (isinstance(prompt, list) and min(prompt) < 0)):
        return error(400, "You must pass at least one prompt, of token ids that are 0 or more")
    if not script.extensions and not {"cache_salt", "ignore_eos"}.isdisjoint(body):
        return error(400, "Extra inputs are not permitted: cache_salt, ignore_eos")
    if wanted < 1:
        return error(400, f"max_tokens must be at least 1, got {wanted}.")
    if body["model"] not in (script.model, *script.adapters):
        return error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
    if body.get("stream_options") and not body.get("stream"):
        return error(400, "Stream options can only be defined when `stream=True`.")
    if body.get("prompt_logprobs") is not None and body.get("stream"):
        return error(400, "`prompt_logprobs` are not available when `stream=True`.")
    if isinstance(prompt, list) and not chat and max(prompt) >= script.vocab_size:
        return error(400, f"Token id {max(prompt)} is out of vocabulary")
    tokens = prompt_tokens(body) + wanted
    if tokens > script.max_model_len:
        return error(400, f"maximum context length is {script.max_model_len} tokens, {tokens} were requested")
    return refuse_messages(script, prompt) if chat else None


def refuse_tokens(script: Script, body: Any) -> web.Response | None:
    """Refuse to tokenize something, or do it."""
    if not isinstance(body, Mapping) or not ("messages" in body or isinstance(body.get("prompt"), str)):
        return error(400, "2 validation errors: body.prompt should be a valid string, body.messages is required")
    if body.get("model", script.model) not in (script.model, *script.adapters):
        return error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
    return refuse_messages(script, body["messages"]) if "messages" in body else None


def refuse_messages(script: Script, messages: Any) -> web.Response | None:
    """Refuse messages that the chat template or the model has no place for."""
    if not messages:
        return error(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    parts = [part for message in messages for part in _parts(message)]
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            continue
        taken = {"image_url": script.pictures, "input_audio": script.sounds}.get(str(kind), False)
        if not taken and not (script.pictures or script.sounds):
            return error(400, f"{script.model} is not a multimodal model")
        if not taken:
            return error(400, f"At most 0 {kind} may be provided in one prompt.")
        if not _readable(part):
            return error(400, f"Failed to load {kind}: it is no such file.")
    if not script.chat_template:
        return error(
            400, "As of transformers v4.44, default chat template is no longer allowed, so you must provide one"
        )
    return None


def _parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return list(content) if isinstance(content, list) else []


def _readable(part: Mapping[str, Any]) -> bool:
    """Look at a picture or recording as closely as a decoder does."""
    try:
        if part["type"] == "input_audio":
            content = base64.b64decode(part["input_audio"]["data"], validate=True)
            return content[:4] == b"RIFF" and content[8:12] == b"WAVE" and len(content) > 44
        kind, _, data = str(part["image_url"]["url"]).partition(",")
        content = base64.b64decode(data, validate=True)
        begin = content.index(b"IDAT") + 4
        return (
            kind == "data:image/png;base64" and content.startswith(_PNG) and bool(zlib.decompress(content[begin:-16]))
        )
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error):
        return False
