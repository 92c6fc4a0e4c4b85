"""One instance of a container as a process: first of its PID namespace, in the pod's network, with files of its own.

What it sees of the node's files is decided in `node.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.kubernetes.kubelet.network import POD_ADDRESS, PodNetwork
from tests.kubernetes.kubelet.spec import Container, Handler, HttpGet

#: util-linux 2.38, unshare(1): the namespaces of a container; its processes die with their parent here.
NAMESPACES = ("--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
SHELL = "container"
LOOK_EVERY_S = 0.005


class ContainerProcess:
    """One instance. A Running of `runtime.py`. When its first process ends, the kernel kills all others of it."""

    def __init__(self, network: PodNetwork, container: Container, log: Path, environment: Mapping[str, str]) -> None:
        self._network, self._container, self._log = network, container, log
        self._environment = dict(environment)
        self._parent: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[int] | None = None
        self._killed = False
        #: Its first process as this machine numbers it; 0 when it ended before it could be seen.
        self.pid = 0

    async def begin(self, script: str, argv: Sequence[str]) -> None:
        """Start it; come back when its first process is what the container runs, or has ended."""
        enter = ["nsenter", f"--net={self._network.path}", "unshare", *NAMESPACES, "sh", "-c", script, SHELL, *argv]
        with self._log.open("ab") as output:
            self._parent = await asyncio.create_subprocess_exec(
                *enter,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        self._ended = asyncio.create_task(self._wait())
        while not self._ended.done() and not self._runs():
            await asyncio.wait({self._ended}, timeout=LOOK_EVERY_S)

    def _runs(self) -> bool:
        """Tell whether the shell that prepares the container has become its command."""
        assert self._parent is not None
        with suppress(OSError):
            children = Path(f"/proc/{self._parent.pid}/task/{self._parent.pid}/children").read_text("ascii").split()
            if children:
                self.pid = int(children[0])
                words = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
                return words[0] != b"" and SHELL.encode() not in words[:4] and words[0] != b"unshare"
        return False

    async def _wait(self) -> int:
        assert self._parent is not None
        code = await self._parent.wait()
        # unshare 2.38 can't end as a killed child did and gives 1; a container runtime reports 128 + the signal.
        return 128 + signal.SIGKILL if self._killed and code else code if code >= 0 else 128 - code

    async def wait(self) -> int:
        """Wait for its end and give the exit code."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        """Send its first process a signal."""
        if self.pid and self._ended is not None and not self._ended.done():
            self._killed = self._killed or number == signal.SIGKILL
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def close(self) -> None:
        """Kill it if it runs, and wait for its end."""
        self.signal(signal.SIGKILL)
        if self._parent is not None and self._parent.returncode is None and not self.pid:
            self._parent.kill()
        if self._ended is not None:
            await self._ended

    # --- probes and hooks -------------------------------------------------------------------------------------------

    async def ask(self, handler: Handler, timeout_s: float) -> bool:
        """Run a handler; False when it fails or takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                if handler.http_get is not None:
                    return await self._get(handler.http_get)
                if handler.exec is not None:
                    return await self._run(handler.exec.command)
                assert handler.sleep is not None
                await asyncio.sleep(handler.sleep.seconds)
                return True
        except (TimeoutError, OSError):
            return False

    async def _get(self, get: HttpGet) -> bool:
        """Ask the pod's address, as the kubelet does, and not its loopback device.

        "Configure Probes", section "HTTP probes": 200 up to 399 is success; without a header of its own `User-Agent` is
        kube-probe and `Accept` is */*. kubelet keeps no connection.
        """
        port = self._container.port(get.port)
        connection = self._network.socket()
        connection.setblocking(False)
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, (POD_ADDRESS, port))
            headers = {"User-Agent": "kube-probe/1.33", "Accept": "*/*", "Connection": "close"}
            headers |= {each["name"]: each["value"] for each in get.http_headers}
            lines = [f"GET {get.path} HTTP/1.1", f"Host: {POD_ADDRESS}:{port}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            await loop.sock_sendall(connection, "\r\n".join([*lines, "", ""]).encode())
            return 200 <= await self._status(connection) < 400
        finally:
            connection.close()

    @staticmethod
    async def _status(connection: socket.socket) -> int:
        answer = b""
        while b"\r\n" not in answer:
            more = await asyncio.get_running_loop().sock_recv(connection, 4096)
            if not more:
                return 0
            answer += more
        words = answer.split(b" ", 2)
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    async def _run(self, command: Sequence[str]) -> bool:
        """Run a command in the container. One that takes too long is killed."""
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--pid", "--net", f"--wd=/proc/{self.pid}/cwd"]
        null = asyncio.subprocess.DEVNULL
        with self._log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *inside, "--", *command, stdin=null, stdout=output, stderr=output, env=self._environment
            )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
