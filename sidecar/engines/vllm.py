"""The client of vLLM: what its endpoints are called and what their answers mean.

What it shares with other clients is in `http_engine.py`; its declaration is in `adapters/vllm.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sidecar.engines import abilities, exposition, server_facts
from sidecar.engines.generation import body_of, converse
from sidecar.engines.http_engine import Deadlines as Deadlines
from sidecar.engines.http_engine import HttpEngine, text_of
from sidecar.engines.protocol import CompletionRequest, EngineFacts, EngineStats
from sidecar.engines.recognition import json_object
from sidecar.engines.server_facts import Answers
from sidecar.engines.stream import Answer
from sidecar.engines.work import do_work, rank_header


class VllmEngine(HttpEngine):
    """A client of one vLLM server, of any version from 0.6 to 0.33.

    A 503 of /health means that the engine's core has died (vllm/entrypoints/serve/instrumentator/health.py); while
    vLLM loads, its port refuses connections. A frozen or sleeping engine answers 200.
    """

    name = "vllm"
    title = "vLLM"
    #: For which process the metrics need no second opinion on whether it is awake; None: for none.
    _awake: tuple[str | None] | None = None

    async def facts(self) -> EngineFacts:
        """Ask /v1/models, /version, /metrics, /server_info, /tokenize and which endpoints there are.

        Nothing of it is work for the GPU. Raises NotAnEngine, EngineUnauthorized, ModelNotServed or EngineError.
        """
        card, adapters = await self._card()
        patience = self._deadlines.facts_s
        version, page, info, chat, tasks = await asyncio.gather(
            self._quiet_get("/version"),
            self._quiet_get("/metrics"),
            self._quiet_get("/server_info?config_format=json", self._server_info_deadline()),
            abilities.has_chat(self._http, card["id"], patience),
            abilities.tasks_of(self._http, patience),
        )
        root = card.get("root") if isinstance(card.get("root"), str) else None
        config, lora = await asyncio.to_thread(server_facts.read_local, root, adapters)
        images, sounds = await self._senses(card["id"], config or {}) if chat else (None, None)
        self._served = card["id"]
        return server_facts.gather(
            Answers(
                card=card,
                adapters=tuple(each["id"] for each in adapters),
                adapter_ranks=lora,
                version=json_object(version) or {},
                metrics=exposition.read(text_of(page)),
                server_info=json_object(info) or {},
                model_config=config or {},
                chat=chat,
                images=images,
                sounds=sounds,
                tasks=tasks,
            ),
            self._hints,
        )

    async def stats(self) -> EngineStats:
        """Read the metrics, and ask /is_sleeping where they can't be trusted to tell of sleep; raises as the metrics do.

        After a wake-up of the weights alone (/wake_up?tags=weights) the metrics of vLLM 0.11.2 and later say `awake`, those of
        0.32 no longer (AsyncLLM.wake_up in vllm/v1/engine/async_llm.py), and a request would use a KV cache that is not there.
        Older ones show no sleep at all.
        """
        found = await super().stats()
        if found.asleep:
            self._awake = None
        if found.asleep or self._awake == (found.identity,):
            return found
        sleeps = await self._sleeps(found)
        return found if sleeps is None else replace(found, asleep=sleeps)

    async def _sleeps(self, found: EngineStats) -> bool | None:
        """Ask an engine in development mode, the only one that can be put to sleep over HTTP; None: it doesn't tell."""
        reply = await self._quiet_get("/is_sleeping", self._deadlines.recheck_s)
        told = (json_object(reply) or {}).get("is_sleeping") if reply is not None and reply.status == 200 else None
        if (told is False and found.asleep is not None) or (reply is not None and not isinstance(told, bool)):
            self._awake = (found.identity,)
        return told if isinstance(told, bool) else None

    async def _senses(self, model: str, config: Mapping[str, Any]) -> tuple[bool | None, bool | None]:
        """Say whether messages may hold pictures, and recordings; the engine is asked where its model's files don't tell.

        vLLM 0.25.1 answers the question for a model of text with a traceback in its log (seen on an H200).
        """
        if server_facts.reads_text_alone(config):
            return False, False
        patience = self._deadlines.facts_s
        images, sounds = await asyncio.gather(
            abilities.has_images(self._http, model, patience), abilities.has_sounds(self._http, model, patience)
        )
        return images, sounds

    async def _converse(self, request: CompletionRequest, answer: Answer) -> None:
        model = await self._model(request)
        if request.work is not None:
            await do_work(self._http, request, request.work, model, answer)
            return
        path = "/v1/completions" if request.messages is None else "/v1/chat/completions"
        await converse(self._http, path, body_of(request, model), answer, self._clock, rank_header(request))

    def _server_info_deadline(self) -> float:
        return self._deadlines.server_info_s if self._hints else self._deadlines.facts_s
