"""Requests for other work than text: embeddings, scores, orders and transcriptions, as vLLM's endpoints take them.

Which endpoint a client has is told by `TASK_PATHS`; connections are opened in `connection.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar.engines.connection import Connection, Upload
from sidecar.engines.generation import refusal
from sidecar.engines.protocol import CompletionRequest, Work
from sidecar.engines.recognition import json_object
from sidecar.engines.stream import Answer, kind_of, message_of, snippet

#: One endpoint for each task. Since about 0.13 vLLM has only those of the model's own tasks
#: (vllm/entrypoints/launchers/api_server/routers.py, 0.32); before, all of them.
TASK_PATHS: Mapping[str, str] = {
    "generate": "/v1/completions",
    "embed": "/v1/embeddings",
    "score": "/score",
    "classify": "/classify",
    "transcription": "/v1/audio/transcriptions",
}
#: vllm/entrypoints/pooling/{embed,scoring}/api_router.py and speech_to_text/transcription/api_router.py, 0.32.
_PATHS: Mapping[str, str] = {
    "embed": "/v1/embeddings",
    "score": "/score",
    "rerank": "/rerank",
    "transcription": "/v1/audio/transcriptions",
}
#: Fields of an answer that say that the work was done.
_RESULTS: Mapping[str, tuple[str, ...]] = {
    "embed": ("data",),
    "score": ("data",),
    "rerank": ("results",),
    "transcription": ("text",),
}


async def do_work(http: Connection, request: CompletionRequest, work: Work, model: str, answer: Answer) -> None:
    """Send a request for other work than text and read its whole answer into `answer`.

    Raises UnansweredError when no complete HTTP answer comes.
    """
    path = _PATHS[work.kind]
    body, upload = body_of_work(request, work, model)
    reply = await http.post(
        path, body, timeout_s=request.deadline_s, key=True, headers=rank_header(request), upload=upload
    )
    answer.status = reply.status
    if reply.status != 200:
        answer.fail(kind_of(reply.status), refusal(path, reply.status, reply.body))
        return
    content = json_object(reply)
    if content is None:
        answer.fail("not_json", f"the answer to {path} is not a JSON object: {snippet(reply.body)}")
    elif not any(name in content for name in _RESULTS[work.kind]):
        answer.fail("broken", f"the answer to {path} has no {_RESULTS[work.kind][0]}: {message_of(content)}")
    else:
        usage = content.get("usage")
        counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        answer.prompt_tokens = counted if isinstance(counted, int) else None
        answer.tokens, answer.done = 0, True
        answer.texts = [str(content["text"])] if isinstance(content.get("text"), str) else []


def rank_header(request: CompletionRequest) -> Mapping[str, str]:
    """Give the header that routes a request to one data-parallel rank (vllm/entrypoints/generate/base/serving.py, 0.32).

    Pooling and transcription endpoints ignore it.
    """
    return {} if request.rank is None else {"X-data-parallel-rank": str(request.rank)}


def body_of_work(request: CompletionRequest, work: Work, model: str) -> tuple[dict[str, Any], Upload | None]:
    """Give the fields of a request, and the file that goes with them as a form."""
    prompt = request.prompt or ""
    if not isinstance(prompt, str):
        prompt = list(prompt)
    if work.kind == "embed":
        return {"model": model, "input": prompt}, None
    if work.kind == "score":
        return {"model": model, "text_1": prompt, "text_2": list(work.documents)}, None
    if work.kind == "rerank":
        return {"model": model, "query": prompt, "documents": list(work.documents)}, None
    return {"model": model, "language": work.language}, Upload("file", "warmup.wav", "audio/wav", work.audio)
