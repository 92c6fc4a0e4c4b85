"""How settings are read: flags over environment over the YAML file over defaults, each wrong one a sentence.

No setting is declared here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
from pydantic_core import ErrorDetails

from sidecar.config.names import (
    CAREFUL,
    FILE_VARIABLE,
    FOREIGN,
    LAUNCHER_PREFIX,
    NOT_YET,
    PREFIX,
    SERVICE_LINK,
    variable,
)
from sidecar.config.settings import Settings
from sidecar.errors import YAML_VALUE_ERRORS, SettingsError


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
    # Who asked for signatures, in whatever way, must not be served without.
    asked = any(layer.get("trusted_keys_file") is not None for _, layer in layers)
    if settings.store and settings.trusted_keys_file is None and asked:
        settings = settings.model_copy(update={"store": ""})
    problems += _without_effect(settings, sources)
    return Loaded(settings, tuple(problems), sources)


def _without_effect(settings: Settings, sources: Mapping[str, str]) -> list[Problem]:
    """Name settings that are right by themselves and can never count beside the others."""
    if settings.fallbacks and "fallback" not in settings.golden_policies:
        sentence = (
            f"{variable('fallbacks')} has no effect, because {variable('on_golden_failed')}={settings.on_golden_failed} does "
            "not name `fallback`: `retry-cold,fallback,hold` tries a cold start first, then each of them."
        )
        return [Problem(sources.get("fallbacks", "settings"), sentence)]
    return []


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
            f"{shown}{_shown(field, raw)} is not usable: {_what_is_wrong(field, first)}. "
            f"Default used instead: {_default(field)!r}."
            if field not in CAREFUL
            else f"{shown}{_shown(field, raw)} is not usable; {CAREFUL[field]!r} is used, which can do no harm.",
        )
    return None


def _what_is_wrong(field: str, error: ErrorDetails) -> str:
    """Say what is wrong with a value; where it lacks the form that is asked for, in words instead of a pattern."""
    if error["type"] == "string_pattern_mismatch":
        return f"what is asked for is: {(Settings.model_fields[field].description or '').rstrip('.')}"
    return error["msg"].removeprefix("Value error, ")


def _shown(field: str, raw: Any) -> str:
    """Show a value that can't be used, unless it may hold a password."""
    return "" if field in ("engine_url", "fallbacks") else f"={raw!r:.100}"


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
    except (yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
        problems.append(Problem(path, f"is not valid YAML: {' '.join(str(error).split())}."))
        return []
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        problems.append(Problem(path, "must be a mapping of setting names to values, such as `store: /mnt/store`."))
        return []
    return [(path, content)]
