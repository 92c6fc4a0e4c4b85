"""What of arguments and variables never reaches the store by value: secrets and connector configurations.

The launcher hides them first (`launcher/privacy.py`); this is the last gate. Who writes values where is not known.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

# The launcher has the same rules; a test compares both. "tokens" is what engines count, a "tokenizer" is no secret, and
# neither is where a secret lies.
_SECRET = re.compile(
    r"(^|_)(keys?|token|credentials?|auth|authorization|bearer)(_?\d+)?$|access_key_id$|secret|passw|passphrase"
)
_PLACE = re.compile(r"_?(file|path|dir)$")
_CONNECTOR = re.compile(r"(^|_)((kv|ec)_transfer|transfer_config|kv_events_config)|^--(kv|ec)_tr|^--kv_ev")
# What argparse takes for these too.
_ABBREVIATED = {"--api_key": len("--api_k"), "--hf_token": len("--hf_t")}
# Switches of that name turn a secret on or off.
_SWITCH = re.compile(r"^--(enable|disable|no|use)_")
_USER = re.compile(r"(?<=//)[^/@\s\"']+(?=@)")
# A secret in JSON that can't be read as a whole, and a variable before a command.
_MEMBER = re.compile(r"""(["'])([\w.-]+)\1(\s*:\s*)("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\[\]{}]*\]|[\w.+-]+)""")
_ASSIGNED = re.compile(r"(?<!\S)(\w+)=(\S+)")
_OPTION = re.compile(r"(?<!\S)(--?\w[\w.-]*)(=|\s+)((?!-)\S+)")
_SALT = "warmup-sidecar fact 1"
_HIDDEN = "sha256:"


def is_connector(name: str) -> bool:
    """Tell whether a variable or option with this name holds a connector's configuration."""
    return bool(_CONNECTOR.search(_spelt(name)))


def is_secret(name: str) -> bool:
    """Tell whether a variable, option or JSON member with this name holds what is nobody's business."""
    spelt = _spelt(name)
    if _PLACE.search(spelt) or _SWITCH.match(spelt):
        return False
    short = any(full.startswith(spelt) and len(spelt) >= least for full, least in _ABBREVIATED.items())
    return bool(short or _SECRET.search(spelt.lstrip("-")) or _CONNECTOR.search(spelt))


def digest(name: str, value: str) -> str:
    """Stand for a value that is nobody's business; salted with its name, so equal secrets stay equal."""
    return _HIDDEN + hashlib.sha256(f"{_SALT}\0{name}\0{value}".encode()).hexdigest()[:16]


def hidden(name: str, value: str) -> str:
    """Give what may be stored of a value; what is a digest already stays as it is."""
    if is_secret(name):
        return value if value.startswith(_HIDDEN) else digest(name, value)
    return _hidden_text(value)


def _spelt(name: str) -> str:
    """Spell names of options, variables and JSON members alike."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("--", "\0").translate({45: 95, 46: 95, 0: "--"})


def _hidden_text(text: str) -> str:
    try:
        content = json.loads(text) if text.lstrip().startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        content = None
    if content is not None:
        left = _walked(content)
        return text if left == content else json.dumps(left)
    text = _USER.sub(lambda found: _once("//", found[0]), text)
    text = _MEMBER.sub(_hidden_member, text)
    text = _ASSIGNED.sub(lambda found: f"{found[1]}={_if_secret(found[1], found[2])}", text)
    return _OPTION.sub(lambda found: f"{found[1]}{found[2]}{_if_secret(found[1], found[3])}", text)


def _once(name: str, value: str) -> str:
    return value if value.startswith(_HIDDEN) else digest(name, value)


def _if_secret(name: str, value: str) -> str:
    return _once(name, value) if is_secret(name) else value


def _hidden_member(found: re.Match[str]) -> str:
    quote, name, colon, value = found.groups()
    if not is_secret(name) or value.strip("\"'").startswith(_HIDDEN):
        return found[0]
    return f"{quote}{name}{quote}{colon}{quote}{digest(name, value)}{quote}"


def _walked(content: Any) -> Any:
    """Replace the secrets in JSON by digests, at any depth."""
    if isinstance(content, dict):
        return {name: _of_member(name, value) for name, value in content.items()}
    if isinstance(content, list):
        return [_walked(one) for one in content]
    return _hidden_text(content) if isinstance(content, str) else content


def _of_member(name: str, value: Any) -> Any:
    if not is_secret(name) or value is None or isinstance(value, bool):
        return _walked(value)
    return _once(name, value) if isinstance(value, str) else digest(name, json.dumps(value, sort_keys=True))
