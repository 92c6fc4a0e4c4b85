"""The swap of the live caches: they are replaced here and nowhere else, while no engine runs.

Nothing is fetched or checked here: what lies in the staging directory was made by the sidecar.
"""

from __future__ import annotations

import os
import secrets
import shutil

from sidecar.launcher.attempts import Json, make_shared
from sidecar.launcher.log import say


class LiveCaches:
    """The live caches below `root`: what was swapped in, what failed, and what must not be used. Empty: there are none."""

    def __init__(self, root: str, attempt: str) -> None:
        self._root = os.path.normpath(root) if root else ""
        self._staging = os.path.join(self._root, ".staging", attempt)
        self._trash = os.path.join(self._root, ".trash")
        self.committed: list[str] = []
        self.failed: Json = {}
        self._unusable: list[str] = []

    def obey(self, decision: Json) -> None:
        """Clear and swap in what the sidecar decided. A family that fails is left empty, never half."""
        if not self._root:
            return
        for live in decision["clear"]:
            self._replace(os.path.relpath(live, self._root), live, None)
        for entry in decision["commit"]:
            if self._replace(entry["family"], entry["live"], entry["staged"]):
                self.committed.append(entry["family"])
        shutil.rmtree(self._trash, ignore_errors=True)
        if decision["by"] == "sidecar":
            # Where the sidecar came too late, it may still be writing there and cleans up itself.
            shutil.rmtree(self._staging, ignore_errors=True)

    def usable(self, path: str) -> bool:
        """Tell whether an engine may be pointed there: it can write, and no half family lies there."""
        if not os.path.isabs(path) or any(within(path, bad) or within(bad, path) for bad in self._unusable):
            return False
        while not os.path.exists(path) and os.path.dirname(path) != path:
            path = os.path.dirname(path)
        return os.access(path, os.W_OK | os.X_OK)

    def _replace(self, family: str, live: str, staged: str | None) -> bool:
        if not within(live, self._root) or os.path.normpath(live) == self._root:
            self.failed[family] = f"{live} is not in the live cache"
            return False
        try:
            self._move_away(live)
            if staged is not None:
                self._move_in(staged, live)
            return True
        except OSError as error:
            self.failed[family] = str(error)
            say(f"the cache {family} can't be laid down, so the engine starts without it: {error}.")
        try:
            empty(live)
        except OSError:
            self._unusable.append(live)
        return False

    def _move_away(self, live: str) -> None:
        if os.path.lexists(live):
            make_shared(self._trash)
            os.rename(live, os.path.join(self._trash, secrets.token_hex(8)))

    def _move_in(self, staged: str, live: str) -> None:
        if not within(staged, self._staging) or os.path.islink(staged) or not os.path.isdir(staged):
            raise OSError(f"{staged} was not staged for this attempt")
        make_shared(os.path.dirname(live))
        os.rename(staged, live)


def empty(folder: str) -> None:
    """Remove what is in a folder that can't be moved, such as a mount point. Raises OSError."""
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def within(path: str, root: str) -> bool:
    """Tell whether an absolute path is `root` or lies below it."""
    return os.path.isabs(path) and (os.path.normpath(path) + "/").startswith(os.path.normpath(root) + "/")
