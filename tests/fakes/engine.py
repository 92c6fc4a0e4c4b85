"""A scripted engine that speaks vLLM's HTTP, in the test's own process or as one of its own.

What it is told to do is declared in `engine_script.py`. As a process it can be killed:

    python -m tests.fakes.engine --port 8000 --script '{"compile_seconds": 0.5}'

Cache directories come from TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR then. Unknown flags are ignored.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web

from tests.fakes.engine_answer import Answer
from tests.fakes.engine_refusals import error, refuse_text, refuse_tokens
from tests.fakes.engine_script import (
    Counters,
    Kernels,
    Script,
    features_of,
    metrics_page,
    prompt_tokens,
    words_for,
)
from tests.fakes.engine_work import TASK_OF, OtherWork
from tests.fakes.speaking import Language


class FakeEngine:
    """One engine; `async with` starts and stops it, `kill` and `start` make it die and come back.

    `url` is known before it is `listening`. `died` tells whether a scripted death happened.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        port: int = 0,
        triton: Path | None = None,
        inductor: Path | None = None,
        exit_on_death: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        self.script = script or Script()
        self._host = host
        self._caches = (triton, inductor)
        self._exit_on_death = exit_on_death
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None
        self.requests: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.newest: dict[str, Any] = {}
        self._born()

    def _born(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((self._host, self._port))
        self._port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.started = time.time()
        self.counters = Counters()
        self.kernels = Kernels(self.script, *self._caches)
        self.language = Language(self.script.vocab_size)
        self._slots = asyncio.Semaphore(self.script.max_num_seqs)
        self.died = self.listening = False
        self.listening_since: float | None = None

    async def __aenter__(self) -> FakeEngine:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    async def start(self) -> None:
        """Come back as a new process on the same port."""
        self._born()
        await self._listen()

    async def kill(self) -> None:
        """Die as by SIGKILL: every connection is reset, the port refuses."""
        self.died, self.listening = True, False
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        runner, self._runner = self._runner, None
        if runner is not None and runner.server is not None:
            server = runner.server
            for site in list(runner.sites):
                await site.stop()
            self._socket.close()
            # One that was accepted just now is not among them yet, and nobody would ever answer it.
            for _ in range(5):
                for connection in list(server.connections):
                    if connection.transport is not None:
                        connection.transport.abort()
                await asyncio.sleep(0)
            await runner.cleanup()
        self._socket.close()

    async def _listen(self) -> None:
        if self.script.load_seconds:
            self._spawn(self._serve_after(self.script.load_seconds))
        else:
            await self._serve_after(0)

    async def _serve_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        application = web.Application(client_max_size=64 << 20, middlewares=[self._guard])
        application.add_routes(
            [
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.get("/metrics", self._metrics),
                web.get("/version", self._version),
                web.get("/v1/models", self._models),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/completions", self._text),
                web.post("/v1/chat/completions", self._text),
                web.get("/server_info", self._server_info),
                web.get("/is_sleeping", self._sleep),
                web.post("/sleep", self._sleep),
                web.post("/wake_up", self._sleep),
                web.get("/__script__", self._control),
                web.post("/__script__", self._control),
                *OtherWork(self.script, self._begin_work, lambda feature: self.kernels.need(feature)).routes(),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()
        self.listening, self.listening_since = True, time.time()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(request.path)
        if TASK_OF.get(request.path, "generate") not in self.script.tasks and request.path in TASK_OF:
            return web.json_response({"detail": "Not Found"}, status=404)
        key = self.script.api_key
        if key and request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _control(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.script.update(await request.json())
        return web.json_response(
            {
                "script": dataclasses.asdict(self.script),
                "counters": dataclasses.asdict(self.counters),
                "compiled": self.kernels.compiled,
                "requests": self.requests[-1000:],
                "started": self.started,
                "listening_since": self.listening_since,
            }
        )

    async def _health(self, request: web.Request) -> web.Response:
        mode = self.script.health
        if mode in ("hang", "slow"):
            await asyncio.sleep(3600 if mode == "hang" else self.script.slow_seconds)
        return web.Response(status=503 if mode == "503" else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.script.no_metrics:
            return error(404, "Not Found")
        if self.script.metrics_status != 200:
            return error(self.script.metrics_status, "not now")
        return web.Response(text=metrics_page(self.script, self.counters, self.started))

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.script.version})

    async def _models(self, request: web.Request) -> web.Response:
        if self.script.models_status != 200:
            return error(self.script.models_status, "not now")
        base = {
            "id": self.script.model,
            "object": "model",
            "owned_by": "vllm",
            "root": self.script.root,
            "parent": None,
            "max_model_len": self.script.max_model_len,
        }
        adapters = [
            base | {"id": name, "parent": self.script.model, "root": f"/adapters/{name}"}
            for name in self.script.adapters
        ]
        return web.json_response({"object": "list", "data": [base, *adapters]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except ValueError:
            return error(400, "1 validation error: JSON decode error")
        refused = refuse_tokens(self.script, body)
        if refused is not None:
            return refused
        tokens = list(range(10, 10 + len(json.dumps(body.get("messages") or body.get("prompt"))) // 4))
        return web.json_response({"count": len(tokens), "max_model_len": self.script.max_model_len, "tokens": tokens})

    async def _server_info(self, request: web.Request) -> web.Response:
        if not self.script.dev_mode:
            return error(404, "Not Found")
        script = self.script
        await asyncio.sleep(script.server_info_seconds)
        config = {
            "model_config": {
                "max_model_len": script.max_model_len,
                "quantization": script.quantization,
                "hf_config": json.dumps({"vocab_size": script.vocab_size}),
            },
            "scheduler_config": {
                "max_num_seqs": script.max_num_seqs,
                "max_num_batched_tokens": script.max_num_batched_tokens,
            },
            "cache_config": {"cache_dtype": script.kv_cache_dtype, "block_size": script.block_size},
        }
        env = {"VLLM_BATCH_INVARIANT": script.batch_invariant}
        as_json = request.query.get("config_format") == "json"
        return web.json_response({"vllm_config": config if as_json else str(config), "vllm_env": env})

    async def _sleep(self, request: web.Request) -> web.Response:
        if not self.script.dev_mode:
            return error(404, "Not Found")
        if request.method == "GET":
            return web.json_response({"is_sleeping": self.script.asleep or self.script.partly_awake})
        self.script.asleep = request.path == "/sleep"
        return web.Response(status=200)

    async def _text(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        chat = request.path.endswith("chat/completions")
        refused = refuse_text(self.script, body, chat=chat)
        if refused is not None:
            return refused
        if self.script.at_most is not None and self.counters.running + self.counters.waiting >= self.script.at_most:
            self.counters.refused += 1
            return error(self.script.full_status, "The request queue is full.")
        size = prompt_tokens(body)
        self.counters.texts += 1
        self.script.asleep |= self.counters.texts == self.script.asleep_from_text
        self.counters.while_asleep += self.script.asleep or self.script.partly_awake
        kept = {key: value for key, value in body.items() if key not in ("prompt", "messages")}
        record: dict[str, Any] = {"path": request.path, "prompt_tokens": size, **kept, "at": time.time()}
        self.requests.append(record)
        self.newest = body
        if self._must_die(size):
            await self._die()
        if self.script.generation in ("500", "503") or self.script.asleep:
            return error(503 if self.script.generation == "503" else 500, "EngineCore encountered an issue.")
        self.counters.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.counters.waiting -= 1
        self.counters.running += 1
        self.counters.tokens_held += size
        try:
            return await self._generate(request, body, chat, size)
        except asyncio.CancelledError:
            self.counters.aborted += 1
            raise
        except ConnectionResetError:
            self.counters.aborted += 1
            return web.Response(status=499)
        finally:
            self.counters.running -= 1
            if self.script.pin_seconds:
                self._spawn(self._let_go(size, self.script.pin_seconds))
            else:
                self.counters.tokens_held -= size
            self._slots.release()
            record["answered_at"] = time.time()

    async def _let_go(self, size: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.counters.tokens_held -= size

    async def _begin_work(self, request: web.Request, kind: str, size: int) -> web.Response | None:
        """Count a request for other work than text, and do with it what the script says."""
        self.counters.texts += 1
        self.requests.append({"path": request.path, "prompt_tokens": size, "kind": kind, "at": time.time()})
        if self._must_die(size):
            await self._die()
        if self.script.generation in ("500", "503") or self.script.asleep:
            return error(503 if self.script.generation == "503" else 500, "EngineCore encountered an issue.")
        if self.script.generation == "hang" or self.script.freeze:
            await asyncio.sleep(3600)
        self.counters.success += 1
        self.counters.prompt_tokens += size
        return None

    def _must_die(self, size: int) -> bool:
        script = self.script
        return (
            (script.die_on_tokens is not None and size > script.die_on_tokens)
            or size == script.die_at_tokens
            or self.counters.texts == script.die_on_request
            or (script.die_on_mixed and self.counters.decoding > 0)
        )

    async def _die(self) -> None:
        """End the process, or reset every connection where the engine shares the test's process."""
        if self._exit_on_death:
            os.kill(os.getpid(), signal.SIGKILL)
        self._spawn(self.kill())
        await asyncio.sleep(3600)

    async def _generate(self, request: web.Request, body: dict[str, Any], chat: bool, size: int) -> web.StreamResponse:
        if self.script.generation == "hang" or self.script.freeze:
            await asyncio.sleep(3600)
        for feature in features_of(body, size, self.script, chat):
            await self.kernels.need(feature)
        await asyncio.sleep(self.script.prefill_seconds_per_1k * size / 1000)
        self.counters.prompt_tokens += size
        words = words_for(body, self.script)
        answer = Answer(body, chat, size, self.script)
        if self.script.speaks and not body.get("stream"):
            return self._speak(body, chat, answer)
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        if body.get("stream"):
            await stream.prepare(request)
            if chat:
                await stream.write(answer.event("", None, first=True))
        self.counters.decoding += 1
        try:
            for index, word in enumerate(words):
                await self.kernels.not_compiling()
                await asyncio.sleep(self.script.token_seconds)
                self.counters.generation_tokens += 1
                self.counters.steps += 1
                if not body.get("stream"):
                    continue
                await stream.write(answer.event(word, "length" if index == len(words) - 1 else None))
                if index == 1 and await self._misbehave(request, stream):
                    return stream
        finally:
            self.counters.decoding -= 1
        self.counters.success += 1
        self.counters.lengths.append((size, len(words)))
        if not body.get("stream"):
            return web.json_response(answer.whole(words))
        if not words:
            await stream.write(answer.event("", "stop"))
        await stream.write(answer.usage(len(words)) + b"data: [DONE]\n\n")
        return stream

    def _speak(self, body: dict[str, Any], chat: bool, answer: Answer) -> web.Response:
        self.language.fault = self.script.fault
        choice = self.language.answer(body, chat)
        if choice is None:
            return error(500, "Out of range float values are not JSON compliant", "InternalServerError")
        self.counters.success += 1
        count = len(choice.get("token_ids") or ())
        self.counters.generation_tokens += count
        return web.json_response(answer.envelope([choice], count))

    async def _misbehave(self, request: web.Request, stream: web.StreamResponse) -> bool:
        """Do what the script says in the middle of a stream; True ends it there."""
        mode = self.script.generation
        if mode == "error_in_stream":
            body = {"error": {"message": "EngineCore encountered an issue.", "code": 500}}
            await stream.write(b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n")
        elif mode == "non_utf8":
            await stream.write(b'data: {"choices": [{"index": 0, "text": "\xff\xfe"}]}\n\n')
        elif mode == "huge_line":
            await stream.write(b"data: " + b"x" * (1 << 20))
        elif mode == "not_json":
            await stream.write(b"data: <html>\n\n")
        elif mode == "cut" and request.transport is not None:
            await asyncio.sleep(0)
            request.transport.abort()
        return mode in ("error_in_stream", "truncated", "cut", "non_utf8", "huge_line", "not_json")


async def _main(script: Script, host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    triton, inductor = (os.environ.get(name) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"))
    engine = FakeEngine(
        script,
        port=port,
        triton=Path(triton) if triton else None,
        inductor=Path(inductor) if inductor else None,
        exit_on_death=True,
        host=host,
    )
    async with engine:
        print(f"INFO Starting vLLM server on {engine.url}", file=sys.stderr, flush=True)
        await stop.wait()


def _arguments() -> tuple[Script, str, int]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--script", default="{}", help="JSON of the knobs, or @FILE")
    given, _ = parser.parse_known_args()
    text = given.script
    script = Script()
    script.update(json.loads(Path(text[1:]).read_text() if text.startswith("@") else text))
    return script, given.host, given.port


if __name__ == "__main__":
    asyncio.run(_main(*_arguments()))
