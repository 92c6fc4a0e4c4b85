"""The pod that k8s/base ships, fitted to this machine: its engine is another command, everything else is as shipped.

What is changed is listed in `fitted`. Nothing is asserted here.
"""

from __future__ import annotations

import asyncio
import copy
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.kubernetes.kubelet.clock import Clock
from tests.kubernetes.kubelet.life import Life
from tests.kubernetes.kubelet.node import CHECKOUT, Node, PodRuntime
from tests.kubernetes.kubelet.process import ContainerProcess
from tests.kubernetes.kubelet.spec import PodSpec

SIDECAR, ENGINE = "warmup-sidecar", "engine"
ENTRYPOINT = (sys.executable, "-m", "sidecar.cli")
ENGINE_PORT, SIDECAR_PORT = 8000, 9797
LIVE_CACHE = "/var/cache/engine"
LOOK_EVERY_S = 0.05
#: Far beyond what a step takes here, on a machine with other work.
PATIENCE_S = 90.0
#: Pauses between restarts are shortened to this share: 10 s are 1 s here.
BACKOFF_SCALE = 0.1

#: A warm-up of a few requests: what these tests are about happens around it.
PROFILE = """
description: A few requests.
steps:
  - {kind: prefill, tokens: [1, 17], output_tokens: 2}
  - {kind: logprobs, values: [1], output_tokens: 2}
search: {enabled: false, replay_draws: 0}
converge: {random_draws: 0, tolerance: 100, floor_s: 10}
"""
#: Under these nothing takes longer than it must; a test may give others.
QUICK = {
    "WARMUP_PUBLISH_QUIET_S": "0.2",
    "WARMUP_PUBLISH_INTERVAL_S": "1",
    "WARMUP_GPU_INTERVAL_S": "0",
    "WARMUP_SETTLE_S": "0",
    "WARMUP_DRAIN_S": "5",
    "WARMUP_LOG_FORMAT": "text",
}


def shipped() -> dict[str, Any]:
    """Give the pod's spec of the Deployment in k8s/base."""
    for path in sorted((CHECKOUT / "k8s" / "base").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            if document.get("kind") == "Deployment":
                return dict(document["spec"]["template"]["spec"])
    raise AssertionError("k8s/base has no Deployment")


def named(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Give a container of a spec."""
    [found] = [each for each in [*spec.get("initContainers", ()), *spec["containers"]] if each["name"] == name]
    assert isinstance(found, dict)
    return found


def set_variables(container: dict[str, Any], variables: Mapping[str, str]) -> None:
    """Set variables of a container, instead of those of the same names."""
    kept = [each for each in container.get("env", ()) if each["name"] not in variables]
    container["env"] = [*kept, *({"name": name, "value": value} for name, value in variables.items())]


def fitted(engine: Sequence[str], settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Give the shipped spec with another engine command behind the launcher, and the volumes that this one needs.

    Its startup probe asks every second instead of every 5 s, so that nobody waits for the probe.
    """
    spec = copy.deepcopy(shipped())
    container = named(spec, ENGINE)
    container["args"] = list(engine)
    if (probe := container.get("startupProbe")) is not None:
        budget = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
        probe |= {"periodSeconds": 1, "failureThreshold": budget}
    shared = {"control", "live-cache"}
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] in shared]
    container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    set_variables(named(spec, SIDECAR), {**QUICK, **settings})
    used = {mount["name"] for each in (container, named(spec, SIDECAR)) for mount in each["volumeMounts"]}
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] in used]
    return spec


@dataclass
class Cluster:
    """One node and one store, and the pods of a test on it."""

    root: Path
    backoff_scale: float = BACKOFF_SCALE
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the store, the profile and the engine's script."""
        self.store = self.root / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        self.profile = self.root / "few.yaml"
        self.profile.write_text(PROFILE, encoding="utf-8")
        self.script = self.root / "script.json"
        self.tell_next_engine()
        image = named(shipped(), SIDECAR)["image"]
        self.node = Node(self.root / "pods", {image: ENTRYPOINT}, {"warmup-store": self.store})

    def tell_next_engine(self, **script: Any) -> None:
        """Say what scripted engines do that start from now on; their command is the same whatever this says."""
        self.script.write_text(json.dumps(script), encoding="utf-8")

    def scripted(self) -> list[str]:
        """Give the command of a scripted engine."""
        where = ["--host", "0.0.0.0", "--port", str(ENGINE_PORT)]
        return ["python3", "-m", "tests.fakes.engine", *where, "--script", f"@{self.script}"]

    def spec(self, **settings: object) -> dict[str, Any]:
        """Give the spec of a pod with a scripted engine; settings of the sidecar by name."""
        given = {f"WARMUP_{name.upper()}": str(value) for name, value in settings.items()}
        return fitted(self.scripted(), {"WARMUP_PROFILE": str(self.profile), **self.settings, **given}, {})

    async def verify(self) -> tuple[int, str]:
        """Have the product check the store, every byte of it; give exit code and words."""
        words = [*ENTRYPOINT, "store", "verify", "--deep", "--store", str(self.store)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words, cwd=CHECKOUT, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode("utf-8", "replace")

    @asynccontextmanager
    async def pod(self, name: str = "pod-a", spec: Mapping[str, Any] | None = None) -> AsyncIterator[WarmPod]:
        """Start a pod; it is killed at the end of the block, unless it was deleted before."""
        parsed = PodSpec.parse(self.spec() if spec is None else spec)
        runtime = self.node.pod(name, parsed)
        try:
            async with Life(parsed, runtime, Clock(self.backoff_scale)) as life:
                yield WarmPod(life, runtime)
        finally:
            await runtime.close()


@dataclass
class WarmPod:
    """One pod, and what its sidecar and engine say of themselves."""

    life: Life
    runtime: PodRuntime

    async def status(self) -> dict[str, Any]:
        """Give the sidecar's `/status`, empty while it doesn't answer."""
        code, body = await self.runtime.get(SIDECAR_PORT, "/status")
        return dict(json.loads(body)) if code == 200 else {}

    async def readyz(self) -> tuple[int, str]:
        """Ask the sidecar's readiness probe."""
        return await self.runtime.get(SIDECAR_PORT, "/readyz")

    async def engine(self) -> dict[str, Any]:
        """Give what the scripted engine counts, empty while it doesn't answer."""
        code, body = await self.runtime.get(ENGINE_PORT, "/__script__")
        return dict(json.loads(body)) if code == 200 else {}

    async def tell_engine(self, **script: Any) -> None:
        """Change what the running scripted engine does."""
        await asyncio.to_thread(self.runtime.request, ENGINE_PORT, "POST", "/__script__", script)

    async def until_status(
        self, holds: Callable[[dict[str, Any]], bool], what: str, deadline_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Look at `/status` until `holds` says so."""
        ends = time.monotonic() + deadline_s
        while True:
            status = await self.status()
            if status and holds(status):
                return status
            if time.monotonic() > ends:
                shown = json.dumps({key: status.get(key) for key in ("phase", "ready", "reason", "restore", "publish")})
                story = "\n".join(str(event) for event in self.life.story.events[-30:])
                log = "\n".join(self.runtime.log(SIDECAR).splitlines()[-25:])
                raise AssertionError(f"not within {deadline_s:g} s: {what}. Status: {shown}\n{story}\n{log}")
            await asyncio.sleep(LOOK_EVERY_S)

    async def until_phase(self, phase: str, deadline_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until the sidecar is in a phase."""
        return await self.until_status(lambda status: status["phase"] == phase, f"phase {phase}", deadline_s)

    async def until_published(self, deadline_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until this pod has published, or found that nothing is new."""
        done = ("published", "nothing_new")
        return await self.until_status(
            lambda status: status["publish"].get("outcome") in done, "what is new is published", deadline_s
        )

    def kill(self, container: str) -> float:
        """Kill a container's processes as the kernel does; give the moment (monotonic seconds)."""
        self.life[container].kill()
        return time.monotonic()

    def plant_kernels(self, count: int) -> None:
        """Put kernels into the live cache as Triton lays them out, so many that to publish them takes a while."""
        for _ in range(count):
            name = secrets.token_hex(26).upper()
            folder = self.runtime.volume("live-cache") / "triton" / name
            folder.mkdir(parents=True)
            seen = f"{LIVE_CACHE}/triton/{name}"
            children = {each: f"{seen}/{each}" for each in ("kernel.cubin", "kernel.json")}
            (folder / "kernel.cubin").write_bytes(secrets.token_bytes(100_000))
            (folder / "kernel.json").write_text(json.dumps({"name": name}))
            (folder / "__grp__kernel.json").write_text(json.dumps({"child_paths": children}))

    def engine_processes(self) -> list[psutil.Process]:
        """List the processes that the launcher in the engine's container has started."""
        running = self.life[ENGINE].running
        assert isinstance(running, ContainerProcess)
        return psutil.Process(running.pid).children()

    async def until_engine(
        self, holds: Callable[[dict[str, Any]], bool], what: str, deadline_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Look at what the scripted engine counts until `holds` says so."""
        ends = time.monotonic() + deadline_s
        while True:
            counted = await self.engine()
            if counted and holds(counted):
                return counted
            assert time.monotonic() < ends, f"not within {deadline_s:g} s: {what}. Last: {counted.get('counters')}"
            await asyncio.sleep(LOOK_EVERY_S)

    def client(self, tokens: int) -> Client:
        """Begin a streamed request of somebody outside."""
        return Client(self, tokens)


class Client:
    """Somebody whose streamed answer is under way."""

    def __init__(self, pod: WarmPod, tokens: int) -> None:
        body = {"prompt": [1, 2, 3], "max_tokens": tokens, "stream": True, "temperature": 0}
        request = partial(pod.runtime.request, ENGINE_PORT, "POST", "/v1/completions", body, PATIENCE_S)
        self._answer = asyncio.ensure_future(asyncio.to_thread(request))

    async def answer(self) -> tuple[int, str]:
        """Wait for the end of the stream; give the status and all that came."""
        return await self._answer
