"""Which half of a pair an engine is: the role and the connectors of its --kv-transfer-config, and nothing else of it.

Such a configuration holds addresses and secrets, so `privacy.py` leaves only a digest of it in the argv that is shown.
"""

from __future__ import annotations

import json
import re
from typing import Any

_FLAG = "--kv-transfer-config"
#: Names of classes and roles; whatever else stands there is left out.
_NAME = re.compile(r"^\w{1,100}$")
#: Connectors within connectors; MultiConnector holds some, and nothing is deeper.
_DEPTH = 3


def kv_transfer(words: list[str]) -> dict[str, Any] | None:
    """Give role and connectors out of the engine's words, in the shape of the configuration; None without the flag."""
    found: dict[str, Any] = {}
    seen = False
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        flag, _, field = flag.replace("_", "-").partition(".")
        if flag != _FLAG:
            continue
        seen = True
        value = value if equals else "".join(words[index + 1 : index + 2])
        found.update(_named({field.replace("-", "_"): value} if field else _parsed(value), _DEPTH))
    return found if seen else None


def _parsed(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _named(config: dict[str, Any], depth: int) -> dict[str, Any]:
    """Keep the names of role and connectors, of inner connectors too."""
    found = {name: config[name] for name in ("kv_role", "kv_connector") if _NAME.match(str(config.get(name, "")))}
    extra = config.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, dict) else None
    if isinstance(inner, list) and depth:
        several = [_named(each, depth - 1) for each in inner if isinstance(each, dict)]
        found["kv_connector_extra_config"] = {"connectors": several}
    return found
