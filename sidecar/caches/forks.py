"""Do pieces of work in forked processes: who does which piece, and which pieces were lost with a process that died.

What a piece is, is not known here. No process outlives the one that started it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

Note = Callable[[Any], None]
Work = Callable[[int, Note], Any]
PROCESSES = 4
_SIZE = 4


@dataclass(frozen=True)
class Lost:
    """What stands for the result of a piece whose process died."""


def processes() -> int:
    """Say how many processes may share this one's work: as many as it has CPUs, at most `PROCESSES`."""
    return min(PROCESSES, len(os.sched_getaffinity(0)))


def spread(pieces: Sequence[int], jobs: int, work: Work, on_note: Note) -> Iterator[tuple[int, Any]]:
    """Call `work(piece, note)` for each piece in one of up to `jobs` forked processes; yield pieces with results.

    Results and notes are JSON values; a note goes to `on_note` here. A piece whose process dies yields Lost. Where
    nothing can be forked the work is done in this process. Raises OSError when `work` did. No process is left when
    this ends, nor when the caller stops early.
    """
    crew = _Crew(work)
    waiting = list(reversed(pieces))
    try:
        while waiting or crew.members:
            while waiting and len(crew.members) < jobs and crew.start(waiting[-1]):
                waiting.pop()
            if not crew.members:
                piece = waiting.pop()
                yield piece, work(piece, on_note)
            for member in crew.ready():
                said = crew.hear(member)
                if said is None:
                    crew.dismiss(member)
                    yield member.piece, Lost()
                elif "note" in said:
                    on_note(said["note"])
                elif "errno" in said:
                    raise OSError(said["errno"], said["strerror"])
                else:
                    yield member.piece, said["done"]
                    crew.order(member, waiting.pop() if waiting else None)
    finally:
        crew.end()


@dataclass
class _Member:
    pid: int
    orders: int
    answers: int
    piece: int


class _Crew:
    def __init__(self, work: Work) -> None:
        self._work = work
        self.members: dict[int, _Member] = {}
        self._life = os.pipe()
        gc.freeze()

    def start(self, piece: int) -> bool:
        """Fork a process that begins with a piece; False when the system allows no more."""
        orders, answers = os.pipe(), os.pipe()
        try:
            with warnings.catch_warnings():
                # The other thread of this process only waits for the daemon's end (Python 3.12 warns of any thread).
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError:
            for descriptor in (*orders, *answers):
                os.close(descriptor)
            return False
        if pid == 0:
            self._become(piece, orders, answers)
        os.close(orders[0])
        os.close(answers[1])
        self.members[answers[0]] = _Member(pid, orders[1], answers[0], piece)
        return True

    def ready(self) -> list[_Member]:
        """Wait for a process to say something or to die."""
        if not self.members:
            return []
        poll = select.poll()
        for descriptor in self.members:
            poll.register(descriptor, select.POLLIN)
        return [self.members[descriptor] for descriptor, _ in poll.poll()]

    def hear(self, member: _Member) -> dict[str, Any] | None:
        """Take the next thing that a process said; None when it is dead."""
        size = self._exactly(member, _SIZE)
        text = self._exactly(member, int.from_bytes(size)) if size else b""
        said: dict[str, Any] | None = json.loads(text) if text else None
        return said

    def order(self, member: _Member, piece: int | None) -> None:
        """Give a process its next piece, or let it go."""
        if piece is None:
            self.dismiss(member)
            return
        member.piece = piece
        # A process that died meanwhile is noticed when it is listened to.
        with contextlib.suppress(BrokenPipeError):
            os.write(member.orders, piece.to_bytes(_SIZE))

    def end(self) -> None:
        """Kill and reap whatever still runs."""
        for member in list(self.members.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGKILL)
            self.dismiss(member)
        for descriptor in self._life:
            os.close(descriptor)
        gc.unfreeze()

    def dismiss(self, member: _Member) -> None:
        """Let a process go and wait until it is gone."""
        del self.members[member.answers]
        os.close(member.orders)
        os.close(member.answers)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(member.pid, 0)

    def _exactly(self, member: _Member, size: int) -> bytes:
        found = b""
        while len(found) < size:
            data = os.read(member.answers, size - len(found))
            if not data:
                return b""
            found += data
        return found

    def _become(self, piece: int, orders: tuple[int, int], answers: tuple[int, int]) -> NoReturn:
        """Be the forked process: do pieces until there are no more, and end without the parent's clean-up."""
        code = 1
        try:
            gc.disable()
            for member in self.members.values():
                os.close(member.orders)
                os.close(member.answers)
            for descriptor in (orders[1], answers[0], self._life[1]):
                os.close(descriptor)
            threading.Thread(target=_end_with, args=(self._life[0],), daemon=True).start()
            self._serve(piece, orders[0], answers[1])
            code = 0
        except BrokenPipeError:
            code = 0
        except BaseException:
            # Nothing may get out of here: the caller's code belongs to the parent. The client keeps these lines.
            traceback.print_exc()
        finally:
            os._exit(code)

    def _serve(self, piece: int, orders: int, answers: int) -> None:
        def say(said: dict[str, Any]) -> None:
            text = json.dumps(said).encode()
            _write_all(answers, len(text).to_bytes(_SIZE) + text)

        while True:
            try:
                say({"done": self._work(piece, lambda note: say({"note": note}))})
            except BrokenPipeError:
                raise
            except OSError as error:
                say({"errno": error.errno, "strerror": error.strerror})
            order = os.read(orders, _SIZE)
            if not order:
                return
            piece = int.from_bytes(order)


def _end_with(descriptor: int) -> NoReturn:
    """Wait until the parent is gone, which closes the other end, and end with it."""
    os.read(descriptor, 1)
    os._exit(1)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
