"""The engine's command as the daemon's own child, behind the launcher: started, signalled and reaped here.

What the launcher does with the command is its own business.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sidecar import lifecycle
from sidecar.errors import EngineError

#: After a stop, how much longer than the drain the launcher may take before the daemon ends it for good.
KILL_GRACE_S = 45.0


class Child:
    """One engine command. `control` is the control directory with the launcher in it; None: the command runs bare.

    The child has a session of its own, so that Ctrl-C reaches the daemon alone and each signal is passed on once.
    """

    def __init__(self, command: Sequence[str], control: Path | None) -> None:
        self._command = tuple(command)
        self._control = control
        self._process: asyncio.subprocess.Process | None = None
        self._signal = signal.SIGTERM

    async def run(self) -> lifecycle.Event:
        """Start the command and wait for its end. A command that can't be started ends like in a shell, with 127."""
        try:
            self._process = await asyncio.create_subprocess_exec(*self._argv(), start_new_session=True)
        except OSError as error:
            raise EngineError(f"The engine's command can't be started: {error}.") from error
        code = await self._process.wait()
        return lifecycle.ChildExited(code if code >= 0 else 128 - code)

    def _argv(self) -> Sequence[str]:
        if self._control is None:
            return self._command
        launcher = str(self._control / "launcher.py")
        return (sys.executable, launcher, "--control", str(self._control), "--die-with-parent", "--", *self._command)

    def stop_with(self, number: signal.Signals) -> None:
        """Choose the signal that `stop` passes on: the one that the daemon itself got."""
        self._signal = number

    def stop(self) -> None:
        """Pass the stop on; the launcher drains and ends the engine."""
        self.forward(self._signal)

    def forward(self, number: signal.Signals) -> None:
        """Send a signal to the launcher, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """End whatever is left of the child's session, when the daemon itself ends in disorder."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
