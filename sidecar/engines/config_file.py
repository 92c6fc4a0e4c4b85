"""Reads what the launcher shows of the file that an engine's command names for further arguments, into hints.

Which entries it shows is said in `launcher/config_file.py`; what they are called, by each engine in `adapters/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sidecar.engines.argv import Flag, read_flags
from sidecar.engines.protocol import Hint
from sidecar.errors import YAML_VALUE_ERRORS


def config_hints(told: Mapping[str, object], engine: str | None) -> dict[str, Hint]:
    """Read the entry `argv_file` of the launcher's facts with the names of an engine.

    `config_read` says that it was read, `config_problem` in a sentence why it was not: that is never fatal.
    """
    from sidecar.engines.adapters import of_name

    path = str(told.get("path") or "")
    problem, text = told.get("problem"), told.get("text")
    if not path:
        return {}
    content = None
    if not problem and isinstance(text, str):
        content, problem = _parsed(text)
    if content is None:
        sentence = (
            f"The engine's configuration file {path} can't be read ({problem or 'its text is missing'}): what it says of limits "
            "counts as not given. Correct the file, or give the limits as arguments of the engine."
        )
        return {"config_problem": Hint(sentence, path)}
    found = {
        name: replace(hint, source=f"{path}, {hint.source}") for name, hint in of_name(engine).config(content).items()
    }
    transfer = told.get("kv_transfer")
    if isinstance(transfer, Mapping):
        found["kv_transfer"] = Hint(dict(transfer), f"{path}, kv-transfer-config")
    return {**found, "config_read": Hint(True, path)}


def _parsed(text: str) -> tuple[Mapping[str, Any] | None, str]:
    # Reading most commands needs no YAML, and it is slow to import.
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1} of what is shown of it" if error.problem_mark else ""
        return None, f"{error.problem or 'no YAML'}{where}"
    except (yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
        return None, f"a value is not of its kind: {error}"[:100]
    if content is None:
        return {}, ""
    return (content, "") if isinstance(content, Mapping) else (None, "it is no mapping of names to values")


def flags_in(content: Mapping[str, Any], flags: Mapping[str, Flag]) -> dict[str, Hint]:
    """Read entries that are called as an engine's flags are, as its own reader of such a file does."""
    found: dict[str, Hint] = {}
    for name, value in content.items():
        flag = "--" + str(name).replace("_", "-")
        known = flags.get(flag)
        values = value if isinstance(value, list) else [value]
        if known is None or any(isinstance(each, Mapping | list) or each is None for each in values):
            continue
        words = [flag] if known.takes == "switch" else [flag, *map(str, values)]
        if known.takes == "switch" and value is not True:
            words = [f"{flag}={str(value).lower()}"]
        found |= {key: replace(hint, source=str(name)) for key, hint in read_flags(words, flags).items()}
    return found
