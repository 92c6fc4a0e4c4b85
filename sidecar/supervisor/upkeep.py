"""Clean the store up after a publish, when the settings ask publishers to and nobody did lately.

What goes is decided in `caches`; the pods of a store agree by the time that is noted there.
"""

from __future__ import annotations

from sidecar.caches.client import CleanRequest
from sidecar.caches.retention import limits_of
from sidecar.supervisor.pod import Pod

#: Ten thousand generations take some seconds; a store on a slow network, or ten times as many, some minutes.
DEADLINE_S = 900.0


async def clean(pod: Pod) -> None:
    """Clean the store up if it is due, at idle priority; what goes wrong is told and costs nothing else."""
    settings = pod.settings
    if not settings.store_gc_interval_s or not pod.store or settings.store_mode == "read-only":
        return
    request = CleanRequest(
        store=pod.store,
        interval_s=settings.store_gc_interval_s,
        limits=limits_of(settings),
        keys_file=str(settings.trusted_keys_file or ""),
        signing_file=str(settings.signing_key_file or ""),
    )
    result = await pod.caches.clean(request, DEADLINE_S)
    pod.metrics.observe_store_gc(result.to_json(), pod.board.wall())
    if result.sentence:
        pod.board.tell(result.sentence, "warning" if result.failed else "info")
