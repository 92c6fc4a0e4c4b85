"""Publish and restore through the worker, as the daemon does it, and give up with a sentence when it goes wrong."""

from __future__ import annotations

import asyncio

from sidecar.caches.client import CacheClient
from sidecar.caches.messages import PublishRequest, RestoreRequest, RestoreResult

DEADLINE_S = 900.0


def publish(caches: CacheClient, request: PublishRequest) -> None:
    """Publish, or exit with why nothing was."""
    result = asyncio.run(caches.publish(request, DEADLINE_S))
    if result.outcome != "published" or result.skipped:
        raise SystemExit(f"the store could not be filled: {result.sentence} {dict(result.skipped)}")


def restore(caches: CacheClient, request: RestoreRequest) -> RestoreResult:
    """Stage everything, or exit with why not."""
    result = asyncio.run(caches.restore(request, DEADLINE_S))
    if result.outcome not in ("hit", "partial") or result.rejected:
        raise SystemExit(f"not everything was restored: {result.sentence} {dict(result.rejected)}")
    return result
