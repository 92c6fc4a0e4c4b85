"""The engine as a process: its start, the signals it gets, and how it is collected with all it left behind.

When it has to end is not decided here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from sidecar.launcher.output import Listener, Relay

POLL_S = 0.03
WATCH_S = 0.25
#: For processes that the engine left behind, at SIGTERM and again at SIGKILL.
LEFT_OVERS_S = 3.0
#: linux/prctl.h, linux/fcntl.h (the last has a name from Python 3.10 on).
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
F_SETPIPE_SZ = 1031
FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
#: The variable by which the processes of an attempt are known, wherever they have moved themselves.
MARK = "WARMUP_ATTEMPT"


class Signals:
    """What came in by signal. SIGTERM is counted; others go to the engine at once, or wait until it runs."""

    def __init__(self) -> None:
        self.terms = 0
        self.interrupted = False
        self._pid = 0
        self._waiting: list[int] = []
        self._awake, wake = os.pipe()
        for end in (self._awake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGTERM, signal.SIGCHLD):
            # What was ignored when we were started (nohup) stays ignored.
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on)

    @property
    def stopping(self) -> int:
        """Give the signal that asked for the end; 0 when none did."""
        return signal.SIGTERM if self.terms else signal.SIGINT if self.interrupted else 0

    def pause(self, seconds: float) -> None:
        """Wait, but not past the next signal."""
        if select.select([self._awake], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._awake, 4096)

    def attach(self, pid: int) -> None:
        """Forward to this process from now on; 0: to nobody."""
        self._pid = pid
        while pid and self._waiting:
            self.send(self._waiting.pop(0))

    def send(self, number: int) -> None:
        """Send a signal to the engine, if it runs."""
        with contextlib.suppress(ProcessLookupError):
            if self._pid:
                os.kill(self._pid, number)

    def _on(self, number: int, _frame: Any) -> None:
        if number == signal.SIGTERM:
            self.terms += 1
        elif number != signal.SIGCHLD:
            self.interrupted = self.interrupted or number == signal.SIGINT
            if self._pid:
                self.send(number)
            else:
                self._waiting.append(number)


def process_control() -> Callable[..., object]:
    """Give prctl(2); where this Python has no ctypes, something that does nothing."""
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda *_: None


class Engine:
    """The engine as our child, in a process group of its own. Its output comes through us."""

    def __init__(self, argv: list[str], environment: dict[str, str], listener: Listener, signals: Signals) -> None:
        """Start it. Raises OSError when the command can't be executed."""
        self._signals = signals
        self._status: int | None = None
        self._started = time.monotonic()
        # What the engine leaves behind becomes ours, and not a zombie of a PID 1 that doesn't care.
        process_control()(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # One pipe where both go to one place: the order of lines is kept.
        targets = [1] if os.path.sameopenfile(1, 2) else [1, 2]
        pipes = {target: wide_pipe() for target in targets}
        try:
            self._process = subprocess.Popen(
                argv,
                env=environment,
                stdout=pipes[1][1],
                stderr=pipes[targets[-1]][1],
                # Descriptors that were handed to us are the engine's as well.
                close_fds=False,
                preexec_fn=follower(os.getpid()),
            )
        finally:
            for _, end in pipes.values():
                os.close(end)
        self.pid = self._process.pid
        self._relays = [Relay(source, target, listener) for target, (source, _) in pipes.items()]
        signals.attach(self.pid)

    @property
    def seconds(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def reap(self) -> bool:
        """Collect whoever died, orphans that became ours as PID 1 included; tell whether the engine did."""
        with contextlib.suppress(ChildProcessError):
            while self._status is None:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.pid:
                    self._signals.attach(0)
                    self._status = status
                    # So that Popen does not look for it.
                    self._process.returncode = 0
        return self._status is not None

    def wait(self) -> int:
        """Only wait for its end, and give the exit code."""
        while not self.reap():
            self._signals.send(signal.SIGTERM if self._signals.terms else 0)
            self._signals.pause(WATCH_S)
        code, number = self.finish()
        return code if code is not None else 128 + (number or 0)

    def kill(self) -> None:
        """Kill it with all its processes."""
        self._group_gets(signal.SIGKILL)

    def finish(self) -> tuple[int | None, int | None]:
        """End what is left of its processes, pass on the last output, and give exit code and signal."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + LEFT_OVERS_S
            alive = self._group_gets(number)
            while alive and time.monotonic() < deadline:
                time.sleep(POLL_S)
                with contextlib.suppress(ChildProcessError):
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
                alive = self._group_gets(0)
        for relay in self._relays:
            relay.finish()
        status = self._status or 0
        return (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), None)

    def _group_gets(self, number: int) -> bool:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            return True
        return False


def end_left_overs(attempts: list[str]) -> None:
    """Kill what engines left behind whose launcher was killed, and wait until it is gone."""
    marks = {f"{MARK}={name}".encode() for name in attempts}
    deadline = time.monotonic() + LEFT_OVERS_S
    while marks and time.monotonic() < deadline:
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and not marks.isdisjoint(variables(pid))]
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        if not left:
            break
        time.sleep(POLL_S)


def variables(pid: str) -> list[bytes]:
    """Give the environment that a process was started with; empty where it is gone or somebody else's."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as stream:
        return stream.read().split(b"\0")
    return []


def wide_pipe() -> tuple[int, int]:
    """Make a pipe that holds 1 MiB where the kernel allows it, so that a slow reader is felt later."""
    source, end = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(source, F_SETPIPE_SZ, 1 << 20)
    return source, end


def die_with_parent() -> None:
    """Have the kernel send SIGKILL to this process when its parent ends; the engine follows in the same way."""
    process_control()(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def follower(parent: int) -> Callable[[], None]:
    """Make what the child does before it becomes the engine: a group of its own, death when `parent` dies."""
    prctl = process_control()

    def follow() -> None:
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return follow
