"""What must not appear by value in any file: secrets and connector configurations.

Only words are looked at here; who writes them where is not known.
"""

from __future__ import annotations

import hashlib
import os
import re

# "tokens" is what engines count, and a "tokenizer" is no secret.
_SECRET = re.compile(r"(^|[-_])(keys?|token|credentials?)(_?\d+)?$|secret|passw|passphrase", re.IGNORECASE)
_CONNECTOR = re.compile(r"^--(kv|ec)-transfer-config$|^--kv-events-config$")
_SHORTEST = 6
#: What may be an address; connector configurations hold the pod's own, and it is another one at each start.
_ADDRESS = re.compile(r"\[?(?<![\w.:])((?:\d{1,3}\.){3}\d{1,3}|(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4})(?![\w.])\]?")


def is_secret(name: str) -> bool:
    """Tell whether a variable or option with this name holds what is nobody's business."""
    return bool(_SECRET.search(name) or _CONNECTOR.match(name))


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

    name = os.uname().nodename
    text = _ADDRESS.sub(replaced, text)
    # A plain word may be a part of a path; a pod's name has a dash and a digit.
    if "-" in name and re.search(r"\d", name):
        text = re.sub(r"(?<![\w-])" + re.escape(name) + r"(?![\w-])", "<own name>", text)
    return text


def _digest_of(option: str, word: str) -> str:
    return digest(option, without_own_place(word) if _CONNECTOR.match(option) else word)


def without_secrets(argv: list[str]) -> tuple[list[str], set[str]]:
    """Give the command with secrets and connector configurations as digests, and the secrets themselves."""
    shown: list[str] = []
    found: set[str] = set()
    option = ""
    for word in argv:
        name, equals, value = word.partition("=")
        if option and not word.startswith("-"):
            shown.append(_digest_of(option, word))
            found.add(word)
            # vLLM's --api-key takes any number of keys.
            option = option if option == "--api-key" else ""
            continue
        option = ""
        if len(word.split()) > 1 and not word.lstrip().startswith(("{", "[")):
            # A command in one word, as a shell's -c takes it.
            inner, secrets = without_secrets(re.split(r"(?<=\S)\s+(?=\S)", word))
            shown.append(" ".join(inner))
            found |= secrets
        elif equals and is_secret(name):
            shown.append(f"{name}={_digest_of(name, value)}")
            found.add(value)
        else:
            option = word if word.startswith("-") and is_secret(word) else ""
            shown.append(re.sub(r"//[^/@\s]+@", "//***@", word))
    return shown, found


def secret_values(argv: list[str], environment: dict[str, str]) -> list[str]:
    """Collect what must not appear in a file: secret arguments and variables, the longest first."""
    values = without_secrets(argv)[1] | {value for name, value in environment.items() if is_secret(name)}
    return sorted((value for value in values if len(value) >= _SHORTEST), key=len, reverse=True)
