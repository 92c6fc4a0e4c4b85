"""Reading and writing the control directory from the daemon's side; cheap enough to be called every 50 ms.

Nothing here waits for a launcher or judges what it did; files of attempts whose lock is free are history.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sidecar.errors import FileUnreadable, HandshakeError
from sidecar.files import read_json, temporary_name
from sidecar.handshake.launcher_file import launcher_file
from sidecar.handshake.messages import (
    FORMAT,
    AttemptState,
    Decision,
    Exited,
    Grown,
    LauncherSettings,
    Line,
    Proven,
    Started,
    words,
)

#: A control directory that outlives pods sees some models; older ones would start anew.
_RENEWED_KEPT = 50
#: `<time_ns>-<pid>-<8 hex>`, as launcher.py names its attempts.
_ATTEMPT = re.compile(r"(\d{1,20})-(\d+)-[0-9a-f]{8}")
_SHARED_DIRECTORY = 0o2775
_SHARED_FILE = 0o664
#: At most this much of `lines.jsonl` is read in one look, so that a look stays short.
_LINES_AT_ONCE_BYTES = 256 << 10


class ControlDirectory:
    """The directory shared with the engine's container, as the daemon process called `boot` sees it.

    `path` is absolute. Not thread-safe: all calls from one event loop.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self._attempts = path / "attempts"
        self._boot = boot
        self._lock: int | None = None
        self._known: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._read: dict[str, int] = {}

    def prepare(self, settings: LauncherSettings) -> None:
        """Create the directory, take it for this daemon, lay down the settings and the launcher.

        Raises HandshakeError when it can't be written or another daemon holds it. Calling it again is fine.
        """
        try:
            for directory in (self.path, self._attempts):
                directory.mkdir(parents=True, exist_ok=True)
                with suppress(PermissionError):
                    directory.chmod(_SHARED_DIRECTORY)
            self._take()
            # Settings first: a launcher that is there finds them.
            _replace(self.path / "sidecar.json", _as_json(settings.to_json(self._boot)))
            _replace(self.path / "launcher.py", launcher_file(), 0o775)
        except OSError as error:
            raise HandshakeError(
                f"The control directory {self.path} can't be prepared ({error.strerror}): mount a volume "
                f"there that uid {os.getuid()} and the engine's can both write, or set WARMUP_CONTROL_DIR."
            ) from error

    def close(self) -> None:
        """Give the directory up, so that launchers stop waiting for this daemon."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def current(self) -> AttemptState | None:
        """Give the newest attempt whose launcher lives; None when no launcher does."""
        names = self._newest_first()
        while True:
            for attempt in names:
                if self._alive(attempt):
                    return self._state(attempt, alive=True)
            # A launcher opens its next attempt before it closes the last: between our two looks it may have done both.
            again = self._newest_first()
            if again[:1] == names[:1]:
                return None
            names = again

    def state(self, attempt: str) -> AttemptState:
        """Tell how this attempt stands, also when its launcher is gone; what can't be read isn't there."""
        # Looked at first: what a launcher wrote before it died is then read for certain.
        return self._state(attempt, alive=self._alive(attempt))

    def _state(self, attempt: str, *, alive: bool) -> AttemptState:
        decision = self._file(attempt, "decision.json") or {}
        by, why = decision.get("by"), decision.get("why")
        return AttemptState(
            attempt=attempt,
            alive=alive,
            facts=self._facts(attempt),
            decided_by=by if by in ("launcher", "sidecar") else "",
            why=why if isinstance(why, str) else "",
            started=Started.parse(self._file(attempt, "started.json") or {}),
            terminating=os.path.exists(self._place(attempt, "terminating.json")),
            restart_asked=os.path.exists(self._place(attempt, "restart.json")),
            exited=Exited.parse(self._file(attempt, "exited.json") or {}),
            problem=self._problem(attempt),
            change=_text(decision.get("change")) if by == "sidecar" else "",
        )

    def decide(self, attempt: str, decision: Decision) -> bool:
        """Tell the launcher what to do; False when it has decided already or is not the current one any more.

        Raises HandshakeError when the file can't be written for another reason.
        """
        return self._create(attempt, "decision.json", decision.to_json())

    def request_restart(self, attempt: str, reason: str) -> bool:
        """Ask the launcher to end the engine and to open a new attempt; False when asked before or too late.

        Raises HandshakeError when the file can't be written for another reason.
        """
        return self._create(attempt, "restart.json", {"format": FORMAT, "reason": reason})

    def new_lines(self, attempt: str) -> tuple[Line, ...]:
        """Read what came into `lines.jsonl` since the last call; a half-written line is left for the next."""
        start = self._read.get(attempt, 0)
        try:
            # Whoever writes the volume may have left a pipe there: opening or reading one would wait for ever.
            descriptor = os.open(self._place(attempt, "lines.jsonl"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as stream:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return ()
                stream.seek(start)
                found = stream.read(_LINES_AT_ONCE_BYTES)
        except OSError:
            return ()
        complete = found[: found.rfind(b"\n") + 1]
        self._read = {attempt: start + len(complete)}
        return tuple(line for raw in complete.splitlines() if (line := _line(raw)) is not None)

    def grown(self, attempt: str) -> tuple[Grown, ...]:
        """Give the directories outside the live cache that grew while this attempt's engine ran, as last told."""
        if not _ATTEMPT.fullmatch(attempt):
            return ()
        return Grown.parse_all(_read(self._attempts / attempt / "unmanaged.json") or {})

    def read_proven(self) -> Proven | None:
        """Give the engine that was proven good, if its launcher still lives (or it had none)."""
        proven = Proven.parse(_read(self.path / "proven.json") or {})
        if proven is None or (proven.attempt and not self._alive(proven.attempt)):
            return None
        return proven

    def write_proven(self, proven: Proven) -> None:
        """Remember the proven engine. Raises HandshakeError."""
        try:
            _replace(self.path / "proven.json", _as_json(proven.to_json()))
        except OSError as error:
            raise self._unwritable(error) from error

    def clear_proven(self) -> None:
        """Forget the proven engine. Raises HandshakeError."""
        try:
            (self.path / "proven.json").unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def was_renewed(self, key: str) -> bool:
        """Say whether an engine of this exact key was restarted here because it had started cold."""
        known = _read(self.path / "renewed.json") or {}
        return key in (words(known.get("keys")) or ())

    def note_renewed(self, key: str, attempt: str) -> None:
        """Remember that the engine of this key is about to be restarted after its cold start. Raises HandshakeError."""
        known = words((_read(self.path / "renewed.json") or {}).get("keys")) or ()
        keys = [*(other for other in known if other != key), key][-_RENEWED_KEPT:]
        try:
            _replace(self.path / "renewed.json", _as_json({"format": FORMAT, "keys": keys, "attempt": attempt}))
        except OSError as error:
            raise self._unwritable(error) from error

    def _take(self, tries: int = 20) -> None:
        if self._lock is not None:
            return
        lock = os.open(self.path / "sidecar.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _SHARED_FILE)
        try:
            with suppress(PermissionError):
                os.fchmod(lock, _SHARED_FILE)
            # Several tries, because a launcher's look at the lock holds it for a moment.
            while not _locked(lock):
                tries -= 1
                if tries == 0:
                    raise HandshakeError(
                        f"Another sidecar uses the control directory {self.path}: give each engine its own "
                        "by WARMUP_CONTROL_DIR."
                    )
                time.sleep(0.01)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def _newest_first(self) -> list[str]:
        try:
            names = os.listdir(self._attempts)
        except OSError:
            return []
        found = [(int(match[1]), name) for name in names if (match := _ATTEMPT.fullmatch(name))]
        there = {name for _, name in found}
        self._known = {key: value for key, value in self._known.items() if key[0] in there}
        return [name for _, name in sorted(found, reverse=True)]

    def _alive(self, attempt: str) -> bool:
        """Test the lock that a launcher holds exclusively; by a shared one, as other observers do."""
        if not _ATTEMPT.fullmatch(attempt):
            return False
        try:
            lock = os.open(self._place(attempt, "lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(lock)
        return False

    def _place(self, attempt: str, name: str = "") -> str:
        """Give a path inside an attempt; as text, because joining Path objects is most of what a look would cost."""
        return f"{self._attempts}/{attempt}/{name}"

    def _facts(self, attempt: str) -> Mapping[str, Any] | None:
        facts = self._file(attempt, "facts.json")
        if facts is None or facts.get("format") != FORMAT or facts.get("attempt") != attempt:
            return None
        return facts

    def _file(self, attempt: str, name: str) -> Mapping[str, Any] | None:
        """Read a file that is written once, and remember it."""
        known = self._known.get((attempt, name))
        if known is None and _ATTEMPT.fullmatch(attempt):
            known = _read(self._attempts / attempt / name)
            if known is not None:
                self._known[attempt, name] = known
        return known

    def _problem(self, attempt: str) -> str:
        directory = self._place(attempt)
        if os.access(directory, os.R_OK | os.W_OK | os.X_OK) or not os.path.isdir(directory):
            return ""
        return (
            f"The engine's container wrote {directory} so that the sidecar (uid {os.getuid()}) can't use it: "
            "give both containers a common group (fsGroup) on the control directory."
        )

    def _create(self, attempt: str, name: str, value: Mapping[str, Any]) -> bool:
        newest = next((known for known in self._newest_first() if self._alive(known)), None)
        if newest != attempt:
            return False
        target = self._attempts / attempt / name
        temporary = temporary_name(target)
        try:
            _fill(temporary, _as_json(value), _SHARED_FILE)
            os.link(temporary, target)
        except FileExistsError:
            return False
        except FileNotFoundError:
            # Pruned by a newer launcher.
            return False
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            with suppress(OSError):
                temporary.unlink()
        return True

    def _unwritable(self, error: OSError) -> HandshakeError:
        return HandshakeError(
            f"The control directory {self.path} can't be written ({error.strerror}): it needs free space and "
            "a group that the sidecar and the engine share."
        )


def _text(change: object) -> str:
    text = change.get("text") if isinstance(change, dict) else None
    return text if isinstance(text, str) else ""


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _as_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def _fill(path: Path, data: bytes, mode: int) -> None:
    """Write a new file that the engine's container can read whatever the umask.

    Not synced: nothing here outlives the node, and a sync would wait for what a restore writes.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)
        stream.write(data)


def _replace(path: Path, data: bytes, mode: int = _SHARED_FILE) -> None:
    temporary = temporary_name(path)
    try:
        _fill(temporary, data, mode)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        return read_json(path)
    except (OSError, FileUnreadable):
        return None


def _line(raw: bytes) -> Line | None:
    try:
        return Line.parse(json.loads(raw))
    except (ValueError, RecursionError):
        return None
