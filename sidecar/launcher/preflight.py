"""The places that the engine will write to, and whether it can; looked at before it starts, nothing is written.

What an unwritable place means is not known here.
"""

from __future__ import annotations

import os
from typing import Any

from sidecar.launcher.links import temporary
from sidecar.launcher.mounts import network_filesystem

SHARED_MEMORY = "/dev/shm"


def written_places(environment: dict[str, str], caches: dict[str, str], import_path: list[str]) -> list[dict[str, Any]]:
    """List what the engine writes to: what it is, its path, whether this user can write there or make it.

    `caches` maps cache variables to where the sidecar puts them; `import_path` is the engine's. Where the user has put one on
    a filesystem over a network, that is told, too.
    """
    home = environment.get("HOME") or os.path.expanduser("~")
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    config = environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    wanted = {
        "HOME": home,
        "cache": cache,
        "VLLM_CONFIG_ROOT": environment.get("VLLM_CONFIG_ROOT") or os.path.join(config, "vllm"),
        "TMPDIR": temporary(environment),
    }
    wanted.update({name: environment.get(name) or path for name, path in caches.items()})
    for folder in import_path:
        cubins = os.path.join(folder, "flashinfer_cubin", "cubins")
        if os.path.isdir(cubins):
            wanted["flashinfer_cubin"] = environment.get("FLASHINFER_CUBIN_DIR") or cubins
            break
    found = [
        {"what": what, "path": path, "writable": is_writable(path), **_network(what, path, caches)}
        for what, path in wanted.items()
        if os.path.isabs(path)
    ]
    shared = {
        "what": "shared memory",
        "path": SHARED_MEMORY,
        "writable": is_writable(SHARED_MEMORY),
        **room(SHARED_MEMORY),
    }
    return [*found, shared]


def _network(what: str, path: str, caches: dict[str, str]) -> dict[str, str]:
    """Name the filesystem of a moved cache if it is one over a network; of the live cache's the sidecar tells."""
    kind = network_filesystem(path) if path.rstrip("/") != caches.get(what, path).rstrip("/") else ""
    return {"network": kind} if kind else {}


def is_writable(path: str) -> bool:
    """Tell whether a directory can be written, or made where it does not exist yet."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    if path.endswith(".json") and os.path.isfile(path):
        path = os.path.dirname(path)
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def room(path: str) -> dict[str, int]:
    """Give the bytes of a filesystem and those that are free; nothing where it can't be asked."""
    try:
        status = os.statvfs(path)
    except OSError:
        return {}
    return {"size": status.f_blocks * status.f_frsize, "free": status.f_bavail * status.f_frsize}
