"""Every setting, declared once: name, meaning, unit, default, and how the sources are merged.

No behaviour hangs on a setting here; the daemon hands each part the values it needs.
"""

from __future__ import annotations

import difflib
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pydantic
from pydantic import Field

from sidecar.errors import SettingsError

PREFIX = "WARMUP_"
FILE_VARIABLE = "WARMUP_CONFIG"
#: Variables with our prefix that are no settings: the file's name, the demo's, the lone launcher's, the tests'.
FOREIGN = frozenset({FILE_VARIABLE, "WARMUP_DEMO_PIP_ARGS", "WARMUP_TEST_SCREENSHOTS", "WARMUP_ATTEMPT"})
#: What a launcher without a sidecar goes by, such as WARMUP_LAUNCHER_WAIT_S; in child mode both see one environment.
LAUNCHER_PREFIX = "WARMUP_LAUNCHER_"
TRUSTED_KEYS_VARIABLE = "WARMUP_TRUSTED_KEYS_FILE"
#: What counts instead of a value that can't be used, where the default would do what nobody asked for.
CAREFUL = {"store_mode": "read-only"}

GoldenPolicy = Literal["retry-cold", "hold", "serve"]

#: Variables that Kubernetes adds for every Service of the namespace; one called `warmup…` makes them look like ours.
#: Kubernetes documentation, "Discovering services: environment variables".
SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT)(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")

#: Names reserved for later versions, with what this version does when they are set.
NOT_YET = {
    "WARMUP_TRUSTED_KEYS_FILE": "signatures are not checked by this version, so the store is not used at all",
    "WARMUP_GOLDEN": "this version checks for degenerate output only",
    "WARMUP_READINESS_GATE": "this version answers probes and does not patch pod conditions",
}


class Settings(pydantic.BaseModel):
    """All settings, frozen. Durations in seconds, sizes in bytes.

    Each field is the environment variable `WARMUP_<FIELD>` and the key `<field>` of the YAML file.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", validate_default=True)

    engine_url: str = Field(
        "http://127.0.0.1:8000",
        pattern=r"^https?://[^/\s]+$",
        description="Where the engine answers: scheme, host and port, no path.",
    )
    engine: Literal["auto", "vllm"] = Field("auto", description="Which engine it is; `auto` asks the port.")
    api_key_file: Path | None = Field(None, description="File with the engine's API key; re-read when it changes.")
    model: str = Field("", description="Served model name to send traffic to; empty: the first that /v1/models lists.")
    listen: str = Field(
        "0.0.0.0:9797",
        pattern=r"^(\[[0-9a-fA-F:]*\]|[^:\s]*):\d{1,5}$",
        description="Address and port of probes, status page and metrics; `[::]:9797` for IPv6.",
    )
    live_cache: Path = Field(
        Path("/var/cache/engine"),
        description="Root of the engine's live caches: local disk, private to the pod, the same path in every pod.",
    )
    store: str = Field("", description="Directory of the shared store; empty: nothing is restored or published.")
    store_mode: Literal["read-write", "read-only"] = Field(
        "read-write", description="`read-only`: restore only, for pods that must not publish."
    )
    unmanaged_interval_s: float = Field(
        60, gt=0, le=3600, description="Time between two looks for directories that grow and belong to no family."
    )
    profile: str = Field("auto", description="Warm-up profile: `auto` (by SM version), a shipped name, or a path.")
    sm: str = Field(
        "",
        pattern=r"^(sm\d{2,3}|cpu)?$",
        description="SM version such as `sm90`, or `cpu`; empty: asked from NVML, then from the launcher's facts.",
    )
    image: str = Field(
        "",
        pattern=r"^(\S+@sha256:[0-9a-f]{64})?$",
        description="Reference of the engine's image pinned by digest; enters the key of exact caches when set.",
    )
    control_dir: Path = Field(
        Path("/run/warmup"), description="Directory shared with the engine container: launcher, handshake, socket."
    )
    launcher: bool = Field(
        True, description="The engine's command is prefixed by the launcher; `false`: the sidecar only sees its port."
    )
    extra_roots: str = Field(
        "",
        description="Absolute directories, separated by colons, that are watched for growth besides HOME and TMPDIR: "
        "what compiles there is reported as an unknown cache.",
    )
    exclude_families: str = Field(
        "",
        description="Cache families, separated by commas, that are neither restored nor published, such as "
        "`flashinfer_autotune`.",
    )
    restore_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="Cap of a restore, counted from the arrival of the facts; past it the start is cold.",
    )
    single_flight_s: float = Field(
        0,
        ge=0,
        le=7200,
        description="How long a pod waits for the first generation of its key while another pod starts cold to make it; "
        "0: it starts cold at once. The engine's startup probe must allow for it.",
    )
    warm_budget_s: float = Field(
        1800,
        ge=0,
        le=86400,
        description="Cap of warm-up; 0: none is done. 30 minutes: a first boot on an empty store compiles so long.",
    )
    request_timeout_s: float = Field(
        900,
        gt=0,
        le=7200,
        description="Cap of one warm-up request. Beyond the 600 s after which NCCL's watchdog ends a stalled engine.",
    )
    on_golden_failed: str = Field(
        "retry-cold,hold",
        description="What to do about degenerate output, tried in order: `retry-cold`, `hold`, `serve`.",
    )
    on_unwarmed: Literal["serve", "hold"] = Field(
        "serve", description="Whether a pod whose warm-up failed or ran out of budget takes traffic (flagged) or not."
    )
    stall_s: float = Field(
        120, gt=0, le=86400, description="No progress with requests running for this long: traffic is withdrawn."
    )
    publish_quiet_s: float = Field(
        5, ge=0, le=3600, description="The live cache must have been unchanged for this long before it is published."
    )
    publish_interval_s: float = Field(
        300, gt=0, le=86400, description="Least time between two publishes while serving."
    )
    publish_timeout_s: float = Field(900, gt=0, le=86400, description="Cap of one publish.")
    drain_s: float = Field(
        25,
        ge=0,
        le=3600,
        description="How long the launcher holds SIGTERM for in-flight requests; below the pod's grace period of 30 s.",
    )
    settle_s: float = Field(
        2,
        ge=0,
        le=300,
        description="How long the launcher waits at SIGTERM before it believes that no request is in flight, "
        "because endpoints are updated a moment after readiness.",
    )
    gpu_interval_s: float = Field(10, ge=0, le=3600, description="Time between two NVML readings; 0: NVML is not used.")
    log_format: Literal["json", "text"] = Field("json", description="Log lines as JSON or as text.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")

    @pydantic.field_validator("on_golden_failed")
    @classmethod
    def _known_policies(cls, value: str) -> str:
        words = [word.strip() for word in value.split(",") if word.strip()]
        for word in words:
            if word not in get_args(GoldenPolicy):
                raise ValueError(f"'{word}' is not one of {', '.join(get_args(GoldenPolicy))}")
        if not words:
            raise ValueError("name at least one of " + ", ".join(get_args(GoldenPolicy)))
        return ",".join(words)

    @pydantic.field_validator("engine", "store_mode", "on_unwarmed", "log_format", "log_level", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @pydantic.field_validator("engine_url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        found = urllib.parse.urlsplit(value)
        if found.username or found.password:
            raise ValueError("must not hold a user or password: it is shown on the status page")
        try:
            _ = found.port
        except ValueError:
            raise ValueError("the port must be a number up to 65535") from None
        return value

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_nul(cls, value: object) -> object:
        if isinstance(value, str | Path) and "\0" in str(value):
            raise ValueError("holds a NUL character")
        return value

    @pydantic.field_validator("live_cache", "control_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        if not value.is_absolute():
            raise ValueError("must be an absolute path, because engine and sidecar must mean the same directory")
        return value

    @pydantic.field_validator("extra_roots")
    @classmethod
    def _absolute_roots(cls, value: str) -> str:
        roots = [root.rstrip("/") for root in value.split(":") if root.strip()]
        for root in roots:
            if not Path(root).is_absolute():
                raise ValueError(f"'{root}' must be an absolute path, and not the root directory")
        return ":".join(roots)

    @pydantic.field_validator("store")
    @classmethod
    def _directory_store(cls, value: str) -> str:
        if "://" in value:
            raise ValueError("buckets are not supported by this version; give a directory on a shared volume")
        if value and not Path(value).is_absolute():
            raise ValueError("must be an absolute path")
        return value

    @property
    def golden_policies(self) -> tuple[str, ...]:
        """Give the policies of `on_golden_failed` in the order in which they are tried."""
        return tuple(self.on_golden_failed.split(","))

    @property
    def watched_roots(self) -> tuple[str, ...]:
        """Give the directories of `extra_roots`."""
        return tuple(root for root in self.extra_roots.split(":") if root)

    @property
    def excluded_families(self) -> tuple[str, ...]:
        """Give the names of `exclude_families`; whether there are such families is known to the caches."""
        return tuple(name for word in self.exclude_families.split(",") if (name := word.strip()))

    @property
    def listen_host(self) -> str:
        """Give the host part of `listen`, without brackets; empty means all addresses."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def listen_port(self) -> int:
        """Give the port of `listen`; 0 lets the system choose."""
        return int(self.listen.rpartition(":")[2])


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the settings: where it was found, and a sentence that says what to do."""

    source: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.source}: {self.sentence}"


@dataclass(frozen=True)
class Loaded:
    """Settings that can be used, and what was wrong on the way to them. Wrong values were replaced by defaults."""

    settings: Settings
    problems: tuple[Problem, ...]
    sources: Mapping[str, str]

    def or_raise(self) -> Settings:
        """Give the settings, or raise SettingsError with every problem, a line each."""
        if self.problems:
            raise SettingsError("\n".join(str(problem) for problem in self.problems))
        return self.settings


def variable(field: str) -> str:
    """Name the environment variable of a field."""
    return PREFIX + field.upper()


def load(environment: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Loaded:
    """Merge flags over environment over the YAML file named by WARMUP_CONFIG over defaults.

    Never raises: an unknown name or a wrong value becomes a Problem and the next source, at last the default, counts.
    """
    problems: list[Problem] = []
    layers = [
        ("flag", dict(flags or {})),
        ("environment", _from_environment(environment, problems)),
        *_from_file(environment.get(FILE_VARIABLE, ""), problems),
    ]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        for field, raw in layer.items():
            if field in values:
                continue
            problem = _check_one(field, raw, source)
            if problem is None:
                values[field], sources[field] = raw, source
                continue
            problems.append(problem)
            if field in CAREFUL:
                values[field], sources[field] = CAREFUL[field], f"{source}, not usable"
    settings = Settings.model_validate(values)
    asked = any("trusted_keys_file" in layer for _, layer in layers) or bool(environment.get(TRUSTED_KEYS_VARIABLE))
    if settings.store and asked:
        settings = settings.model_copy(update={"store": ""})
    return Loaded(settings, tuple(problems), sources)


def _check_one(field: str, raw: Any, source: str) -> Problem | None:
    if field not in Settings.model_fields:
        return Problem(source, _unknown(field, source))
    try:
        Settings.model_validate({field: raw})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        shown = variable(field) if source == "environment" else field
        return Problem(
            source,
            f"{shown}{_shown(field, raw)} is not usable: {first['msg'].removeprefix('Value error, ')}. "
            f"Default used instead: {_default(field)!r}."
            if field not in CAREFUL
            else f"{shown}{_shown(field, raw)} is not usable; {CAREFUL[field]!r} is used, which can do no harm.",
        )
    return None


def _shown(field: str, raw: Any) -> str:
    """Show a value that can't be used, unless it may hold a password."""
    return "" if field == "engine_url" else f"={raw!r:.100}"


def _default(field: str) -> str:
    return str(Settings.model_fields[field].default)


def _unknown(field: str, source: str) -> str:
    name = variable(field) if source == "environment" else field
    if variable(field) in NOT_YET:
        return f"{name} is not supported yet: {NOT_YET[variable(field)]}. Remove it, or use a version that has it."
    close = difflib.get_close_matches(field, list(Settings.model_fields), n=1)
    hint = f" Did you mean {variable(close[0]) if source == 'environment' else close[0]}?" if close else ""
    return f"{name} is not a setting.{hint} `warmup-sidecar check --list` shows all of them."


def _from_environment(environment: Mapping[str, str], problems: list[Problem]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in sorted(environment.items()):
        if (
            not name.startswith(PREFIX)
            or value == ""
            or name in FOREIGN
            or name.startswith(LAUNCHER_PREFIX)
            or SERVICE_LINK.search(name)
        ):
            continue
        field = name.removeprefix(PREFIX).lower()
        if field in Settings.model_fields:
            found[field] = value
        else:
            problems.append(Problem("environment", _unknown(field, "environment")))
    return found


def _from_file(path: str, problems: list[Problem]) -> list[tuple[str, dict[str, Any]]]:
    if not path:
        return []
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(path, f"can't be read ({error}); {FILE_VARIABLE} must name a readable YAML file."))
        return []
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problems.append(Problem(path, f"is not valid YAML: {' '.join(str(error).split())}."))
        return []
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        problems.append(Problem(path, "must be a mapping of setting names to values, such as `store: /mnt/store`."))
        return []
    return [(path, content)]
