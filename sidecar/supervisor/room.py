"""How much room the KV cache of a start has, told beside that of earlier boots of the same key.

Only measured and told here; whether a smaller one is worth a restart is decided in `renewal.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.caches.client import RecordRequest
from sidecar.engines.protocol import EngineFacts
from sidecar.supervisor import history
from sidecar.supervisor.pod import Pod

#: Free GPU memory differs a little from boot to boot; less than this is no difference.
NOISE = 0.02
#: Seconds for writing a small file into the store, as for reading one.
STORE_S = history.STORE_S
#: A number beyond this in a record was not counted by any engine.
SENSIBLE = 1 << 40
#: Restores after which nothing is said about what the engine found in its caches.
_UNTOLD = frozenset({"kept", "skipped", "pending", "running", "waiting"})


@dataclass(frozen=True)
class Room:
    """What a KV cache holds, in blocks and in tokens; 0 where it isn't known."""

    blocks: int = 0
    tokens: int = 0

    def over(self, other: Room) -> float | None:
        """Give this room as a share of another one; None where they can't be compared."""
        if self.blocks and other.blocks:
            return self.blocks / other.blocks
        return self.tokens / other.tokens if self.tokens and other.tokens else None

    def words(self) -> str:
        """Say it in tokens, or in blocks where tokens aren't known."""
        return f"{self.tokens:,} tokens" if self.tokens else f"{self.blocks:,} blocks"


@dataclass(frozen=True)
class Compared:
    """This start's room beside earlier boots of its key.

    `shortfall`: by which share it is smaller than the best of `earlier` ones, 0 to 1; None: there is none to compare.
    """

    room: Room
    cold: bool
    earlier: int = 0
    best: Room = Room()
    shortfall: float | None = None

    @property
    def smaller(self) -> bool:
        """Say whether it is smaller by more than free memory differs anyway."""
        return self.shortfall is not None and self.shortfall > NOISE

    @property
    def sentence(self) -> str:
        """Tell it to people."""
        if not self.earlier or self.shortfall is None:
            return f"KV cache {self.room.words()}; no earlier boot of this key tells how much there could be."
        boots = f"the best of {self.earlier} earlier boots" if self.earlier > 1 else "the one earlier boot"
        if not self.smaller:
            return f"KV cache {self.room.words()}, as much as in {boots} of this key."
        why = (
            "a cold boot left less GPU memory, because compiling is measured as need"
            if self.cold
            else "something else holds GPU memory, or the engine compiled while it measured"
        )
        return f"KV cache {self.room.words()}, {self.shortfall:.0%} smaller than {boots} of this key: {why}.".replace(
            "%", " %", 1
        )

    def to_json(self) -> dict[str, Any]:
        """Give it as it stands in `/status`."""
        return {
            "blocks": self.room.blocks or None,
            "tokens": self.room.tokens or None,
            "cold": self.cold,
            "earlier_boots": self.earlier,
            "best_tokens": self.best.tokens or None,
            "best_blocks": self.best.blocks or None,
            "shortfall": None if self.shortfall is None else round(self.shortfall, 4),
            "sentence": self.sentence,
        }

    def to_record(self) -> dict[str, Any]:
        """Give the fields of a boot's record in the store."""
        known = {"kv_blocks": self.room.blocks, "kv_tokens": self.room.tokens}
        return {**{name: value for name, value in known.items() if value}, "cold": self.cold}


def room_of(facts: EngineFacts) -> Room | None:
    """Take the room out of what the engine says of itself; None when it says nothing."""
    blocks = facts.kv_blocks or 0
    tokens = facts.kv_tokens or blocks * (facts.block_size or 0)
    return Room(blocks, tokens) if blocks or tokens else None


def compared(room: Room, cold: bool, records: Iterable[Mapping[str, Any]], attempt: str) -> Compared:
    """Hold a room against the records of earlier boots; what isn't a sensible number in them is passed over."""
    others = [
        Room(_count(record.get("kv_blocks")), _count(record.get("kv_tokens")))
        for record in records
        if record.get("attempt") != attempt
    ]
    shares = [(share, other) for other in others if (share := room.over(other)) is not None]
    if not shares:
        return Compared(room, cold)
    share, best = min(shares, key=lambda each: each[0])
    return Compared(room, cold, len(shares), best, max(0.0, 1.0 - share))


def started_cold(pod: Pod) -> bool:
    """Say whether the engine found nothing compiled for exactly this model and these arguments."""
    outcome = pod.board.restore.get("outcome")
    if outcome == "late":
        return True
    return outcome not in _UNTOLD and pod.restored is not None and "exact" not in pod.restored.generations


async def compare(pod: Pod, facts: EngineFacts, records: Awaitable[Iterable[Mapping[str, Any]]]) -> None:
    """Compare with earlier boots in the store, and tell. A store that is away costs the comparison only."""
    room = room_of(facts)
    pod.room = None
    if room is None:
        pod.metrics.kv_cache(None, None)
        return
    found = compared(room, started_cold(pod), await records, pod.restored_attempt)
    pod.room = found
    pod.board.engine = {**pod.board.engine, "kv_cache": found.to_json()}
    pod.metrics.kv_cache(room.tokens or None, found.shortfall)
    if found.smaller:
        pod.board.tell(found.sentence, "warning")


async def record(pod: Pod, generation: str) -> None:
    """Write the room of a boot that was restored from no exact generation; other boots' records have it already.

    Its outcome is `made`, which proves nothing about any generation.
    """
    found, restored = pod.room, pod.restored
    if found is None or restored is None or not restored.exact_key or not pod.store:
        return
    if pod.settings.store_mode == "read-only" or "exact" in restored.generations:
        return
    attempt = pod.restored_attempt or "beside"
    record = {"outcome": "made", "generation": generation, "attempt": attempt, "boot": pod.boot}
    record |= {**history.fields(pod), **found.to_record()}
    request = RecordRequest(
        store=pod.store,
        scope="exact",
        key=restored.exact_key,
        generation=generation,
        kind="boot",
        name=f"{generation or 'none'}.made.{attempt}-{pod.boot[:8]}",
        record=record,
    )
    if trouble := await pod.caches.record(request, STORE_S):
        pod.board.tell(f"The store could not take this boot's KV cache size: {trouble}", "warning")


def _count(value: object) -> int:
    return value if type(value) is int and 0 < value < SENSIBLE else 0
