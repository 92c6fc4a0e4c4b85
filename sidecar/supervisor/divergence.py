"""An engine of several ranks that hangs while it starts, on tactics that only some of its ranks may have: one try without them.

When an engine makes no progress is seen in `progress`; what a restart leads to is decided by the state machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from sidecar import lifecycle
from sidecar.caches import families
from sidecar.caches.normalise import ranks
from sidecar.lifecycle import Phase
from sidecar.supervisor.pod import Pod

#: Half of what ranks wait for one that skipped a collective, before they end (torch.distributed, gloo: 1800 s).
PATIENCE_S = 900.0


def suspect(pod: Pod, seconds: float) -> lifecycle.StartStuck | None:
    """Say that the engine is to be started again without some families, and distrust them from now on; None: it is not.

    Only an engine of several ranks that has not been ready, keeps its GPUs busy for nothing for so many seconds, and started
    on such families; each family is blamed once.
    """
    if seconds < PATIENCE_S or pod.board.phase is not Phase.AWAITING_ENGINE:
        return None
    known = ranks(pod.facts)
    if known.total <= 1 and known.all_here:
        return None
    blamed = tuple(name for name in _shared_by_ranks(pod) if name not in pod.distrusted)
    if not blamed:
        return None
    pod.distrusted = (*pod.distrusted, *blamed)
    names = ", ".join(blamed)
    reason = (
        f"possible autotune divergence: its ranks seem to wait for each other since {seconds:.0f} s, and it started on {names}. "
        f"It is started once more without {names}."
    )
    return lifecycle.StartStuck(str(pod.board.engine.get("attempt") or ""), reason)


def _shared_by_ranks(pod: Pod) -> Iterator[str]:
    """Name the families that ranks must have alike and of which this start found files."""
    for family in families.stored_families():
        if not (family.per_rank or family.leave_out_multi_rank) or not pod.live_cache:
            continue
        if _has_older(os.path.join(pod.live_cache, family.directory), pod.opened_wall):
            yield family.name


def _has_older(folder: str, wall_s: float) -> bool:
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                if os.lstat(os.path.join(where, name)).st_mtime < wall_s:
                    return True
            except OSError:
                continue
    return False
