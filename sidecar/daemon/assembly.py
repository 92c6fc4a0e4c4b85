"""Makes the parts of one daemon: settings that can be used, the pod, its directories, the supervisor.

Nothing runs here yet; `process.py` starts what is made.
"""

from __future__ import annotations

import os
import random
import secrets
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import sidecar
from sidecar.aside import FILE_S, GLANCE_S, Aside, Glance, beside
from sidecar.caches import families, live_cache, unmanaged
from sidecar.caches.client import CacheClient
from sidecar.config import Loaded, Settings
from sidecar.daemon.cluster import Cluster, account_of
from sidecar.engines.detect import make_engine
from sidecar.engines.leader import LeaderEngine
from sidecar.errors import HandshakeError, LiveCacheUnusable
from sidecar.handshake import ControlDirectory, LauncherSettings
from sidecar.kube import group
from sidecar.lifecycle import Mode, Policy, Snapshot
from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.supervisor import Supervisor, following, renewal, restoring, warming
from sidecar.supervisor.activities import PodActivities
from sidecar.supervisor.child import Child
from sidecar.supervisor.claiming import Keeper
from sidecar.supervisor.pod import Pod
from sidecar.supervisor.telling import Teller

#: A launcher gives up this long after the cap of a restore.
LAUNCHER_GRACE_S = 15.0


def settings_for_child(loaded: Loaded) -> Settings:
    """Give a user's own directories where the defaults, made for containers, can't be written by this user."""
    changes: dict[str, Path] = {}
    if "live_cache" not in loaded.sources and not _writable(loaded.settings.live_cache):
        changes["live_cache"] = users_live_cache()
    if "control_dir" not in loaded.sources and not _writable(loaded.settings.control_dir):
        changes["control_dir"] = Path(tempfile.mkdtemp(prefix="warmup-control-"))
    return loaded.settings.model_copy(update=changes)


def users_live_cache() -> Path:
    """Give the live cache of a user who can't write the default one."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME") or tempfile.gettempdir(), ".cache")
    return Path(cache, "warmup-sidecar", "live")


def _writable(path: Path) -> bool:
    while not os.path.exists(path):
        path = path.parent
    return os.access(path, os.W_OK | os.X_OK)


def make_pod(settings: Settings, mode: Mode, board: Board, metrics: Metrics, problems: int) -> Pod:
    """Make the pod's shared parts; `problems` counts settings that could not be used. Takes no directory yet."""
    place = group.group_of(settings, os.environ)
    settings, alone = group.without_changes(place, settings)
    key = KeyReader(settings.api_key_file)
    caches = CacheClient(clock=time.monotonic)
    pod = Pod(
        settings=settings,
        mode=mode,
        boot=secrets.token_hex(8),
        host_boot=_host_boot(),
        engine=make_engine(settings, key, time.monotonic),
        name=os.uname().nodename,
        caches=caches,
        keeper=Keeper(caches),
        board=board,
        metrics=metrics,
        clock=time.monotonic,
        rng=random.Random(secrets.randbits(64)),
        store=settings.store,
        opened_at=time.monotonic(),
        problems=problems,
    )
    key.degrade, key.mended = pod.degrade, pod.mended
    if alone:
        pod.degrade(alone)
    if place.worker:
        pod.engine = LeaderEngine(place.leader, time.monotonic, lambda: following.own_engine(pod))
        pod.follows = place.leader
    board.engine = {"url": pod.follows or settings.engine_url, "state": "unknown", "restarts": 0}
    return pod


def make_cluster(pod: Pod) -> Cluster:
    """Make what the settings want of Kubernetes; asks nobody yet."""
    environment = os.environ
    place = group.group_of(pod.settings, environment)
    if sentence := group.deadlock(place, pod.settings):
        pod.degrade(sentence)
    named = {name: environment[name] for name in (group.WORKER_INDEX, group.GROUP_SIZE) if environment.get(name)}
    return Cluster(pod, account_of(pod.settings, environment, pod.name), random.random, named)


async def take_live_cache(pod: Pod) -> None:
    """Take the live cache for this daemon; one that can't be had costs restore and publish and nothing else."""
    path = pod.settings.live_cache
    otherwise = (
        "The engine uses its own cache directories and nothing is restored; restart the sidecar when it is mended."
    )
    try:
        pod.live_cache_lock, network = await beside("live cache", FILE_S, _lock, path)
    except LiveCacheUnusable as error:
        pod.degrade(f"{error} {otherwise}")
        return
    except OSError as error:
        pod.degrade(
            f"The live cache {path} hangs ({error.strerror}): look at the volume that is mounted there. {otherwise}"
        )
        return
    pod.live_cache = str(path)
    if network:
        pod.degrade(
            f"The live cache {path} lies on {network}, a network filesystem: compilers lose files there. "
            "Mount a local disk (emptyDir) and keep the network volume for WARMUP_STORE.",
        )


def _lock(path: Path) -> tuple[live_cache.LiveCacheLock, str | None]:
    return live_cache.lock_live_cache(path), live_cache.network_filesystem(path)


class ControlTaking:
    """Takes the control directory and lays the launcher down; where that can't be, it may be tried again and again."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        # One for all tries: a try that hung may have taken the lock in the end.
        self._control = ControlDirectory(pod.settings.control_dir, pod.boot)
        self._aside = Aside[None]("control directory", FILE_S)

    async def take(self) -> str:
        """Try once; give the trouble as a sentence, empty when all is well."""
        pod = self._pod
        settings = _launcher_settings(pod.settings, pod.live_cache, pod.mode)
        otherwise = "Until then the engine starts without the launcher, cold."
        try:
            await self._aside.get(partial(self._control.prepare, settings))
        except HandshakeError as error:
            return f"{error} {otherwise}"
        except OSError as error:
            path = pod.settings.control_dir
            return f"The control directory {path} hangs ({error.strerror}): look at the volume that is mounted there. {otherwise}"
        pod.control = self._control
        return ""


def make_supervisor(pod: Pod, child: Child | None) -> Supervisor:
    """Make the supervisor of a pod; `child` is there when the daemon starts the engine itself."""
    settings = pod.settings
    return Supervisor(
        Snapshot(pod.mode, fallbacks=tuple(change.text for change in settings.fallback_changes)),
        Policy(settings.on_unwarmed, settings.golden_policies),
        PodActivities(pod, child),
        Teller(pod),
        {
            "restore": restoring.deadline(settings.restore_timeout_s + settings.single_flight_s),
            "warm": settings.warm_budget_s + settings.kv_release_s + warming.GRACE_S,
            "verify": warming.check_deadline_s(settings) + renewal.deadline(settings),
        },
    )


def _launcher_settings(settings: Settings, live: str, mode: Mode) -> LauncherSettings:
    return LauncherSettings(
        version=sidecar.__version__,
        engine_url=settings.engine_url,
        live_cache=live,
        environment=families.environment(live) if live else {},
        directories=tuple(families.directories(live)) if live else (),
        wait_s=settings.restore_timeout_s + settings.single_flight_s + LAUNCHER_GRACE_S,
        drain_s=settings.drain_s,
        settle_s=settings.settle_s,
        # A child shares its HOME with the person who started it.
        links=families.links(live) if live and mode is Mode.LAUNCHER else {},
        look_s=settings.unmanaged_interval_s,
        extra_roots=settings.watched_roots,
        not_caches=unmanaged.not_caches(),
        fallbacks=tuple(change.to_json() for change in settings.fallback_changes),
    )


class KeyReader:
    """Reads the API key anew each time it is needed: Secrets are rotated by replacing the file.

    A file that can't be read is told once, through `degrade`, and taken back through `mended`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._glance = Glance[str]("API key", GLANCE_S)
        self._notice = ""
        self.degrade: Callable[[str], None] = lambda _sentence: None
        self.mended: Callable[[str, str], None] = lambda _sentence, _news: None

    def __call__(self) -> str | None:
        """Give the key; None when there is none or it can't be read."""
        if self._path is None:
            return None
        try:
            key = self._glance.get(partial(self._read, self._path))
        except (OSError, UnicodeDecodeError, ValueError) as error:
            if not self._notice:
                self._notice = f"WARMUP_API_KEY_FILE {self._path} can't be read ({error}); requests go without a key."
                self.degrade(self._notice)
            return None
        if self._notice:
            self.mended(self._notice, "The API key can be read now.")
            self._notice = ""
        return key or None

    @staticmethod
    def _read(path: Path) -> str:
        # Not blocking: a pipe in its place would hold the daemon for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("it is no ordinary file")
            return stream.read(1 << 16).strip()


def _host_boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
