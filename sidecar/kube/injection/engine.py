"""Which container of a pod is the engine, how it is started, and where it answers.

Nothing is changed here. What a pod says in another way than these rules know is asked for by an annotation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.config.routers import ENGINE_COMMAND, router_of
from sidecar.kube.injection.options import Options, key

Json = dict[str, Any]

#: Last part of an image's name. A registry or a mirror may stand before it.
ENGINE_IMAGE = re.compile(r"^(vllm-openai(-.+)?|vllm|sglang|llm-d-.+|vllm-runtime|sglang-runtime|.*-vllm-.*|.*-vllm)$")
#: The images of vLLM whose entrypoint is documented. Entrypoint of docker/Dockerfile: the module until 0.11, `vllm serve`
#: after it. `vllm serve` of old versions refuses `--model`, and the module takes no positional model.
KNOWN_IMAGE = re.compile(r"^vllm-openai(-cpu|-rocm|-xpu)?$")
SERVE, MODULE = ("vllm", "serve"), ("python3", "-m", "vllm.entrypoints.openai.api_server")
SERVE_SINCE = (0, 12)
_VERSION = re.compile(r"^v?(\d+)\.(\d+)")
_PORT = re.compile(r"--port[= \t]+[\"']?([^\s\"';|&]+)")
_TLS = re.compile(r"--ssl-(keyfile|certfile)\b")
_KEY = re.compile(r"--api-key\b")
_PYTHON = re.compile(r"^python3?(\.\d+)?$")
_EXPANSION = re.compile(r"\$[({]?(\w+)[)}]?")
#: Where vLLM answers unless told otherwise.
PORT = 8000


class NotInjected(Exception):
    """A pod is admitted as it is; the message says why and what to do."""


@dataclass(frozen=True)
class Image:
    """An image's reference, taken apart: `name` is the last part of the repository."""

    name: str
    tag: str
    digest: str


def parse_image(reference: str) -> Image:
    """Take an image's reference apart."""
    rest, _, digest = reference.partition("@")
    repository, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = rest, ""
    return Image(repository.rpartition("/")[2], tag, digest)


def words(container: Json) -> list[str]:
    """Give command and arguments of a container; what isn't text is left out."""
    found = [*(container.get("command") or []), *(container.get("args") or [])]
    return [word for word in found if isinstance(word, str)]


def looks_like_engine(container: Json) -> bool:
    """Tell whether image or command say that this is an inference engine."""
    text = " ".join(words(container))
    if router_of(text, str(container.get("image", ""))):
        return False
    return bool(ENGINE_COMMAND.search(text) or ENGINE_IMAGE.match(parse_image(str(container.get("image", ""))).name))


def find_engine(containers: Sequence[Json], options: Options) -> int:
    """Give the index of the engine's container. Raises NotInjected when that can't be told."""
    names = [str(container.get("name")) for container in containers]
    if options.container:
        if options.container not in names:
            raise NotInjected(f"{key('container')} names {options.container}; the pod has {', '.join(names)}.")
        return names.index(options.container)
    if len(containers) == 1:
        title = router_of(" ".join(words(containers[0])), str(containers[0].get("image", "")))
        if title and not _asks_for_gpu(containers[0]):
            raise NotInjected(
                f"container {names[0]} is {title}, which runs no model; set {key('container')} if it is an engine."
            )
        return 0
    for rule in (looks_like_engine, _asks_for_gpu, _opens_port):
        found = [index for index, container in enumerate(containers) if rule(container)]
        if len(found) == 1:
            return found[0]
    raise NotInjected(f"which of {', '.join(names)} is the engine can't be told; set {key('container')}.")


def _asks_for_gpu(container: Json) -> bool:
    limits = (container.get("resources") or {}).get("limits") or {}
    return any(str(name).startswith(("nvidia.com/gpu", "nvidia.com/mig")) for name in limits)


def _opens_port(container: Json) -> bool:
    return any(port.get("containerPort") == PORT for port in container.get("ports") or [])


def command_of(container: Json, options: Options) -> list[str]:
    """Give the words that stand before the container's arguments, which stay as they are.

    Raises NotInjected when the image's entrypoint is not known.
    """
    if container.get("command"):
        return [str(word) for word in container["command"]]
    if options.engine_command:
        return list(options.engine_command)
    image = parse_image(str(container.get("image", "")))
    if not KNOWN_IMAGE.match(image.name):
        raise NotInjected(
            f"container {container.get('name')} has no command and the entrypoint of its image is not known; "
            f"set {key('engine-command')}."
        )
    arguments = [str(word) for word in container.get("args") or []]
    if not arguments:
        raise NotInjected(f"container {container.get('name')} names no model; set {key('engine-command')}.")
    version = _VERSION.match(image.tag)
    known = (int(version[1]), int(version[2])) if version else None
    positional = not arguments[0].startswith("-")
    return list(SERVE if positional or (known and known >= SERVE_SINCE) else MODULE)


def interpreter(command: Sequence[str], options: Options) -> str:
    """Name the Python that runs the launcher: the one that runs the engine, where the command says which."""
    if options.python:
        return options.python
    first = command[0] if command else ""
    return first if _PYTHON.match(os.path.basename(first)) else "python3"


def url_of(container: Json, options: Options) -> str:
    """Tell where the engine answers: annotation, `--port`, a port named for HTTP, the first port, vLLM's default."""
    if options.engine_url:
        return options.engine_url
    text = " ".join([*(() if container.get("command") else options.engine_command), *words(container)])
    scheme = "https" if _TLS.search(text) else "http"
    ports = [port for port in container.get("ports") or [] if isinstance(port.get("containerPort"), int)]
    named = [port for port in ports if re.match(r"^(https?|api|serve|engine|openai|vllm)", str(port.get("name", "")))]
    given = _number(_PORT.findall(_own(text)), container)
    first = (named or ports or [{"containerPort": PORT}])[0]["containerPort"]
    return f"{scheme}://127.0.0.1:{given or first}"


def _own(text: str) -> str:
    """Give the engine's part of a script that runs other servers, too, such as `ray start --port=6379`; else all of it."""
    engine = ENGINE_COMMAND.search(text)
    return re.split(r"[;&|\n]", text[engine.start() :].replace("\\\n", " "))[0] if engine else text


def _number(found: Sequence[str], container: Json) -> int | None:
    """Read a port, also where it is a variable of the container."""
    if not found:
        return None
    values = {str(entry.get("name")): str(entry.get("value", "")) for entry in container.get("env") or []}
    text = _EXPANSION.sub(lambda match: values.get(match[1], ""), found[-1])
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 65536 else None


def secret_of(container: Json, options: Options) -> tuple[str, str] | None:
    """Give name and key of the Secret that holds the engine's API key; None when there is none or it is no Secret."""
    if options.api_key_secret:
        name, _, entry = options.api_key_secret.partition("/")
        return name, entry
    for variable in container.get("env") or []:
        if variable.get("name") == "VLLM_API_KEY":
            reference = (variable.get("valueFrom") or {}).get("secretKeyRef") or {}
            if reference.get("name") and reference.get("key"):
                return str(reference["name"]), str(reference["key"])
    return None


def has_plain_key(container: Json) -> bool:
    """Tell whether an API key stands in the pod itself, where the sidecar can't take it from."""
    plain = any(entry.get("name") == "VLLM_API_KEY" and entry.get("value") for entry in container.get("env") or [])
    return plain or bool(_KEY.search(" ".join(words(container))))
