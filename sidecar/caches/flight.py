"""Single flight: the pods of a key that has no generation yet wait for the first of them to publish one.

Only waiting is done here; what is restored afterwards is `choice`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sidecar.caches.claims import TTL_S, Claims, Seen
from sidecar.caches.messages import FIRST, Claim, Progress
from sidecar.errors import WarmupError

#: Between two looks at the store: the first engine takes minutes, and each look is two small reads.
POLL_S = 2.0


@dataclass(frozen=True)
class Flight:
    """How the wait ended: `claim` when this pod is the one that others wait for, and the seconds that it waited."""

    claim: Claim | None
    waited_s: float


class _Watched:
    """The newest claim, and since when it has been as it is, by this pod's own clock."""

    def __init__(self) -> None:
        self.seen: Seen | None = None
        self._since = 0.0

    def is_free(self, seen: Seen | None, now: float) -> bool:
        """Take the claim as it is now, and say whether nobody holds it."""
        if seen is None or seen != self.seen:
            self.seen, self._since = seen, now
        return seen is None or seen.released or now - self._since >= TTL_S


def wait_for_the_first(
    published: Callable[[], bool],
    claims: Claims,
    limit_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    on_progress: Callable[[Progress], None],
) -> Flight:
    """Wait until the key has a generation, until this pod is to make it, or for at most `limit_s` seconds.

    A holder that is silent for TTL_S by our monotonic `clock` is taken for dead, and its place taken over. Raises
    StoreUnavailable.
    """
    began = clock()
    watched = _Watched()
    while not published():
        waited = clock() - began
        if watched.is_free(claims.look(FIRST), clock()):
            try:
                claim = claims.take(FIRST, watched.seen.epoch if watched.seen else 0)
            except WarmupError:
                # A store that can't be written has no first publisher here.
                return Flight(None, waited)
            if claim is not None:
                return Flight(claim, waited)
        if waited >= limit_s:
            return Flight(None, waited)
        on_progress(
            Progress(bytes_done=0, bytes_total=0, files_done=0, waiting=_sentence(watched.seen, waited, limit_s))
        )
        sleep(min(POLL_S, limit_s - waited))
    return Flight(None, clock() - began)


def _sentence(seen: Seen | None, waited_s: float, limit_s: float) -> str:
    holder = seen.holder if seen else "another pod"
    return (
        f"Waiting for {holder}, which starts cold and publishes the first generation of this key: since {waited_s:.0f} s, "
        f"for at most {limit_s:.0f} s."
    )
