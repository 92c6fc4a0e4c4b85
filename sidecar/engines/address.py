"""Where an engine answers by its own command, held against WARMUP_ENGINE_URL: port, host, TLS, and the API key.

Nothing is asked here. `--root-path` of vLLM and `--fastapi-root-path` of SGLang are no part of it: with them an engine
answers the paths without the prefix, too (FastAPI 0.165 with Starlette 1.10, tried).
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from sidecar.engines.adapters import of_name
from sidecar.engines.declaration import Listens
from sidecar.engines.protocol import Hint, Hints

_EVERYWHERE = ("", "0.0.0.0", "::", "*")
_UNKNOWN = Listens(port=0)


def disagreements(url: str, hints: Hints, keyed: bool) -> tuple[str, ...]:
    """Say where the settings and the engine's command contradict each other, and what to do; empty: nowhere.

    `keyed` says whether WARMUP_API_KEY_FILE is set. What the command leaves open, such as a port in a variable, is no
    contradiction.
    """
    if _on(hints, "headless"):
        return ()
    return tuple(filter(None, (_socket(hints) or _address(url, hints), _key(hints, keyed))))


def agreement(url: str, hints: Hints) -> str:
    """Say that the settings fit the engine's command, where that names its port; empty where it can't be told."""
    port = _port(hints)
    return "" if port is None else f"WARMUP_ENGINE_URL={url} is what the engine's command says: {port.source}."


def _socket(hints: Hints) -> str:
    socket = hints.get("uds")
    if socket is None:
        return ""
    return (
        f"The engine answers at the socket {socket.value} ({socket.source}) and at no port, and the sidecar asks ports alone. "
        "Take --uds out of the engine's command."
    )


def _key(hints: Hints, keyed: bool) -> str:
    if keyed or not _on(hints, "api_key"):
        return ""
    return (
        f"The engine asks for an API key ({hints['api_key'].source}) and WARMUP_API_KEY_FILE is empty: warm-up would be "
        "refused with HTTP 401. Mount the Secret with that key in the sidecar, and name its file in WARMUP_API_KEY_FILE."
    )


def _address(url: str, hints: Hints) -> str:
    """Compare scheme, host and port; a name that is not localhost may stand for anything, so nothing is said of it."""
    given = urlsplit(url)
    host = given.hostname or ""
    if not _is_address(host):
        return ""
    wrong: list[str] = []
    scheme, port = given.scheme, given.port or (443 if given.scheme == "https" else 80)
    told = _port(hints)
    if told is not None and told.value != port:
        wrong.append(told.source)
        port = told.value
    if (listens := _host(hints, host)) is not None:
        wrong.append(listens.source)
        host = listens.value
    if (secured := _tls(hints)) is not None and secured.value != scheme:
        wrong.append(secured.source)
        scheme = secured.value
    if not wrong:
        return ""
    right = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    return (
        f"WARMUP_ENGINE_URL is {url}, and the engine's command says otherwise: {'; '.join(wrong)}. Whatever answers at that "
        f"URL is not this engine's own port. Set WARMUP_ENGINE_URL={right} for the sidecar, or change the engine's command."
    )


def _port(hints: Hints) -> Hint | None:
    """Give the port with words about it; None where the command leaves it open."""
    hint = hints.get("port")
    if hint is not None:
        known = isinstance(hint.value, int) and hint.value > 0
        return Hint(hint.value, f"it listens on port {hint.value} ({hint.source})") if known else None
    default = _listens(hints).port
    if not default or _unread(hints):
        return None
    return Hint(default, f"it has no --port, so it listens on {_title(hints)}'s port {default}")


def _host(hints: Hints, asked: str) -> Hint | None:
    """Give the address at which the engine answers alone, where that is another than is asked; else None."""
    hint = hints.get("host")
    if hint is None and _unread(hints):
        return None
    name = str(hint.value) if hint is not None else _listens(hints).host
    bare = name.strip("[]")
    local = _is_loopback(bare) and _is_loopback(asked)
    if bare in _EVERYWHERE or not _is_address(bare) or bare == asked or (local and "localhost" in (bare, asked)):
        return None
    said = f"({hint.source})" if hint is not None else f"({_title(hints)}'s default)"
    return Hint(bare, f"it listens at {bare} alone {said}")


def _tls(hints: Hints) -> Hint | None:
    """Give the scheme with words about it; None where the command leaves it open."""
    hint = hints.get("tls")
    if hint is not None:
        return Hint("https", f"it speaks TLS ({hint.source})")
    flag = _listens(hints).tls
    return Hint("http", f"it speaks no TLS (no {flag})") if flag and not _unread(hints) else None


def _listens(hints: Hints) -> Listens:
    told = hints.get("engine")
    return of_name(str(told.value)).listens if told is not None else _UNKNOWN


def _title(hints: Hints) -> str:
    return of_name(str(hints["engine"].value)).title


def _unread(hints: Hints) -> bool:
    """Say whether the command may have more flags than are known: out of a file, or of a script's variables."""
    return _on(hints, "open_ended") or ("config_file" in hints and not _on(hints, "config_read"))


def _on(hints: Hints, name: str) -> bool:
    return name in hints and hints[name].value is True


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
