"""A group of pods that run one engine (LeaderWorkerSet): which of them this is, and whether it can ever start.

How a worker follows its leader is in `engines/leader.py` and `supervisor/following.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.config import Settings

#: LeaderWorkerSet documentation, "Labels, Annotations and Environment Variables".
LEADER_ADDRESS, WORKER_INDEX, GROUP_SIZE = "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE"


@dataclass(frozen=True)
class Group:
    """This pod's place in its group: `index` 0 is the leader. `leader` is where the leader's sidecar answers."""

    leader: str = ""
    index: int = 0
    size: int = 1

    @property
    def worker(self) -> bool:
        """Say whether this pod follows another."""
        return bool(self.leader) and self.index > 0


def group_of(settings: Settings, environment: Mapping[str, str]) -> Group:
    """Give this pod's place, from the settings and what LeaderWorkerSet puts into every container."""
    size = max(_number(environment.get(GROUP_SIZE, "")) or 1, 1)
    index = _number(environment.get(WORKER_INDEX, ""))
    named = settings.group_leader or environment.get(LEADER_ADDRESS, "")
    if index is None:
        # Only a worker is told whom to follow by hand.
        index = 1 if settings.group_leader else 0
    if not named or index == 0:
        return Group("", index, size)
    has_port = named.rpartition("]")[2].count(":") == 1
    return Group(f"http://{named}" + ("" if has_port else f":{settings.listen_port}"), index, max(size, index + 1))


def deadlock(group: Group, settings: Settings) -> str:
    """Say why a group can never become ready; empty: it can.

    LeaderWorkerSet documentation, `startupPolicy`: with LeaderReady workers are created when the leader is ready.
    """
    if settings.group_startup != "leaderready" or group.size < 2:
        return ""
    return never(group.size)


def without_changes(group: Group, settings: Settings) -> tuple[Settings, str]:
    """Take fallbacks away from a pod of a multi-pod engine, and say so: the other pods would run without the change."""
    if group.size < 2 or not settings.fallback_changes:
        return settings, ""
    return settings.model_copy(update={"fallbacks": ""}), (
        f"WARMUP_FALLBACKS is not used: this pod is one of the {group.size} of one engine, and the others would run with the "
        "command as it was. Change the command of all of them where they are defined."
    )


def never(size: int) -> str:
    """Say why a group of this size whose startupPolicy is LeaderReady never starts."""
    return (
        f"The LeaderWorkerSet's startupPolicy is LeaderReady: its {size - 1} workers are created when the leader "
        "is ready, and the leader is ready when the engine that needs them is warm. Neither ever is. Set startupPolicy: "
        "LeaderCreated."
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
