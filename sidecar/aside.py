"""Blocking work in a thread of its own, with a deadline: a filesystem that hangs must not hold the daemon.

What the work is, is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: A small file, on a disk that still writes down what was restored. Seconds.
FILE_S = 30.0
#: A look at each of some 100,000 files of a cache, on a disk whose directories are not in memory. Seconds.
TREE_S = 60.0
#: A small file that is read where nothing can be awaited. Seconds.
GLANCE_S = 1.0


class Aside(Generic[T]):
    """Does one piece of work at a time. `deadline_s` in seconds.

    A daemon thread and no executor: the interpreter waits for an executor's threads at its end.
    """

    def __init__(self, name: str, deadline_s: float) -> None:
        self._name = name
        self._deadline_s = deadline_s
        self._busy = False
        self._open: asyncio.Future[T] | None = None

    @property
    def late(self) -> bool:
        """Say whether a piece of `resume` came too late, so that the next call gives its result."""
        return self._open is not None

    async def do(self, work: Callable[[], T]) -> T | None:
        """Do the work and give its result; None past the deadline, and while an earlier piece still hangs.

        Raises OSError when the work does.
        """
        try:
            return await self.get(work)
        except TimeoutError:
            return None

    async def get(self, work: Callable[[], T]) -> T:
        """Do the work and give its result. Raises TimeoutError, which is an OSError, where `do` gives None."""
        if self._busy:
            raise self._too_late()
        return await self._result(self._begin(work))

    async def resume(self, work: Callable[[], T]) -> T:
        """Give the result of the piece that came too late, else do the work; so nothing that was found is lost.

        Raises what `get` does.
        """
        answer = self._open = self._open or self._begin(work)
        try:
            return await self._result(answer)
        finally:
            if answer.done():
                self._open = None

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        self._busy = True
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._work, args=(work, answer), name=self._name, daemon=True).start()
        return answer

    async def _result(self, answer: asyncio.Future[T]) -> T:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._deadline_s):
                await asyncio.shield(answer)
        if answer.done():
            # Also where the work itself ran into a time-out, of a network for example: then that is told.
            return answer.result()
        raise self._too_late()

    def _too_late(self) -> TimeoutError:
        return TimeoutError(errno.ETIMEDOUT, f"no answer within {self._deadline_s:g} s")

    def _work(self, work: Callable[[], T], answer: asyncio.Future[T]) -> None:
        result: T | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:  # whatever it is, it belongs to whoever waits, and not to this thread
            error = raised
        finally:
            self._busy = False
        # The daemon may have ended while the work hung; nobody waits for it then.
        with contextlib.suppress(RuntimeError):
            answer.get_loop().call_soon_threadsafe(_settle, answer, result, error)


def _settle(answer: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
        # Looked at, so that nothing is logged about it where nobody waits any more.
        answer.exception()
    else:
        answer.set_result(result)


async def beside(name: str, deadline_s: float, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Do one piece of work in a thread of its own. Raises TimeoutError, which is an OSError, past the deadline in seconds."""
    return await Aside[T](name, deadline_s).get(partial(work, *given, **named))


class Glance(Generic[T]):
    """Does short work in a thread and waits for it in place, for callers that can't await; `deadline_s` in seconds.

    The loop stands still meanwhile, so the deadline is short, and nothing is waited for while an earlier piece hangs.
    """

    def __init__(self, name: str, deadline_s: float) -> None:
        self._name = name
        self._deadline_s = deadline_s
        self._hanging: threading.Thread | None = None

    def get(self, work: Callable[[], T]) -> T:
        """Do the work and give its result, or raise what it raised. Raises TimeoutError past the deadline."""
        late = TimeoutError(errno.ETIMEDOUT, f"no answer within {self._deadline_s:g} s")
        if self._hanging is not None and self._hanging.is_alive():
            raise late
        answer: Future[T] = Future()

        def do() -> None:
            try:
                answer.set_result(work())
            except Exception as raised:  # whatever it is, it belongs to whoever waits
                answer.set_exception(raised)

        self._hanging = threading.Thread(target=do, name=self._name, daemon=True)
        self._hanging.start()
        self._hanging.join(self._deadline_s)
        if not answer.done():
            raise late
        return answer.result()
