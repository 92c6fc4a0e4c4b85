"""What all activities of one pod share: the parts they use, and what has been learnt so far.

No activity lives here, and nothing is decided.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.aside import TREE_S, beside
from sidecar.caches import effectiveness, families, scan
from sidecar.caches.client import CacheClient, RestoreResult
from sidecar.caches.folder_tree import FolderTree
from sidecar.caches.live_cache import LiveCacheLock
from sidecar.config import Settings
from sidecar.engines.outside import Place
from sidecar.engines.protocol import Engine, EngineFacts, Hint
from sidecar.engines.watcher import Observation
from sidecar.gpu.sm import from_product
from sidecar.handshake import PASSING, ControlDirectory
from sidecar.kube.events import DEGRADED, Reason
from sidecar.lifecycle import Gate, Mode, Snapshot
from sidecar.logs import get_logger
from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.supervisor.claiming import Keeper
from sidecar.warmup.deadly import DRAWN

if TYPE_CHECKING:
    from sidecar.supervisor.room import Compared

#: Ends of an engine that were none of its own doing, as `handshake.CAUSES` names them.
OUTSIDE = frozenset({"killed", "terminated", "restart"})
#: A file's time may be a little behind the clock that is read here. Seconds.
TICK_S = 0.1

_log = get_logger("pod")


async def _no_veto() -> str:
    return ""


@dataclass
class Pod:
    """The parts and the knowledge of one pod.

    `control` is None when the control directory can't be used, `live_cache` empty when the live cache can't: then
    nothing is restored, published or watched, and the engine keeps its own cache directories. `clock` gives monotonic
    seconds. `base_facts` are known without a launcher; those
    that it reports are added to them. `host_boot` is the kernel's boot ID, `name` the pod's
    as its neighbours are told it. `on_child_exit` has the launcher's last word
    taken note of, once the daemon's own child is gone. `places` tell of the engine beside its launcher, best first, such as
    the Pod's spec and the Node's labels. `follows` is where the leader's sidecar answers, for a worker of
    a multi-pod engine; `distrusted` are families that an engine may have hung on; `resting` says that an activity waits
    with nothing sent to the engine, and `arguments_known` that without a launcher the engine's arguments are facts all the same.
    `fallback_text` is the fallback with which `fallback_attempt` runs, `fallback` its number among the configured ones, and
    `original_facts` are those of the command as it was asked for.
    `packed` are the packs that this live cache was published in.
    `learnt` is what the engine last said of itself, `disagreements` what is told of its command against WARMUP_ENGINE_URL.
    `on_step` hears of every step, `announce` of what is worth a Kubernetes Event, and `veto` says why nothing may be
    published, or nothing.
    """

    settings: Settings
    mode: Mode
    boot: str
    host_boot: str
    name: str
    engine: Engine
    caches: CacheClient
    keeper: Keeper
    board: Board
    metrics: Metrics
    clock: Callable[[], float]
    rng: random.Random
    control: ControlDirectory | None = None
    live_cache: str = ""
    store: str = ""
    live_cache_lock: LiveCacheLock | None = None
    base_facts: Mapping[str, Any] = field(default_factory=dict)

    sm: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    observation: Observation | None = None
    restored: RestoreResult | None = None
    restored_attempt: str = ""
    packed: tuple[str, ...] = ()
    learnt: EngineFacts | None = None
    disagreements: tuple[str, ...] = ()
    original_facts: Mapping[str, Any] = field(default_factory=dict)
    fallback: int = 0
    fallback_text: str = ""
    fallback_attempt: str = ""
    places: tuple[Place, ...] = ()
    room: Compared | None = None
    unmanaged: tuple[Mapping[str, Any], ...] = ()
    laid: Mapping[str, FolderTree] | None = None
    suspects: Counter[str] = field(default_factory=Counter)
    suspected_last: tuple[str, ...] = ()
    distrusted: tuple[str, ...] = ()
    killers: frozenset[str] = frozenset()
    shared_killers: frozenset[str] = frozenset()
    last_end: str = ""
    jit_lines: int = 0
    fatal_lines: tuple[str, ...] = ()
    line_hints: Mapping[str, Hint] = field(default_factory=dict)
    resting: bool = False
    gpu_memory_gib: float = 0.0
    lost_gpus: str = ""
    engine_pid: int = 0
    opened_at: float = 0.0
    opened_wall: float = 0.0
    problems: int = 0
    follows: str = ""
    arguments_known: bool = False
    on_child_exit: Callable[[], None] = lambda: None
    on_step: Callable[[Snapshot, Snapshot, Gate], None] = lambda _before, _after, _gate: None
    announce: Callable[[Reason, str], None] = lambda _reason, _sentence: None
    veto: Callable[[], Awaitable[str]] = _no_veto
    start_counted: bool = False
    kernels_before: dict[str, int] = field(default_factory=dict)
    kernels_after: dict[str, int] = field(default_factory=dict)

    @property
    def sm_version(self) -> str:
        """Give the SM version: settings, NVML, the launcher's GPU names, other places; `cpu`: no GPU; empty: unknown."""
        if self.settings.sm or self.sm:
            return self.settings.sm or self.sm
        gpus = self.facts.get("gpus")
        if not gpus and self.mode is not Mode.BESIDE and self.facts:
            return "cpu"
        known = [from_product(str(gpu.get("name", ""))) for gpu in gpus or () if isinstance(gpu, dict)]
        for place in self.places:
            known += [place.sm, *map(from_product, place.products)]
        return next(filter(None, known), "")

    def degrade(self, sentence: str) -> None:
        """Tell what is switched off and why, once, until `mended` takes it back."""
        if sentence in self.board.degraded:
            return
        _log.error(sentence)
        self.board.tell(sentence, "error")
        self.announce(DEGRADED, sentence)
        self._notices((*self.board.degraded, sentence))

    def mended(self, sentence: str, news: str) -> None:
        """Take a notice back and tell why."""
        self.board.tell(news)
        self._notices(tuple(each for each in self.board.degraded if each != sentence))

    def _notices(self, degraded: tuple[str, ...]) -> None:
        self.board.degraded = degraded
        self.metrics.notices(len(degraded), self.problems)

    def left_alone(self) -> tuple[str, ...]:
        """Name the families that are neither restored nor published: those of the setting and distrusted ones.

        Without a launcher nobody knows the engine's arguments, so nothing that depends on them may be reused.
        """
        asked = (*self.settings.excluded_families, *self.distrusted)
        if self.mode is not Mode.BESIDE or self.arguments_known:
            return asked
        exact = tuple(family.name for family in families.stored_families() if family.scope == "exact")
        return (*asked, *exact)

    def convict(self) -> frozenset[str]:
        """Give the bursts of which engines died, so that they are left out.

        An engine that was killed from outside while it worked on one says nothing against it, unless that happens
        twice: the kernel's out-of-memory killer looks the same as a container that was ended. Nor does a compile stall,
        however often: what that burst needs is compiled bit by bit. Random draws differ in each warm-up, so that one death
        of each of two counts like two.
        """
        if self.last_end in PASSING:
            self.suspects -= Counter(self.suspected_last)
        self.suspected_last = ()
        known = set(self.suspects) if self.last_end not in OUTSIDE else set[str]()
        known |= {burst for burst, deaths in self.suspects.items() if deaths > 1}
        drawn = {burst for burst in self.suspects if burst.startswith(DRAWN)}
        if sum(self.suspects[burst] for burst in drawn) > 1:
            known |= drawn
        self.killers |= known
        return self.killers

    def asleep(self) -> bool:
        """Say whether the engine was last seen asleep."""
        return self.observation is not None and self.observation.state == "asleep"

    def suspect(self, bursts: Iterable[str]) -> None:
        """Note the bursts during which the engine died just now."""
        self.suspected_last = tuple(bursts)
        self.suspects.update(self.suspected_last)

    def has_compiled(self) -> bool:
        """Say whether the engine of this attempt has compiled anything: by its log, or by kernel files younger than it.

        Looks through the live cache, for some 60 ms where it holds 10,000 files: for ends of an engine only.
        """
        if self.jit_lines:
            return True
        since_ns = int((self.opened_wall - TICK_S) * 1e9)
        with suppress(OSError):
            return bool(self.live_cache) and scan.has_kernels_since(
                self.live_cache, families.stored_families(), since_ns
            )
        return False

    def count_kernels(self, when: str, kernels: Mapping[str, int]) -> None:
        """Add kernels that were compiled `before_ready` or `after_ready`, per family, to metrics and status."""
        totals = self.kernels_before if when == "before_ready" else self.kernels_after
        for family, count in kernels.items():
            if count > 0:
                totals[family] = totals.get(family, 0) + count
                self.metrics.count_kernels(when, family, count)
        self.show_kernels()

    async def look_at_what_was_laid(self) -> None:
        """Remember what lies in the live cache as the engine starts, so that its effect can be measured at ready."""
        self.laid = None
        if self.live_cache and self.restored and self.restored.families:
            with suppress(OSError):
                known = families.stored_families()
                self.laid = await beside("what was laid", TREE_S, scan.scan_live_cache, self.live_cache, known)

    async def measure_effect(self) -> None:
        """Measure once per start how much of what was restored the engine used, for metrics, status and log."""
        laid, self.laid = self.laid, None
        if laid is None or self.restored is None:
            return
        try:
            given = (self.live_cache, laid, self.restored.families, self.facts, self._near())
            effects = await beside("effect of the restore", TREE_S, effectiveness.measure, *given)
        except OSError as error:
            self.board.tell(f"What the engine used of the restored caches can't be measured ({error}).", "warning")
            return
        self.board.restore = {
            **self.board.restore,
            "effectiveness": {name: effect.to_json() for name, effect in effects.items()},
        }
        self.metrics.effectiveness({name: effect.ratio for name, effect in effects.items()})
        if said := effectiveness.sentence(effects):
            self.board.tell(said, "info" if effectiveness.is_explained(effects) else "warning")

    def _near(self) -> tuple[str, ...]:
        """Say in which facts the engine differs from the nearest known one, where it got another's kernels."""
        return self.restored.differs if self.restored and self.restored.outcome == "partial" else ()

    async def show_cache(self, known: Callable[[], Mapping[str, Mapping[str, int]]] | None = None) -> None:
        """Measure the live cache in a thread: files, bytes and kernels per family, for metrics and status."""
        if not self.live_cache:
            self.metrics.live_cache(None)
            return
        try:
            sizes = await beside("sizes of the caches", TREE_S, known or (lambda: _sizes(self.live_cache)))
        except OSError as error:
            self.board.cache = {"path": self.live_cache, "trouble": str(error)}
            self.metrics.live_cache(None)
            return
        self.board.cache = {
            "path": self.live_cache,
            "files": sum(size["files"] for size in sizes.values()),
            "bytes": sum(size["bytes"] for size in sizes.values()),
            "kernels": {name: size["kernels"] for name, size in sizes.items() if size["kernels"]},
            "families": sizes,
            "unmanaged": list(self.unmanaged),
        }
        self.metrics.live_cache(sizes)

    def show_kernels(self) -> None:
        """Put the counts into the status; called after every change of the warm-up section, which replaces it."""
        self.board.warmup = {
            **self.board.warmup,
            "kernels_before_ready": dict(self.kernels_before),
            "kernels_after_ready": dict(self.kernels_after),
        }


def _sizes(live_cache: str) -> dict[str, dict[str, int]]:
    """Count files, bytes and kernels of each family that has any. Raises OSError."""
    found: dict[str, dict[str, int]] = {}
    for family in families.stored_families():
        # One after another: a whole cache may hold hundreds of thousands of files.
        if tree := scan.scan_tree(Path(live_cache, family.directory)):
            found[family.name] = {
                "files": len(tree),
                "bytes": sum(entry.size for entry in tree.values()),
                "kernels": scan.count_kernels(family, tree),
            }
    return found
