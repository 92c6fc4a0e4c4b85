"""What may be chosen for an injected pod: by the injector's file for all, by annotations for one.

No pod is changed here; what can't be used becomes a sentence, and the value below it counts.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic import Field

from sidecar.config import Settings
from sidecar.errors import SettingsError
from sidecar.kube.injection import budgets
from sidecar.kube.injection.shape import DOMAIN, GROUP, LIVE_CACHE_SIZE, RESOURCES

#: The label that selects a pod; everything else is an annotation.
LABEL = f"{DOMAIN}/inject"
#: What the webhook leaves behind: the version of the sidecar that it put in.
INJECTED = f"{DOMAIN}/injected"
#: `setting.warmup-sidecar.io/warm_budget_s: "600"` sets WARMUP_WARM_BUDGET_S.
SETTING_DOMAIN = f"setting.{DOMAIN}"
#: What the webhook itself decides; a setting of this name would contradict the pod's shape.
OURS = frozenset({"engine_url", "listen", "control_dir", "live_cache", "store", "launcher", "api_key_file", "golden"})

QUANTITY = r"^\d+(\.\d+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_NAME = r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?"


class Options(pydantic.BaseModel):
    """Options of one pod. The key of each is its name with `-` for `_`, after `warmup-sidecar.io/` in an annotation."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_default=True)

    image: str = Field("", pattern=r"^\S*$", description="The sidecar's image.")
    container: str = Field("", description="The engine's container, where the pod has several.")
    engine_command: tuple[str, ...] = Field(
        (), description="The engine's command, where the container has arguments only: a JSON list, or words."
    )
    engine_url: str = Field("", description="Where the engine answers; empty: found from its arguments and ports.")
    python: str = Field(
        "", pattern=r"^\S*$", description="The Python of the engine's image that runs the launcher; empty: `python3`."
    )
    launcher: bool = Field(True, description="`false`: the engine's command stays as it is.")
    native: bool = Field(True, description="`false`: a plain container, for clusters before 1.29.")
    store: str = Field(
        "",
        pattern=rf"^(|pvc:{_NAME}|hostPath:/\S*)$",
        description="`pvc:NAME`, `hostPath:/DIRECTORY` or empty: no store.",
    )
    store_mode: Literal["read-write", "read-only"] = Field("read-write", description="`read-only`: restore only.")
    live_cache: str = Field("/var/cache/engine", pattern=r"^/\S+$", description="Path of the live cache.")
    live_cache_size: str = Field(LIVE_CACHE_SIZE, pattern=QUANTITY, description="Size limit of the live cache.")
    control_dir: str = Field("/run/warmup", pattern=r"^/\S+$", description="Path of the control directory.")
    api_key_secret: str = Field(
        "", pattern=rf"^(|{_NAME}/\S+)$", description="`NAME/KEY` of the Secret with the engine's API key."
    )
    golden: str = Field(
        "",
        pattern=rf"^(|{_NAME}(/[-._a-zA-Z0-9]+)?)$",
        description="ConfigMap with golden files, or one as `NAME/KEY`.",
    )
    readiness_gate: bool = Field(False, description="Add the readiness gate; the pod's ServiceAccount needs its Role.")
    engine_start_s: float = Field(
        budgets.ENGINE_COLD_START_S, gt=0, le=86400, description="What the engine may take with empty caches."
    )
    group: int = Field(GROUP, ge=0, description="fsGroup of pods that have none: the group both containers share.")
    resources: Mapping[str, Mapping[str, str]] = Field(RESOURCES, description="Requests and limits of the sidecar.")
    settings: Mapping[str, str] = Field(default_factory=dict, description="Settings by name, such as `warm_budget_s`.")

    @pydantic.field_validator("engine_command", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if not value.lstrip().startswith("["):
            return shlex.split(value)
        try:
            return json.loads(value)
        except RecursionError:
            raise ValueError("this is no list of words") from None

    @pydantic.field_validator("engine_url")
    @classmethod
    def _address(cls, value: str) -> str:
        if value and (problem := setting_problem("engine_url", value, ours=frozenset())):
            raise ValueError(problem.split(": ", 2)[-1])
        return value

    @pydantic.field_validator("live_cache", "control_dir", "store")
    @classmethod
    def _place(cls, value: str) -> str:
        path = value.removeprefix("hostPath:")
        # What the API server refuses in a mount, it would refuse the whole pod for.
        if path.startswith("/") and (path != posixpath.normpath(path) or ":" in path or path == "/"):
            raise ValueError("write a plain path, without `..`, `:` or a slash at its end")
        return value

    @pydantic.field_validator("settings")
    @classmethod
    def _usable_settings(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if problem := setting_problem(name, text):
                raise ValueError(problem)
        return value


#: Options that make sense for every pod of an injector and not for one: an annotation can't change them.
ADMINS = frozenset({"settings", "resources", "group", "image"})


def setting_problem(name: str, value: str, ours: frozenset[str] = OURS) -> str:
    """Say why a setting can't be given to a pod; empty when it can."""
    if name in ours:
        return f"{name} is decided by the injector"
    if name not in Settings.model_fields:
        return f"{name} is not a setting"
    try:
        Settings.model_validate({name: value})
    except pydantic.ValidationError as error:
        return f"{name}: {_first(error)}"
    return ""


def key(field: str) -> str:
    """Name the annotation of an option."""
    return f"{DOMAIN}/{field.replace('_', '-')}"


def from_file(content: object) -> Options:
    """Read the injector's own file. Raises SettingsError: it is the administrator's, who is there to read it."""
    if content is None:
        return Options.model_validate({})
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise SettingsError("The injector's options must be a mapping, such as `store: pvc:warmup-store`.")
    try:
        return Options.model_validate({name.replace("-", "_"): _plain(value) for name, value in content.items()})
    except pydantic.ValidationError as error:
        raise SettingsError(f"The injector's options can't be used: {_first(error)}.") from None


def for_pod(defaults: Options, annotations: Mapping[str, str]) -> tuple[Options, list[str]]:
    """Lay a pod's annotations over the injector's options; give sentences about those that can't be used."""
    warnings: list[str] = []
    options = defaults
    settings = dict(defaults.settings)
    for name, value in sorted(annotations.items()):
        domain, _, rest = name.partition("/")
        if domain == SETTING_DOMAIN:
            if problem := setting_problem(rest, value):
                warnings.append(f"{name} is left out: {problem}.")
            else:
                settings[rest] = value
        elif domain == DOMAIN and name != INJECTED:
            options, problem = _with(options, rest, value)
            warnings += [f"{name} is left out: {problem}."] if problem else []
    return options.model_copy(update={"settings": settings}), warnings


def _with(options: Options, name: str, value: str) -> tuple[Options, str]:
    field = name.replace("-", "_")
    if field in ADMINS or field not in Options.model_fields:
        return options, f"there is no such option ({', '.join(sorted(pods_own()))})"
    try:
        given = Options.model_validate({field: value})
    except pydantic.ValidationError as error:
        return options, _first(error)
    return options.model_copy(update={field: getattr(given, field)}), ""


def pods_own() -> list[str]:
    """List the options that an annotation may set, as they are written there."""
    return [field.replace("_", "-") for field in Options.model_fields if field not in ADMINS]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(name): _text(inner) if not isinstance(inner, dict) else _plain(inner) for name, inner in value.items()
        }
    return value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _first(error: pydantic.ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = re.sub(r"^(Value|Assertion) error, ", "", first["msg"])
    return f"{where}: {message}" if where else message
