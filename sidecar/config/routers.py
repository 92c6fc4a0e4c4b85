"""What servers in front of engines are called, by the words of their command and by their image; and the commands of engines.

They spread requests over engines; nothing here asks one, and how one is known by its metrics is in `engines/series.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: By title, what stands in a command or is the name of an image: TensorRT-LLM (documentation "trtllm-serve",
#: disaggregated), SGLang (documentation "Router", PD disaggregation), Dynamo (components), llm-d (routing sidecar,
#: cmd/pd-sidecar and its flag --vllm-port), vLLM's production stack, vLLM and LMCache (examples of disaggregated serving),
#: LiteLLM (proxy).
_ROUTERS: Mapping[str, re.Pattern[str]] = {
    "trtllm-serve disaggregated": re.compile(r"(^|[\s/])trtllm-serve\s+disaggregated(\s|$)"),
    "SGLang's router": re.compile(
        r"\bsglang_router\b|(^|[\s/])(sglang-router|sgl-model-gateway)(\s|$)|\bsglang\.srt\.disaggregation\.(mini_lb|launch_lb)\b"
    ),
    "Dynamo's frontend": re.compile(r"\bdynamo\.(frontend|router)\b"),
    "llm-d's routing sidecar": re.compile(r"(^|[\s/])pd-sidecar(\s|$)|(^|\s)--vllm-port\b"),
    "the router of vLLM's production stack": re.compile(r"(^|[\s/])vllm-router(\s|$)|\bvllm_router\b"),
    "a proxy for disaggregated serving": re.compile(r"\b(\w*toy_proxy_server|disagg\w*_proxy\w*)\.py\b"),
    "LiteLLM": re.compile(r"(^|[\s/])litellm(\s|$)"),
}
_IMAGES: Mapping[str, re.Pattern[str]] = {
    "llm-d's routing sidecar": re.compile(r"(^|/)llm-d-routing-sidecar([:@]|$)"),
}
#: Commands that run a model, by the name of the engine's file in `engines/adapters/`, which takes its own from here.
ENGINE_COMMANDS: Mapping[str, re.Pattern[str]] = {
    "vllm": re.compile(r"(^|[\s/])vllm\s+serve\b|\bvllm\.entrypoints\b"),
    "sglang": re.compile(r"\bsglang\.launch_server\b|(^|[\s/])sglang\s+serve\b"),
    "trtllm": re.compile(r"(^|[\s/])trtllm-serve\b(?!\s+disaggregated(\s|$))"),
    "dynamo": re.compile(r"\bdynamo\.(vllm|sglang|trtllm|mocker)\b"),
}
#: Matches any of them, whatever else they name: a model may be called as a router is, and a script may start both.
ENGINE_COMMAND = re.compile("|".join(f"(?:{each.pattern})" for each in ENGINE_COMMANDS.values()))
#: Matches the command of any router.
COMMAND = re.compile("|".join(f"(?:{each.pattern})" for each in _ROUTERS.values()))


def router_of(command: str, image: str = "") -> str:
    """Name the router that a command starts or an image holds; empty for anything else, and where it starts an engine, too."""
    if ENGINE_COMMAND.search(command):
        return ""
    by_command = next((title for title, known in _ROUTERS.items() if known.search(command)), "")
    return by_command or next((title for title, known in _IMAGES.items() if known.search(image)), "")
