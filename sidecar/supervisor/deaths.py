"""Tells other pods of the same key through the store which bursts engines died of, and takes their word for it.

Which reports are believed is decided in `warmup/reported.py`; how deaths are judged within a pod in `pod.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sidecar.caches.client import RecordRequest
from sidecar.lifecycle import Mode
from sidecar.supervisor import history
from sidecar.supervisor.pod import Pod
from sidecar.warmup import reported

#: Warm-up begins without the reports of a store that takes longer to give a few small files. Seconds.
PATIENCE_S = 5.0

Records = asyncio.Task[tuple[Mapping[str, Any], ...]]


async def of_others(pod: Pod, records: Records, plan: str) -> frozenset[str]:
    """Name the bursts of this plan that are left out because engines of other pods died of them, and tell of them."""
    if not pod.store or pod.restored is None:
        return frozenset()
    done, _ = await asyncio.wait({records}, timeout=PATIENCE_S)
    if not done:
        return frozenset()
    found = reported.believed(records.result(), plan, pod.boot, pod.board.wall())
    found = tuple(each for each in found if each.name not in pod.killers)
    if found:
        pod.board.tell(reported.sentence(found, pod.restored.exact_key), "warning")
    return frozenset(each.name for each in found)


async def share(pod: Pod, convicted: frozenset[str], plan: str) -> None:
    """Report what this pod's engine died of, each once. A store that can't take it costs other pods a death.

    Without a launcher nobody knows why an engine ended, so that nothing is said of it to others.
    """
    new = convicted - pod.shared_killers
    if not new or not pod.store or pod.restored is None or not pod.restored.exact_key:
        return
    if pod.mode is Mode.BESIDE or pod.settings.store_mode == "read-only":
        return
    at = pod.board.wall()
    request = RecordRequest(
        store=pod.store,
        scope="exact",
        key=pod.restored.exact_key,
        generation="",
        kind="boot",
        # Names in order of time: the oldest are dropped when there are many.
        name=f"none.{reported.OUTCOME}.{int(at):012d}-{pod.boot[:8]}",
        record={**reported.report(new, plan, at), "boot": pod.boot},
    )
    if trouble := await pod.caches.record(request, history.STORE_S):
        pod.board.tell(f"Other pods can't be told what this engine died of: {trouble}", "warning")
        return
    pod.shared_killers |= new
