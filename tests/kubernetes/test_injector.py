"""The injector as the process that a cluster runs: reviews over TLS, probes, metrics, its end, and the commands beside it.

What is done to pods: test_injector_shapes.py. With a real API server: test_injector_apiserver.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import json
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml

from sidecar.kube.injection.certificates import Pair, make_authority, make_serving
from sidecar.metrics.injector import INJECTOR_TABLE
from sidecar.metrics.table import PREFIX
from tests.kubernetes import pod_shapes
from tests.kubernetes.patching import patched
from tests.kubernetes.pod_shapes import Json, labelled, review
from tests.kubernetes.test_injector_certificate import lay
from tests.unit.commands import end_of, sidecar, start

IMAGE = "registry.example.com/warmup-sidecar:0.1.0"


@dataclass
class Running:
    """An injector's process: where it answers, and the CA it is trusted by."""

    process: asyncio.subprocess.Process
    reviews: str
    probes: str
    authority: Pair
    folder: Path

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.certificate.decode())

    def renew(self) -> None:
        lay(self.folder, make_serving(self.authority, ["localhost"], datetime.datetime.now(datetime.UTC)))

    async def ask(self, session: aiohttp.ClientSession, body: object) -> tuple[int, Json]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with session.post(self.reviews, data=io.BytesIO(data), ssl=self.trust) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.status == 200 else {"text": text}

    async def until(self, session: aiohttp.ClientSession, status: int) -> str:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with session.get(f"{self.probes}/readyz") as answer:
                        if answer.status == status:
                            return await answer.text()
                await asyncio.sleep(0.05)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


@pytest.fixture
async def injector(tmp_path: Path, free_port: Callable[[], int]) -> AsyncIterator[Running]:
    """Start an injector that has no certificate yet."""
    options = tmp_path / "options.yaml"
    options.write_text("store: pvc:kernels\nsettings: {warm_budget_s: 900}\n")
    folder = tmp_path / "tls"
    folder.mkdir()
    reviews, probes = free_port(), free_port()
    words = [
        "--image",
        IMAGE,
        "--options",
        str(options),
        "--listen",
        f"127.0.0.1:{reviews}",
        "--probes",
        f"127.0.0.1:{probes}",
    ]
    words += ["--certificate", str(folder / "tls.crt"), "--key", str(folder / "tls.key"), "--linger", "0.1"]
    process = await start("injector", *words)
    authority = make_authority(datetime.datetime.now(datetime.UTC))
    running = Running(process, f"https://localhost:{reviews}/mutate", f"http://127.0.0.1:{probes}", authority, folder)
    yield running
    if process.returncode is None:
        process.kill()
        await process.communicate()


async def test_the_life_of_an_injector(injector: Running, session: aiohttp.ClientSession):
    """One process for several claims, because each costs a start."""
    assert "no certificate yet" in await injector.until(session, 503)
    injector.renew()
    await injector.until(session, 200)

    before = labelled(pod_shapes.INJECTED["args only"])
    status, answer = await injector.ask(session, review(before))
    assert status == 200
    after = patched(before, answer)
    [container] = after["spec"]["initContainers"]
    assert container["image"] == IMAGE
    assert {"name": "WARMUP_WARM_BUDGET_S", "value": "900"} in container["env"]
    assert {"name": "warmup-store", "persistentVolumeClaim": {"claimName": "kernels"}} in after["spec"]["volumes"]

    for body in (b"", b"{", b"[]", b'{"request": {}}', b"\xff\xfe", b"[" * 100_000):
        status, _ = await injector.ask(session, body)
        assert status == 400, body[:20]
    large = labelled(pod_shapes.INJECTED["args only"])
    large["metadata"]["annotations"] = {"note": "x" * 1_400_000}
    assert (await injector.ask(session, review(large)))[0] == 200

    async with session.get(f"{injector.probes}/metrics") as scraped:
        text = await scraped.text()
    assert f'{PREFIX}injector_reviews_total{{outcome="injected"}} 2.0' in text
    assert all(PREFIX + metric.name in text for metric in INJECTOR_TABLE)
    assert f"{PREFIX}injector_certificate_expiry_timestamp_seconds 0.0" not in text

    injector.process.send_signal(signal.SIGTERM)
    ended = await end_of(injector.process)
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err
    logged = [json.loads(line) for line in ended.err.splitlines()]
    assert any(line["event"] == "A pod was injected." and line["pod"] == "inference/engine-5c9f-" for line in logged)


async def test_an_injector_without_an_image_says_so_at_its_start():
    ended = await sidecar("injector")
    assert ended.code == 2
    assert "--image" in ended.err


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("strore: pvc:a", "strore"),
        ("- a", "mapping"),
        ("store: [", "can't be read"),
        ("settings: {warm_budget: 1}", "warm_budget is not a setting"),
        ("live_cache_size: a lot", "live_cache_size"),
    ],
)
async def test_options_that_can_not_be_used_end_it_with_a_sentence(tmp_path: Path, content: str, part: str):
    (tmp_path / "options.yaml").write_text(content)
    ended = await sidecar("injector", "--image", IMAGE, "--options", str(tmp_path / "options.yaml"))
    assert ended.code == 2
    assert part in ended.err
    assert "Traceback" not in ended.err


async def test_show_prints_what_would_be_made_of_every_pod_in_a_file(tmp_path: Path):
    spec = pod_shapes.pod(pod_shapes.engine())["spec"]
    template = {"metadata": {"labels": {"app": "a"}}, "spec": spec}
    documents: list[Json] = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": template}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": []}},
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "l"},
            "spec": {"leaderWorkerTemplate": {"size": 2, "leaderTemplate": template, "workerTemplate": template}},
        },
        {"apiVersion": "batch/v1", "kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": template}}}},
        {**pod_shapes.pod(pod_shapes.engine()), "kind": "Pod"},
    ]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(documents))
    ended = await sidecar("injector", "show", "--image", IMAGE, str(tmp_path / "all.yaml"))
    assert ended.code == 0, ended.err
    deployment, service, group, cron, pod = yaml.safe_load_all(ended.out)
    groups = group["spec"]["leaderWorkerTemplate"]
    made = [deployment["spec"]["template"], groups["leaderTemplate"], groups["workerTemplate"], pod]
    made.append(cron["spec"]["jobTemplate"]["spec"]["template"])
    assert all(each["spec"]["initContainers"][0]["name"] == "warmup-sidecar" for each in made)
    assert service == documents[1]
    assert "No store was chosen" in ended.err


@pytest.mark.parametrize(
    ("policy", "size", "code"), [("LeaderReady", 2, 3), ("LeaderReady", 1, 0), ("LeaderCreated", 2, 0)]
)
async def test_show_refuses_a_group_whose_startup_policy_would_keep_it_from_ever_being_ready(
    tmp_path: Path, policy: str, size: int, code: int
):
    template = {"metadata": {}, "spec": pod_shapes.pod(pod_shapes.engine())["spec"]}
    groups = {"size": size, "leaderTemplate": template, "workerTemplate": template}
    spec = {"startupPolicy": policy, "leaderWorkerTemplate": groups}
    document = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "l"}}
    (tmp_path / "group.yaml").write_text(yaml.safe_dump({**document, "spec": spec}))
    ended = await sidecar("injector", "show", "--image", IMAGE, str(tmp_path / "group.yaml"))
    assert ended.code == code, ended.err
    assert ("Neither ever is" in ended.err) == (code == 3)


async def test_show_says_why_a_pod_would_stay_as_it_is(tmp_path: Path):
    given, reason = pod_shapes.REFUSED["unknown entrypoint"]
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(given))
    ended = await sidecar("injector", "show", "--image", IMAGE, str(tmp_path / "pod.yaml"))
    assert ended.code == 3
    assert reason in ended.err
    assert yaml.safe_load(ended.out) == given


async def test_the_launcher_is_laid_for_clusters_without_native_sidecars(tmp_path: Path):
    control = tmp_path / "control"
    for _ in range(2):
        ended = await sidecar("launcher", "--control-dir", str(control))
        assert ended.code == 0, ended.err
    assert [path.name for path in control.iterdir()] == ["launcher.py"]
    assert (control / "launcher.py").stat().st_mode & 0o777 == 0o775


async def test_a_launcher_that_can_not_be_laid_is_a_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    ended = await sidecar("launcher", "--control-dir", str(tmp_path / "file" / "control"))
    assert ended.code == 3
    assert "mount a volume" in ended.err
