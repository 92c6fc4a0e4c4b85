"""What must not appear by value in any file: secrets and connector configurations.

Only words are looked at here; who writes them where is not known.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from typing import Any

from sidecar.launcher.script import commands_in
from sidecar.launcher.spelling import canonical

# The sidecar has the same rules (caches/privacy.py); a test compares both. "tokens" is what engines count, a "tokenizer"
# is no secret, and neither is where a secret lies.
_SECRET = re.compile(
    r"(^|_)(keys?|token|credentials?|auth|authorization|bearer)(_?\d+)?$|access_key_id$|secret|passw|passphrase"
)
_PLACE = re.compile(r"_?(file|path|dir)$")
_CONNECTOR = re.compile(r"(^|_)((kv|ec)_transfer|transfer_config|kv_events_config)|^--(kv|ec)_tr|^--kv_ev")
#: What argparse takes for these too.
_ABBREVIATED = {"--api_key": len("--api_k"), "--hf_token": len("--hf_t")}
#: Switches of that name turn a secret on or off.
_SWITCH = re.compile(r"^--(enable|disable|no|use)_")
_USER = re.compile(r"(?<=//)[^/@\s\"']+(?=@)")
#: A secret in JSON that can't be read as a whole.
_MEMBER = re.compile(r"""(["'])([\w.-]+)\1(\s*:\s*)("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\[\]{}]*\]|[\w.+-]+)""")
_SCRIPT = re.compile(r"-[A-Za-z]*c$")
_SHORTEST = 6
#: Variables by which pods are told their names, as Kubernetes' documentation and most charts spell them.
_OWN = re.compile(r"(MY_|K8S_|KUBE_|KUBERNETES_)?(POD|NODE|HOST)_?(NAME|UID)$")
#: Names and UIDs are no more than this (RFC 1123); anything else in such a variable, such as an address with a password, is none.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")
#: Random names, as in caches/own_names.py.
_RANDOM = re.compile(r"(.*-[bcdfghjklmnpqrstvwxz2456789]{5}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$")
#: What may be an address; connector configurations hold the pod's own, and it is another one at each start.
_ADDRESS = re.compile(r"\[?(?<![\w.:])((?:\d{1,3}\.){3}\d{1,3}|(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4})(?![\w.])\]?")


def _spelt(name: str) -> str:
    """Spell names of options, variables and JSON members alike."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("--", "\0").translate({45: 95, 46: 95, 0: "--"})


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
    """Stand for a value that is nobody's business; salted with its name, equal in every pod."""
    salted = f"warmup-sidecar\0{name}\0{value}".encode("utf-8", "replace")
    return "sha256:" + hashlib.sha256(salted).hexdigest()[:16]


def without_own_place(text: str) -> str:
    """Replace addresses and this pod's own name, so that what is digested is the same in every pod."""
    import ipaddress

    def replaced(found: "re.Match[str]") -> str:
        try:
            ipaddress.ip_address(found[1])
        except ValueError:
            return found[0]
        return "<address>"

    text = _ADDRESS.sub(replaced, text)
    for name in own_names(dict(os.environ)):
        if _RANDOM.match(name):
            text = text.replace(name, "<own name>")
        # A plain word may be a part of a path; a pod's name has a dash and a digit.
        elif "-" in name and re.search(r"\d", name):
            text = re.sub(r"(?<![\w-])" + re.escape(name) + r"(?![\w-])", "<own name>", text)
    return text


def own_names(environment: "dict[str, str]") -> "list[str]":
    """Give the names of this pod and its node, the longest first.

    With the node's network (`hostNetwork`), or as a full domain name, the host's name is not the pod's: then a variable that
    is filled from the Pod's fields (the downward API) tells.
    """
    host = os.uname().nodename
    found = {host, host.partition(".")[0]}
    found.update(value for name, value in environment.items() if _OWN.match(name) and _NAME.match(value))
    return sorted(found - {""}, key=lambda name: (-len(name), name))


def shown_value(name: str, value: str, found: set[str] | None = None) -> str:
    """Give what may be shown of a variable's or option's value; `found` collects what is hidden."""
    found = set() if found is None else found
    # An empty key switches a key off.
    if value and is_secret(name):
        found.add(value)
        content = _parsed(value)
        if content is not None:
            _walked(content, found)
        # vLLM reads JSON in options; a variable is compared by vLLM as it is written.
        value = canonical(value) if name.startswith("-") else value
        return digest(name, without_own_place(value) if is_connector(name) else value)
    return _shown_text(value, found)


def _parsed(text: str) -> Any:
    """Read a JSON object or list; None when it is none."""
    try:
        content = json.loads(text) if text.lstrip().startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        return None
    return content


def _shown_text(text: str, found: set[str]) -> str:
    content = _parsed(text)
    if content is not None:
        shown = _walked(content, found)
        return text if shown == content else json.dumps(shown)

    def user(match: "re.Match[str]") -> str:
        found.update({match[0], match[0].partition(":")[2]} - {""})
        return match[0] if match[0].startswith("sha256:") else digest("//", match[0])

    def member(match: "re.Match[str]") -> str:
        if not is_secret(match[2]) or match[4].strip("\"'").startswith("sha256:"):
            return match[0]
        found.add(match[4].strip("\"'"))
        return f"{match[1]}{match[2]}{match[1]}{match[3]}{match[1]}{digest(match[2], match[4])}{match[1]}"

    return _MEMBER.sub(member, _USER.sub(user, text))


def _walked(content: Any, found: set[str]) -> Any:
    """Replace the secrets in JSON by digests, at any depth."""
    if isinstance(content, dict):
        return {name: _member(name, value, found) for name, value in content.items()}
    if isinstance(content, list):
        return [_walked(one, found) for one in content]
    return _shown_text(content, found) if isinstance(content, str) else content


def _member(name: str, value: Any, found: set[str]) -> Any:
    if not is_secret(name) or value is None or isinstance(value, bool):
        return _walked(value, found)
    if isinstance(value, str):
        found.add(value)
        return value if value.startswith("sha256:") else digest(name, value)
    found.update(one for one in (value if isinstance(value, list) else ()) if isinstance(one, str))
    return digest(name, json.dumps(value, sort_keys=True))


def without_secrets(argv: list[str]) -> tuple[list[str], set[str]]:
    """Give the command with secrets and connector configurations as digests, and the secrets themselves."""
    shown: list[str] = []
    found: set[str] = set()
    option = before = ""
    for word in argv:
        name, equals, value = word.partition("=")
        named = bool(equals) and bool(re.match(r"-{0,2}\w[\w.-]*$", name)) and not _SCRIPT.match(before)
        before = word
        if option and not word.startswith("-"):
            shown.append(shown_value(option, word, found))
            # vLLM's --api-key takes any number of keys.
            option = option if _spelt(option).startswith("--api") else ""
            continue
        option = ""
        if named and (is_secret(name) or name.startswith("-")):
            shown.append(f"{name}={shown_value(name, value, found)}")
        elif len(word.split()) > 1 and _parsed(word) is None:
            shown.append(_shown_text(_script_without_secrets(word, found), found))
        else:
            option = word if word.startswith("-") and is_secret(word) else ""
            shown.append(_shown_text(word, found))
    return shown, found


def _script_without_secrets(script: str, found: set[str]) -> str:
    """Replace secrets in a command that is one word, as a shell's -c takes it; all else stays as it is written."""
    commands = commands_in(script)
    if commands is None:
        commands = [[(one.start(), one.end(), one[0]) for one in re.finditer(r"\S+", script)]]
    changed: list[tuple[int, int, str]] = []
    for command in commands:
        words = [word for _, _, word in command]
        shown, secrets = without_secrets(words)
        found |= secrets
        for index, (start, end, word) in enumerate(command):
            if shown[index] != word:
                changed.append((start, end, shlex.quote(shown[index])))
    for start, end, now in reversed(changed):
        script = script[:start] + now + script[end:]
    return script


def secret_values(argv: list[str], environment: dict[str, str]) -> list[str]:
    """Collect what must not appear in a file: secret arguments and variables, the longest first."""
    values = without_secrets(argv)[1]
    for name, value in environment.items():
        shown_value(name, value, values)
    return sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True)
