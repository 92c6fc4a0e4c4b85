"""Blocking work in a thread of its own, with a deadline: a filesystem that hangs must not hold the daemon.

What the work is, is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """Does one piece of work at a time. `deadline_s` in seconds.

    A daemon thread and no executor: the interpreter waits for an executor's threads at its end.
    """

    def __init__(self, name: str, deadline_s: float) -> None:
        self._name = name
        self._deadline_s = deadline_s
        self._busy = False

    async def do(self, work: Callable[[], T]) -> T | None:
        """Do the work and give its result; None past the deadline, and while an earlier piece still hangs.

        Raises OSError when the work does.
        """
        if self._busy:
            return None
        self._busy = True
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._work, args=(work, answer), name=self._name, daemon=True).start()
        try:
            async with asyncio.timeout(self._deadline_s):
                return await answer
        except TimeoutError:
            return None

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
    else:
        answer.set_result(result)
