"""What the files of the control directory say, as frozen values that were checked before they are believed.

No file is opened here: parsing takes what `json.loads` gave and answers None to anything that doesn't fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Version of the control directory's files; `launcher.py` has the same number.
FORMAT = 1


@dataclass(frozen=True)
class LauncherSettings:
    """What a launcher must know before anything else; written to `sidecar.json`.

    `environment` holds the cache variables, `directories` absolute paths to create with mode 2775 (less the
    umask), `wait_s` seconds until a launcher starts the engine undecided, `drain_s` the cap in seconds of
    holding SIGTERM, `settle_s` seconds before the first look at requests in flight, so that load balancers
    notice, `kill_s` seconds between SIGTERM and SIGKILL. `links` maps places that no variable moves (`~/…`,
    `$TMPDIR/…`) to directories of the live cache. `look_s` seconds pass between two looks for caches that nobody
    knows; `extra_roots` are absolute directories where to look besides HOME and TMPDIR, `not_caches` places to pass by.
    `fallbacks` are changes of the engine's command (`config.fallbacks`) whose facts the launcher hands over with its own.
    """

    version: str
    engine_url: str
    live_cache: str
    environment: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    wait_s: float = 90.0
    drain_s: float = 25.0
    settle_s: float = 2.0
    kill_s: float = 30.0
    umask: str = "0007"
    links: Mapping[str, str] = field(default_factory=dict)
    look_s: float = 60.0
    extra_roots: tuple[str, ...] = ()
    not_caches: tuple[str, ...] = ()
    fallbacks: tuple[Mapping[str, Any], ...] = ()

    def to_json(self, boot: str) -> dict[str, Any]:
        """Give the content of `sidecar.json` for the daemon process called `boot`."""
        return {
            "format": FORMAT,
            "boot": boot,
            "version": self.version,
            "engine_url": self.engine_url,
            "live_cache": self.live_cache,
            "environment": dict(self.environment),
            "directories": list(self.directories),
            "wait_s": self.wait_s,
            "drain_s": self.drain_s,
            "settle_s": self.settle_s,
            "kill_s": self.kill_s,
            "umask": self.umask,
            "links": dict(self.links),
            "look_s": self.look_s,
            "extra_roots": list(self.extra_roots),
            "not_caches": list(self.not_caches),
            "fallbacks": [dict(change) for change in self.fallbacks],
        }


@dataclass(frozen=True)
class CommitEntry:
    """One family to swap in: `staged` and `live` are absolute directories on one filesystem."""

    family: str
    staged: str
    live: str

    def to_json(self) -> dict[str, str]:
        """Give the entry as it stands in `decision.json`."""
        return {"family": self.family, "staged": self.staged, "live": self.live}


@dataclass(frozen=True)
class Decision:
    """What the launcher has to do before it starts the engine; `restore` is the outcome of the restore.

    `change` is the fallback to start the engine with, None: as it was asked for.
    """

    restore: str
    commit: tuple[CommitEntry, ...] = ()
    clear: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    change: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the content of `decision.json`."""
        return {
            "format": FORMAT,
            "by": "sidecar",
            "restore": self.restore,
            "commit": [entry.to_json() for entry in self.commit],
            "clear": list(self.clear),
            "environment": dict(self.environment),
            "unset": list(self.unset),
            "append": list(self.append),
            **({"change": dict(self.change)} if self.change is not None else {}),
        }


@dataclass(frozen=True)
class Started:
    """The engine runs. `committed` families were swapped in, `failed` ones left empty, with the reason."""

    pid: int
    by: str
    committed: tuple[str, ...]
    failed: Mapping[str, str]
    engine_argv: tuple[str, ...]

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Started | None:
        """Read `started.json`; None when it isn't one."""
        pid, failed = found.get("pid"), found.get("failed")
        if type(pid) is not int or pid <= 0 or not isinstance(failed, dict):
            return None
        committed, argv = words(found.get("committed")), words(found.get("engine_argv"))
        if committed is None or argv is None or found.get("by") not in ("sidecar", "launcher"):
            return None
        return cls(pid, found["by"], committed, {str(name): str(why) for name, why in failed.items()}, argv)


@dataclass(frozen=True)
class Exited:
    """The engine ended after `seconds`, with an exit code or by a signal; both None: it never ran.

    `oom_kills`: so many processes of its container the kernel ended meanwhile because main memory was not enough.
    """

    code: int | None
    signal: int | None
    seconds: float
    restarting: bool
    last_lines: tuple[str, ...]
    oom_kills: int = 0

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Exited | None:
        """Read `exited.json`; None when it isn't one."""
        code, signal, seconds = found.get("code"), found.get("signal"), found.get("seconds")
        lines, restarting = words(found.get("last_lines")), found.get("restarting")
        if lines is None or not isinstance(restarting, bool) or not isinstance(seconds, (int, float)):
            return None
        if any(number is not None and type(number) is not int for number in (code, signal)):
            return None
        # Launchers of earlier versions don't tell.
        kills = found.get("oom_kills")
        return cls(code, signal, float(seconds), restarting, lines, kills if type(kills) is int and kills > 0 else 0)


@dataclass(frozen=True)
class Line:
    """One line of the engine's output: `kind` is jit (compiled while serving), fatal or hint."""

    kind: str
    text: str

    @classmethod
    def parse(cls, found: object) -> Line | None:
        """Read one line of `lines.jsonl`; None when it isn't one."""
        if not isinstance(found, dict):
            return None
        kind, text = found.get("kind"), found.get("text")
        return cls(kind, text) if kind in ("jit", "fatal", "hint") and isinstance(text, str) else None


@dataclass(frozen=True)
class Grown:
    """A directory outside the live cache that grew since the engine started, by `bytes` and `files`.

    `where` it was found: home, tmp, moved (the user's own place for a family) or extra (a configured root). `whole` is
    False where not all of it was seen: it grew by at least so much.
    """

    path: str
    bytes: int
    files: int
    where: str
    whole: bool = True

    @classmethod
    def parse_all(cls, found: Mapping[str, Any]) -> tuple[Grown, ...]:
        """Read `unmanaged.json`; what isn't an entry is passed over, and so is what comes after the first 50."""
        entries = found.get("grown")
        return tuple(
            cls(one["path"], one["bytes"], one["files"], one["where"], one.get("whole") is not False)
            for one in (entries[:50] if isinstance(entries, list) else ())
            if isinstance(one, dict)
            and all(isinstance(one.get(name), str) for name in ("path", "where"))
            and all(type(one.get(name)) is int and one[name] >= 0 for name in ("bytes", "files"))
        )


@dataclass(frozen=True)
class Proven:
    """The engine that was proven good. No launcher: `attempt` is empty; no restore: `generation` is.

    `fallback` is the text of the change with which it runs.
    """

    attempt: str
    identity: str
    generation: str = ""
    fallback: str = ""

    def to_json(self) -> dict[str, Any]:
        """Give the content of `proven.json`."""
        names = {"attempt": self.attempt, "identity": self.identity, "generation": self.generation}
        return {"format": FORMAT, **names, "fallback": self.fallback}

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Proven | None:
        """Read `proven.json`; None when it isn't one or names no engine."""
        attempt, identity, generation = (found.get(name) for name in ("attempt", "identity", "generation"))
        if not (isinstance(attempt, str) and isinstance(identity, str) and isinstance(generation, str)):
            return None
        fallback = found.get("fallback")
        text = fallback if isinstance(fallback, str) else ""
        return cls(attempt, identity, generation, text) if identity else None


@dataclass(frozen=True)
class AttemptState:
    """How one attempt stands now (a level, told anew on every look).

    `alive`: its launcher lives. `decided_by`: empty, `launcher` or `sidecar`. `terminating`: SIGTERM came. `change` is the
    text of the fallback with which the engine was let start, empty: as it was asked to.
    `problem`: a sentence when the attempt's files can't be read for a reason that waiting doesn't mend.
    """

    attempt: str
    alive: bool
    facts: Mapping[str, Any] | None = None
    decided_by: str = ""
    why: str = ""
    started: Started | None = None
    terminating: bool = False
    restart_asked: bool = False
    exited: Exited | None = None
    problem: str = ""
    change: str = ""

    @property
    def waiting(self) -> bool:
        """Tell whether a launcher handed over its facts and waits for a decision."""
        return self.alive and self.facts is not None and not self.decided_by and self.exited is None


def words(found: object) -> tuple[str, ...] | None:
    """Take a JSON list of strings; None when it is anything else."""
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        return None
    return tuple(found)
