"""The limits of an engine as AIConfigurator's generated files set them: command lines in Kubernetes YAML, engine files.

Reads only; what the numbers are for is known to `planned_profile.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sidecar.engines.adapters import of_name
from sidecar.errors import YAML_VALUE_ERRORS, ProfileError
from sidecar.warmup import marked_yaml

GENERATED, DEPLOYED, HELM_VALUES = "generator_config.yaml", "k8s_deploy.yaml", "llm-d-values.yaml"
#: Limits that profiles assume, by the names of hints.
LIMITS = ("max_model_len", "max_num_batched_tokens", "max_num_seqs")
#: TensorRT-LLM's engine files (LlmArgs, documentation "trtllm-serve"): one per role.
_ENGINE_FILES = {"": "agg_config.yaml", "prefill": "prefill_config.yaml", "decode": "decode_config.yaml"}


@dataclass(frozen=True)
class Sourced:
    """A number, and where it stands."""

    value: int
    source: str


def limits_of_folder(top: Path, backend: str, role: str) -> dict[str, Sourced]:
    """Give the limits that a configuration's files set, each with its source; those that none sets are left out.

    Raises ProfileError for files that are missing or can't be read.
    """
    for path in (top, top / GENERATED):
        if not path.exists():
            raise ProfileError(
                f"{path} is missing, so this result is not whole: let AIConfigurator run again with --save-dir and "
                "without stopping it. Configurations for which it makes no files can't be taken; see --rank."
            )
    if backend == "trtllm":
        return _of_engine_file(top / _ENGINE_FILES[role])
    deployed = next((each for each in (top / DEPLOYED, top / HELM_VALUES) if each.is_file()), None)
    if deployed is None:
        raise ProfileError(
            f"{top / DEPLOYED} is missing, so the engine's limits are not known: let AIConfigurator run again with "
            "--deployment-target dynamo-j2, its default, or llm-d-helm."
        )
    lines = list(_command_lines(deployed, role))
    if not lines:
        kind = f"{role} worker" if role else "worker"
        raise ProfileError(
            f"{deployed} has no command line of a {kind}, so it is cut short or of a version that this program does not "
            "know: let AIConfigurator run again with --save-dir."
        )
    hints = of_name(backend).hints(lines[0], {})
    return {
        name: Sourced(hints[name].value, f"{top.name}/{deployed.name}, {hints[name].source}")
        for name in LIMITS
        if name in hints and isinstance(hints[name].value, int)
    }


def _of_engine_file(path: Path) -> dict[str, Sourced]:
    if not path.is_file():
        raise ProfileError(
            f"{path} is missing, so the engine's limits are not known: let AIConfigurator run again with --save-dir."
        )
    value = marked_yaml.read(path, noun="engine file").value
    hints = of_name("trtllm").config(value) if isinstance(value, Mapping) else {}
    found = {
        name: Sourced(hints[name].value, f"{path.parent.name}/{path.name}, {hints[name].source}")
        for name in LIMITS
        if name in hints and hints[name].value > 0
    }
    if not found:
        raise ProfileError(f"{path} sets no limits, so it is cut short: let AIConfigurator run again with --save-dir.")
    return found


def _command_lines(path: Path, role: str) -> Iterator[list[str]]:
    """Give the command lines of the workers of a role."""
    for document in _documents(path):
        for kind, worker in _workers(document):
            if not role or role == kind:
                for container in _containers(worker):
                    yield _words(container)


def _documents(path: Path) -> list[Any]:
    """Read a file of Kubernetes, which may hold several documents."""
    try:
        return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
        why = " ".join(str(error).split())
        raise ProfileError(f"{path} can't be read ({why}); let AIConfigurator make it again.") from error


def _workers(value: Any) -> Iterator[tuple[str, Any]]:
    """Find the workers and their roles, in a DynamoGraphDeployment or in values of llm-d's Helm chart."""
    document = value if isinstance(value, Mapping) else {}
    spec = document.get("spec")
    services = spec.get("services") if isinstance(spec, Mapping) else None
    for service in services.values() if isinstance(services, Mapping) else ():
        if isinstance(service, Mapping) and service.get("componentType") == "worker":
            yield str(service.get("subComponentType") or ""), service
    for role in ("decode", "prefill"):
        if role in document:
            yield role, document[role]


def _containers(value: Any) -> Iterator[Mapping[str, Any]]:
    """Find what has a command or arguments, wherever the version nests it."""
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        if isinstance(each, Mapping) and any(isinstance(each.get(part), list) for part in ("command", "args")):
            yield each
        else:
            yield from _containers(each)


def _words(container: Mapping[str, Any]) -> list[str]:
    """Give a container's words; of a shell's script, the words of the script."""
    words = [str(each) for part in ("command", "args") for each in _list(container.get(part))]
    if "-c" in words[:3]:
        try:
            return shlex.split(" ".join(words[words.index("-c") + 1 :]))
        except ValueError:
            return []
    return words


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
