"""Run a restore or a publish in a child process with a deadline, from the daemon's event loop.

No store and no archive is opened here: a store that hangs costs one killed process and never the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidecar.caches.messages import (
    BootsRequest,
    BootsResult,
    Claim,
    CleanRequest,
    CleanResult,
    CommitEntry,
    FamilyCount,
    HoldRequest,
    Progress,
    PublishRequest,
    PublishResult,
    ReachRequest,
    RecordRequest,
    RecordResult,
    RestoreOutcome,
    RestoreRequest,
    RestoreResult,
)
from sidecar.caches.ownership import ownership

__all__ = [
    "BootsRequest",
    "CacheClient",
    "Claim",
    "CleanRequest",
    "CleanResult",
    "CommitEntry",
    "FamilyCount",
    "HoldRequest",
    "Progress",
    "PublishRequest",
    "PublishResult",
    "ReachRequest",
    "RecordRequest",
    "RestoreRequest",
    "RestoreResult",
    "worker_command",
]

LINE_LIMIT = 4 * 1024 * 1024
KILL_GRACE_S = 1.0
NICENESS = 15
OnProgress = Callable[[Progress], None]


def ignore_progress(_progress: Progress) -> None:
    """Take a progress report and do nothing with it."""


@dataclass
class _Ending:
    """How the worker's run ended, as the client saw it."""

    result: Any = None
    trouble: str = ""
    timed_out: bool = False
    stderr: list[str] = field(default_factory=list)


def worker_command() -> tuple[str, ...]:
    """Give the command that starts a worker.

    It runs without Python's `site` module, which takes more than half of the interpreter's start, a fifteenth of a
    publish of little; where packages lie is told instead, in this process's order: a package may bear the name of a module
    of Python's own. Where this one lies comes last when `site` found it by a hook. The search for cycles is off from the
    beginning (see `worker`): it finds none in what modules make, and takes a tenth of their loading.
    """
    places, own = list(filter(None, sys.path)), os.fspath(Path(__file__).parents[2])
    if own not in places:
        places.append(own)
    start = f"import gc, sys; gc.disable(); sys.path[:] = {places!r}; from sidecar.caches.worker import main; sys.exit(main())"
    return (sys.executable, "-S", "-c", start)


class CacheClient:
    """Start the cache worker once per call, relay its progress, and give up on it after a deadline.

    `clock` is a monotonic clock in seconds. `command` replaces `worker_command()` in tests.
    """

    def __init__(self, clock: Callable[[], float], command: Sequence[str] | None = None) -> None:
        self._clock = clock
        self._command = tuple(command or worker_command())
        self._reaping: set[asyncio.Future[tuple[bytes, bytes]]] = set()
        self._holding: set[asyncio.Future[int]] = set()

    async def restore(
        self, request: RestoreRequest, deadline_s: float, on_progress: OnProgress = ignore_progress
    ) -> RestoreResult:
        """Restore in a child process; never raises for what the child, the store or the disk does.

        Past `deadline_s` seconds the child is killed and the outcome is `timed_out`; what it staged is in
        nobody's way and goes with the next sweep. While it waits for another pod the deadline moves on with every
        word that it still does; a worker that hangs says nothing.
        """
        started = self._clock()
        ending = await self._run({"task": "restore", "request": request.to_json()}, deadline_s, on_progress)
        seconds = self._clock() - started
        if ending.timed_out:
            late = f"Restore was given up after {deadline_s:g} s, the store is slow or hangs; the engine starts cold."
            return await asyncio.to_thread(_cold, request, "timed_out", late, seconds)
        try:
            return RestoreResult.from_json(ending.result)
        except ValueError as error:
            return await asyncio.to_thread(_cold, request, "failed", _trouble("restore", ending, error), seconds)

    async def publish(
        self, request: PublishRequest, deadline_s: float, on_progress: OnProgress = ignore_progress
    ) -> PublishResult:
        """Publish in a child process at idle priority; never raises for what the child or the store does."""
        started = self._clock()
        ending = await self._run({"task": "publish", "request": request.to_json()}, deadline_s, on_progress)
        seconds = self._clock() - started
        if ending.timed_out:
            late = f"Publish was given up after {deadline_s:g} s; nothing half-written can be seen in the store."
            return PublishResult(outcome="timed_out", sentence=late, seconds=seconds)
        try:
            return PublishResult.from_json(ending.result)
        except ValueError as error:
            sentence = _trouble("publish", ending, error)
            return PublishResult(outcome="failed", sentence=sentence, seconds=seconds)

    async def record(self, request: RecordRequest, deadline_s: float) -> str:
        """Write one record into the store in a child process; give the trouble as a sentence, or nothing."""
        return await self._troubled("record", request, deadline_s, "it", "record")

    async def reach(self, request: ReachRequest, deadline_s: float) -> str:
        """Look in a child process whether the store can be read; give the trouble as a sentence, or nothing."""
        return await self._troubled("reach", request, deadline_s, "The store", "look at the store")

    async def _troubled(
        self, task: str, request: RecordRequest | ReachRequest, deadline_s: float, store: str, what: str
    ) -> str:
        """Do a task whose result is a trouble or nothing; `store` and `what` are words of the sentences."""
        ending = await self._run({"task": task, "request": request.to_json()}, deadline_s, ignore_progress)
        if ending.timed_out:
            return f"{store} did not answer within {deadline_s:g} s."
        try:
            return RecordResult.from_json(ending.result).trouble
        except ValueError as error:
            return _trouble(what, ending, error)

    async def clean(self, request: CleanRequest, deadline_s: float) -> CleanResult:
        """Clean the store up in a child process at idle priority; never raises for what the child or the store does."""
        ending = await self._run({"task": "clean", "request": request.to_json()}, deadline_s, ignore_progress)
        if ending.timed_out:
            late = f"Cleaning up the store was given up after {deadline_s:g} s; the next run goes on from there."
            return CleanResult(sentence=late, failed=True)
        try:
            return CleanResult.from_json(ending.result)
        except ValueError as error:
            return CleanResult(sentence=_trouble("cleaning up of the store", ending, error), failed=True)

    async def boots(self, request: BootsRequest, deadline_s: float) -> tuple[Mapping[str, Any], ...]:
        """Read the records of earlier boots in a child process; none where the store is away or too slow."""
        ending = await self._run({"task": "boots", "request": request.to_json()}, deadline_s, ignore_progress)
        try:
            return BootsResult.from_json(ending.result).records
        except ValueError:
            return ()

    async def hold(self, request: HoldRequest) -> None:
        """Keep claims up in a child process until cancelled; then they are given back, and that is not waited for."""
        try:
            process = await self._start()
        except OSError:
            return
        try:
            await asyncio.to_thread(_give_way, process.pid)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(json.dumps({"task": "hold", "request": request.to_json()}).encode() + b"\n")
                await process.stdin.drain()
            await process.wait()
        finally:
            # Its end of the pipe stays open until it is gone: it takes the close for our death.
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            holding = asyncio.ensure_future(process.wait())
            self._holding.add(holding)
            holding.add_done_callback(self._holding.discard)

    async def _run(self, task: dict[str, Any], deadline_s: float, on_progress: OnProgress) -> _Ending:
        ending = _Ending()
        try:
            process = await self._start()
        except OSError as error:
            ending.trouble = f"the worker could not be started ({error})"
            return ending
        try:
            async with asyncio.timeout(deadline_s) as cap:
                if task["task"] in ("publish", "clean"):
                    await asyncio.to_thread(_give_way, process.pid)

                def told(progress: Progress) -> None:
                    if progress.waiting:
                        cap.reschedule(asyncio.get_running_loop().time() + deadline_s)
                    on_progress(progress)

                await _talk(process, task, ending, told)
                # Whoever ends without a word has ended by itself: only then does the code tell why.
                if ending.result is None and process.stdout is not None and process.stdout.at_eof():
                    await asyncio.wait({self._reap(process)}, timeout=KILL_GRACE_S)
        except TimeoutError:
            ending.timed_out = True
        finally:
            by_itself = process.returncode
            await self._end(process)
        if not ending.trouble and ending.result is None:
            ending.trouble = _silent_end(by_itself)
        return ending

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Kill the worker's process group and reap it; one stuck in the kernel is reaped when it gets free."""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait({self._reap(process)}, timeout=KILL_GRACE_S)

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    def _reap(self, process: asyncio.subprocess.Process) -> asyncio.Future[tuple[bytes, bytes]]:
        """Read what is left in the pipes, which are closed only then, and take the process's end."""
        reaping = asyncio.ensure_future(process.communicate())
        self._reaping.add(reaping)
        reaping.add_done_callback(self._reaping.discard)
        return reaping


def _give_way(worker: int) -> None:
    """Let the engine go before a worker: low CPU priority, idle I/O priority where the kernel has it."""
    # The daemon has it already; a worker that loaded it too would take a tenth longer for a publish of little.
    import psutil

    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, worker, NICENESS)
    with contextlib.suppress(OSError, AttributeError, psutil.Error):
        psutil.Process(worker).ionice(psutil.IOPRIO_CLASS_IDLE)


def _cold(request: RestoreRequest, outcome: RestoreOutcome, sentence: str, seconds: float) -> RestoreResult:
    """Make the result of a restore that gave none: what lies in the live cache under another key is cleared."""
    owned = ownership(request)
    return RestoreResult(
        outcome=outcome,
        sentence=sentence,
        exact_key=owned.known.exact_key,
        toolchain_key=owned.known.toolchain_key,
        seconds=seconds,
        clear=owned.to_clear((), claimed=bool(request.store)),
    )


async def _talk(
    process: asyncio.subprocess.Process, task: dict[str, Any], ending: _Ending, on_progress: OnProgress
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    collector = asyncio.ensure_future(_collect(process.stderr, ending.stderr))
    try:
        # Stdin stays open after the request: the worker takes its end as the death of the daemon.
        process.stdin.write(json.dumps(task).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await process.stdin.drain()
        async for line in _lines(process.stdout):
            if _take(line, ending, on_progress):
                return
        await asyncio.wait({collector}, timeout=KILL_GRACE_S)
    finally:
        collector.cancel()
        await asyncio.wait({collector})


def _take(line: bytes, ending: _Ending, on_progress: OnProgress) -> bool:
    """Handle one line of the worker; True once the result is there. Garbage is passed over."""
    try:
        said = json.loads(line)
        progress = Progress.from_json(said) if said["kind"] == "progress" else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    if progress is not None:
        on_progress(progress)
    if said["kind"] == "result":
        ending.result = said.get("result")
        return True
    return False


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    while chunk := await stream.read(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > LINE_LIMIT:
            return


async def _collect(stream: asyncio.StreamReader, into: list[str]) -> None:
    """Keep the last lines of the worker's standard error, for the sentence."""
    while chunk := await stream.read(65536):
        into.extend(chunk.decode("utf-8", "replace").splitlines())
        del into[:-20]


def _trouble(what: str, ending: _Ending, error: ValueError) -> str:
    reason = ending.trouble or f"the worker's answer can't be used ({error})"
    last = next((line for line in reversed(ending.stderr) if line.strip()), "")
    return f"The {what} failed: {reason}{f'; its last words: {last.strip():.300}' if last else ''}."


def _silent_end(code: int | None) -> str:
    """Say how a worker ended that gave no result."""
    if code is None:
        return "the worker gave no result, and was ended"
    if code == -signal.SIGKILL:
        return "the worker was killed (SIGKILL): most often for memory, so look at the container's memory limit and its events"
    if code < 0:
        return f"the worker was ended by signal {-code} and gave no result"
    return f"the worker ended with code {code} and gave no result"
