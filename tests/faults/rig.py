"""One pod made of real processes: a daemon, an engine's container (launcher and scripted engine), directories and ports.

Everything can be killed, started again and looked at; nothing is asserted here but that what is waited for comes in time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.ports import unused_port, unused_ports
from tests.sidecar_process import Directories, SidecarProcess

Found = TypeVar("Found")
CHECKOUT = Path(__file__).resolve().parents[2]
#: Far beyond what any step takes here, on a machine with other work.
PATIENCE_S = 30.0
LOOK_EVERY_S = 0.01
#: A request in flight asks for so many tokens.
TOKENS_IN_FLIGHT = 400
#: A warm-up of a few requests: what these tests are about happens around it.
PROFILE = """
description: A few requests.
steps:
  - {kind: prefill, tokens: [1, 17], output_tokens: 2}
  - {kind: logprobs, values: [1], output_tokens: 2}
search: {enabled: false}
converge: {random_draws: 0, tolerance: 100, floor_s: 10}
"""


def until(look: Callable[[], Found | None], what: str, deadline_s: float = PATIENCE_S) -> Found:
    """Look again and again until there is something to see; past the deadline fail with `what`."""
    ends = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < ends, f"not within {deadline_s:g} s: {what}"
        time.sleep(LOOK_EVERY_S)


def throughout(seconds: float, look: Callable[[], bool], what: str) -> None:
    """Look again and again for so long; fail with `what` as soon as it isn't so."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        assert look(), f"not throughout {seconds:g} s: {what}"
        time.sleep(0.05)


@dataclass(frozen=True)
class Place:
    """What pods on one node share: the live cache's path and the engine's command line, which enter the keys."""

    live_cache: Path
    script: Path
    home: Path

    @classmethod
    def below(cls, root: Path) -> Place:
        """Make a place in this folder."""
        (root / "home").mkdir(parents=True)
        return cls(root / "live", root / "script.json", root / "home")


class Daemon(SidecarProcess):
    """The daemon of a pod; `wrapper` is a command that ends in becoming the daemon."""

    def __init__(
        self,
        directories: Directories,
        log: Path,
        settings: Mapping[str, object],
        command: Sequence[str] = (),
        wrapper: Sequence[str] = (),
    ) -> None:
        super().__init__(directories, log, settings, command)
        self._command = [*wrapper, *self._command]

    def readyz(self) -> tuple[int, str]:
        """Ask the readiness probe."""
        return self.get("/readyz", 2)

    @property
    def is_ready(self) -> bool:
        """Ask whether traffic may come."""
        return self.readyz()[0] == 200

    def unready_after(self, since: float) -> float:
        """Wait until the probe turns unready; give the seconds since a moment of the monotonic clock."""
        until(lambda: self.readyz()[0] == 503, "unready")
        return time.monotonic() - since

    def caught_in(self, phase: str) -> None:
        """Wait for a phase that may be short."""
        until(lambda: self.status().get("phase") == phase, f"phase {phase}; now {self.status().get('phase')}")

    def notices(self) -> str:
        """Give everything that a person is told: what is degraded, why it isn't ready, and the events."""
        status = self.status()
        events = [event["text"] for event in status.get("events", ())]
        return "\n".join([*status.get("degraded", ()), str(status.get("reason")), *events])

    def told(self, *words: str) -> str:
        """Wait until all these words are in what a person is told; give it."""

        def look() -> str:
            text = self.notices()
            return text if all(word in text for word in words) else ""

        try:
            return until(look, f"a sentence with {words}")
        except AssertionError as error:
            raise AssertionError(f"{error}; told was:\n{self.notices()}") from None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; after SIGKILL wait until the process is gone."""
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(PATIENCE_S)


class Pod:
    """One pod. Settings and scripts are given by name; `close` ends all processes."""

    def __init__(self, root: Path, place: Place) -> None:
        self.root, self.place = root, place
        shutil.rmtree(place.live_cache, ignore_errors=True)
        self.directories = Directories(place.live_cache, root / "store", root / "control")
        self.port, probes = unused_ports(2)
        self.listen = f"127.0.0.1:{probes}"
        self.engine_url = f"http://127.0.0.1:{self.port}"
        self.profile = root / "few.yaml"
        self.profile.write_text(PROFILE)
        self.log = root / "daemon.log"
        self._daemons: list[Daemon] = []
        self._containers: list[Container] = []
        self._bare: list[subprocess.Popen[bytes]] = []
        self._neighbours: list[Pod] = []
        self.directories.store.mkdir(exist_ok=True)

    @property
    def control(self) -> Path:
        """Give the control directory."""
        return self.directories.control

    @property
    def daemon(self) -> Daemon:
        """Give the daemon started last."""
        return self._daemons[-1]

    @property
    def container(self) -> Container:
        """Give the engine's container started last."""
        return self._containers[-1]

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Give settings under which nothing takes long; None means the default."""
        usual: dict[str, Any] = {
            "engine_url": self.engine_url,
            "listen": self.listen,
            "profile": self.profile,
            "publish_quiet_s": 0.2,
            "publish_interval_s": 1,
            "gpu_interval_s": 0,
            "drain_s": 1,
            "settle_s": 0,
            "live_cache": self.place.live_cache,
            "store": self.directories.store,
            "control_dir": self.control,
        }
        return {name: "" if value is None else value for name, value in {**usual, **changes}.items()}

    def start_daemon(self, *command: str, wrapper: Sequence[str] = (), **changes: Any) -> Daemon:
        """Start a daemon and wait until it has opened its port."""
        daemon = self.launch_daemon(*command, wrapper=wrapper, **changes)
        until(lambda: daemon.get("/livez")[0] == 200 or daemon.process.poll() is not None, "a daemon that answers")
        return daemon

    def launch_daemon(self, *command: str, wrapper: Sequence[str] = (), **changes: Any) -> Daemon:
        """Start a daemon and wait for nothing."""
        daemon = Daemon(self.directories, self.log, self.settings(**changes), command, wrapper)
        daemon.__enter__()
        self._daemons.append(daemon)
        return daemon

    def engine_command(self, *words: str, **script: Any) -> list[str]:
        """Write the engine's script, and give its command, which is the same whatever the script says; `words` follow."""
        self.place.script.write_text(json.dumps(script))
        return [
            sys.executable,
            "-m",
            "tests.fakes.engine",
            "--port",
            str(self.port),
            "--script",
            f"@{self.place.script}",
            *words,
        ]

    def start_container(
        self,
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        words: Sequence[str] = (),
        **script: Any,
    ) -> Container:
        """Start the engine's container as the kubelet would: the launcher with the engine's command."""
        container = Container(self, self.engine_command(*words, **script), environment or {}, wrapper)
        self._containers.append(container)
        return container

    def start_bare_engine(self, **script: Any) -> subprocess.Popen[bytes]:
        """Start an engine without a launcher and wait until it answers."""
        with (self.root / "engine.log").open("ab") as output:
            engine = subprocess.Popen(
                self.engine_command(**script), cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._bare.append(engine)
        until(self.engine_answers, "an engine that answers")
        return engine

    @contextlib.contextmanager
    def request_in_flight(self) -> Iterator[None]:
        """Keep a request running at the engine, as a client would, for as long as the block takes.

        Its tokens take the engine longer than a busy machine takes to look for them; at the end it is cut off.
        """
        body = json.dumps({"prompt": [1], "max_tokens": TOKENS_IN_FLIGHT, "stream": True})
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        with contextlib.closing(client):
            client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            until(lambda: self.engine()["counters"]["running"], "a request in flight")
            yield

    def start(self, *, script: Mapping[str, Any] | None = None, **changes: Any) -> Daemon:
        """Start daemon and container and wait until the pod is ready."""
        daemon = self.start_daemon(**changes)
        self.start_container(**(script or {}))
        daemon.wait_until_ready(PATIENCE_S)
        return daemon

    def engine_pid(self) -> int:
        """Wait for an engine that the newest attempt has started; give its process."""
        return int(until(lambda: self._written("started.json").get("pid"), "a started engine"))

    def decision(self) -> Mapping[str, Any]:
        """Wait for the newest attempt's decision and give it."""
        return until(lambda: self._written("decision.json") or None, "a decision")

    def attempts(self) -> list[Path]:
        """List the attempts, oldest first."""
        folder = self.control / "attempts"
        return sorted(path for path in folder.glob("[0-9]*")) if folder.is_dir() else []

    def _written(self, name: str) -> Mapping[str, Any]:
        found = self.attempts()
        try:
            return dict(json.loads((found[-1] / name).read_text())) if found else {}
        except (FileNotFoundError, ValueError):
            return {}

    def neighbour(self) -> Pod:
        """Make another pod of the same node; both before anything is started."""
        root = self.root / "neighbour"
        root.mkdir()
        self._neighbours.append(Pod(root, self.place))
        return self._neighbours[-1]

    def other_address(self) -> str:
        """Name another address for probes."""
        return f"127.0.0.1:{unused_port()}"

    def tell_engine(self, **script: Any) -> None:
        """Change what the running engine does."""
        ask(f"{self.engine_url}/__script__", json.dumps(script).encode())

    def engine(self) -> dict[str, Any]:
        """Give what the running engine counts."""
        return dict(json.loads(ask(f"{self.engine_url}/__script__")))

    def engine_answers(self) -> bool:
        """Ask whether the engine's port answers."""
        try:
            ask(f"{self.engine_url}/health")
        except OSError:
            return False
        return True

    def sidecar(self, *words: str) -> None:
        """Run a command of the product against this pod's daemon."""
        command = [sys.executable, "-m", "sidecar", *words, "--control-dir", str(self.control)]
        subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, timeout=PATIENCE_S)

    def close(self) -> None:
        """End everything that was started here."""
        for container in self._containers:
            container.close()
        for engine in self._bare:
            engine.kill()
            engine.wait()
        for daemon in self._daemons:
            with contextlib.suppress(ProcessLookupError):
                daemon.process.send_signal(signal.SIGCONT)
            daemon.stop()
        for neighbour in self._neighbours:
            neighbour.close()


class Container:
    """The engine's container: a launcher, and the engine that it starts."""

    def __init__(
        self, pod: Pod, command: Sequence[str], environment: Mapping[str, str], wrapper: Sequence[str]
    ) -> None:
        self.log = pod.root / "engine.log"
        # The kubelet waits for the startup probe, which waits for this.
        until((pod.control / "launcher.py").exists, "a launcher in the control directory")
        words = [*wrapper, sys.executable, str(pod.control / "launcher.py"), "--", *command]
        plain = {"PATH": os.environ["PATH"], "HOME": str(pod.place.home), "PYTHONDONTWRITEBYTECODE": "1"}
        given = {name: value for name, value in {**plain, **environment}.items() if value}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                words,
                cwd=CHECKOUT,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send the launcher a signal, as the kubelet does to the container's first process."""
        self.process.send_signal(number)

    def close(self) -> None:
        """Kill launcher and engine, and wait until both are gone."""
        processes = [*descendants(self.process.pid), self.process.pid] if self.process.poll() is None else []
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        until(lambda: not any(runs(pid) for pid in processes), "the end of launcher and engine")


def ask(url: str, body: bytes | None = None) -> bytes:
    """Ask a local server and give the body of its answer. Raises OSError."""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5) as answer:
        return bytes(answer.read())


def runs(pid: int) -> bool:
    """Tell whether a process is there and not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int, word: str = "") -> list[int]:
    """List the processes that a process and its children have started and that still run, with a word in their command."""
    try:
        found = psutil.Process(pid).children(recursive=True)
        return [child.pid for child in found if word in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []
