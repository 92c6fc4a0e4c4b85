"""Signals, and the end that they ask for: both are a thread's, so that a file or device that hangs holds up neither.

What a signal means is decided by whoever hands in what is to be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping

from sidecar.logs import get_logger

#: What is told to end is gone within 2 s (DESIGN §3), whatever it waits for: the rest is the kernel's.
END_S = 1.75
#: After an orderly end, so much is left for threads. Seconds.
LEFT_S = 1.0

_log = get_logger("daemon")


class Ending:
    """The end of one process. `gone` says that it has been reached in order."""

    def __init__(self) -> None:
        self._gone = threading.Event()

    def gone(self) -> None:
        """Note that the end was reached: nothing is to be forced any more."""
        self._gone.set()
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)

    def within(self, seconds: float, code: int) -> None:
        """End the process after so many seconds, unless it has ended before: a thread on a disk that hangs never would."""

        def force() -> None:
            if not self._gone.wait(seconds):
                main = sys._current_frames().get(threading.main_thread().ident or 0)
                where = traceback.format_stack(main, 1)[0].strip() if main else ""
                _log.warning("something hangs and was not waited for at the end", where=where)
                os._exit(code)

        threading.Thread(target=force, name="the end", daemon=True).start()


def take_signals(
    loop: asyncio.AbstractEventLoop, handlers: Mapping[signal.Signals, Callable[[], None]], seen: Callable[[int], None]
) -> None:
    """Have the loop call a signal's handler; `seen` is called at once and by a thread, even when the loop is stuck.

    Only in the main thread. Python writes each signal's number into the wake-up socket before anything else (`signal`).
    """
    arriving, wake = socket.socketpair()
    wake.setblocking(False)
    for number in handlers:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def pass_on() -> None:
        # Named here too: a socket that nobody knows any more is closed.
        with arriving, wake:
            while numbers := arriving.recv(64):
                for number in filter(handlers.__contains__, numbers):
                    seen(number)
                    with contextlib.suppress(RuntimeError):
                        loop.call_soon_threadsafe(handlers[signal.Signals(number)])

    threading.Thread(target=pass_on, name="signals", daemon=True).start()
