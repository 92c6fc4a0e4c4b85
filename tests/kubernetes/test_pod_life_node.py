"""What the emulated node gives containers: files that live as long as they should, processes that end together, a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.kubelet import Clock, Life, Node, PodSpec, SpecRefused
from tests.kubernetes.kubelet.node import PodRuntime, why_no_node

pytestmark = pytest.mark.skipif(bool(why_no_node()), reason=why_no_node() or "pods can run")

VOLUME = {"name": "v", "emptyDir": {}}
MOUNT = {"name": "v", "mountPath": "/run/shared"}


@asynccontextmanager
async def pod(root: Path, *containers: dict[str, Any], **more: Any) -> AsyncIterator[tuple[Life, PodRuntime]]:
    spec = PodSpec.parse({"containers": list(containers), "volumes": [VOLUME], **more})
    runtime = Node(root, {"image": ["echo", "entrypoint"]}).pod("pod-a", spec)
    try:
        async with Life(spec, runtime, Clock(backoff_scale=0.01)) as life:
            yield life, runtime
    finally:
        await runtime.close()


def shell(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "image", "command": ["sh", "-c", script], "volumeMounts": [MOUNT], **more}


async def test_a_volume_outlives_a_container_and_its_own_files_do_not(tmp_path: Path):
    script = 'ls "$HOME" "$TMPDIR"; echo volume: $(ls /run/shared); touch "$HOME/mine" "$TMPDIR/mine" /run/shared/ours'
    async with pod(tmp_path, shell("app", script)) as (life, runtime):
        await life.until(lambda: len(life.story.of("app", "exited")) >= 2, "two instances")
        log = runtime.log("app")
        assert "mine" not in log
        assert [line for line in log.splitlines() if line.startswith("volume:")][:2] == ["volume:", "volume: ours"]


async def test_containers_of_a_pod_share_a_volume_a_name_and_a_network_and_see_no_processes_of_each_other(
    tmp_path: Path,
):
    server = "echo x > /run/shared/there; exec python3 -m http.server 8080 --bind 127.0.0.1 -d /run/shared"
    reader = (
        "import time, urllib.request, socket, os\n"
        "for _ in range(600):\n"
        "    try:\n"
        "        print('got', urllib.request.urlopen('http://127.0.0.1:8080/there').status, socket.gethostname(),"
        " os.getpid(), flush=True)\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.1)\n"
        "time.sleep(600)\n"
    )
    second = {"name": "reader", "image": "image", "command": ["python3", "-c", reader]}
    async with pod(tmp_path, shell("server", server), second) as (life, runtime):
        await life.until_started("reader")
        while "got" not in runtime.log("reader"):
            await life.clock.pause(0.1)
        assert runtime.log("reader").strip() == "got 200 pod-a 1"


async def test_what_a_container_left_running_ends_with_its_first_process(tmp_path: Path):
    left = f"(while true; do sleep 0.05; date +%s%N > {tmp_path}/beat; done) & touch /run/shared/up; sleep 600"
    async with pod(tmp_path, shell("app", left), restartPolicy="Never") as (life, _):
        while not (tmp_path / "beat").exists():
            await life.clock.pause(0.05)
        life["app"].kill()
        await life.until_ended()
        assert [event.detail for event in life.story.of("app", "exited")] == ["137"]
        last = (tmp_path / "beat").read_text()
        await life.clock.pause(0.5)
        assert (tmp_path / "beat").read_text() == last


async def test_a_read_only_mount_can_not_be_written(tmp_path: Path):
    container = shell("app", "touch /run/shared/x && echo written; sleep 600")
    container["volumeMounts"] = [{**MOUNT, "readOnly": True}]
    async with pod(tmp_path, container) as (life, runtime):
        while not runtime.log("app"):
            await life.clock.pause(0.05)
        assert "Read-only file system" in runtime.log("app")


async def test_probes_ask_the_pods_address_so_what_listens_on_the_loopback_device_alone_is_not_ready(tmp_path: Path):
    def server(name: str, bind: str, port: int) -> dict[str, Any]:
        probe = {"httpGet": {"path": "/", "port": port}, "periodSeconds": 1, "timeoutSeconds": 5}
        return shell(name, f"exec python3 -m http.server {port} --bind {bind}", readinessProbe=probe)

    async with pod(tmp_path, server("all", "0.0.0.0", 8001), server("loopback", "127.0.0.1", 8002)) as (life, runtime):
        await life.until(lambda: life["all"].ready, "the one that listens on all addresses is ready")
        while (await runtime.get(8002, "/"))[0] != 200:
            await life.clock.pause(0.1)
        await life.clock.pause(2)
        assert not life["loopback"].ready


async def test_hooks_and_exec_probes_run_inside_the_container(tmp_path: Path):
    script = "touch /run/shared/ready; trap 'cat /run/shared/hook; exit 5' TERM; sleep 600 & wait"
    inside = {"exec": {"command": ["sh", "-c", "test -e /run/shared/ready && test $(cat /proc/1/comm) = sh"]}}
    container = shell("app", script, readinessProbe={**inside, "periodSeconds": 1, "timeoutSeconds": 10})
    container["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", "echo $HOSTNAME asked > /run/shared/hook"]}}}
    async with pod(tmp_path, container) as (life, runtime):
        await life.until_ready()
        await life.delete()
        assert runtime.log("app").strip() == "pod-a asked"
        assert [event.detail for event in life.story.of("app", "exited")] == ["5"]


async def test_a_mount_where_no_room_can_be_made_is_refused(tmp_path: Path):
    container = shell("app", "true")
    container["volumeMounts"] = [{"name": "v", "mountPath": "/nowhere/at/all"}]
    spec = PodSpec.parse({"containers": [container], "volumes": [VOLUME]})
    runtime = Node(tmp_path).pod("pod-a", spec)
    with pytest.raises(SpecRefused, match="/nowhere/at/all"):
        await runtime.start(spec.containers[0])
    await runtime.close()
