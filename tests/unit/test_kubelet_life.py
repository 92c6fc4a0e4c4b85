"""The emulated kubelet's rules on virtual time, with scripted containers: order, probes, back-off, deletion.

Each claim is one of the Kubernetes documentation; its place is named at the code that keeps it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kubernetes.kubelet import Life, PodSpec
from tests.kubernetes.kubelet.clock import Backoff, Clock
from tests.kubernetes.kubelet.spec import Container, Handler

pytestmark = pytest.mark.looptime


@dataclass
class Acts:
    """What the instances of one container do. `answers`: whether an HTTP path is answered well so many seconds after a start."""

    ends_after: list[tuple[float, int]] = field(default_factory=list)
    answers: Callable[[str, float], bool] = lambda _path, _age: True
    term_takes: float = 0.0
    hook_takes: float = 0.0
    starting_takes: float = 0.0


class Instance:
    """One instance of a scripted container."""

    def __init__(self, acts: Acts, number: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._acts, self._born = acts, self._loop.time()
        self._end: asyncio.Future[int] = self._loop.create_future()
        self.asked: list[tuple[float, str]] = []
        if number < len(acts.ends_after):
            after, code = acts.ends_after[number]
            self._loop.call_later(after, self._ends, code)

    def _ends(self, code: int) -> None:
        if not self._end.done():
            self._end.set_result(code)

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            self._ends(137)
        elif self._acts.term_takes < float("inf"):
            self._loop.call_later(self._acts.term_takes, self._ends, 0)

    async def ask(self, handler: Handler, timeout_s: float) -> bool:
        if handler.http_get is None:
            await asyncio.sleep(min(timeout_s, self._acts.hook_takes))
            return self._acts.hook_takes <= timeout_s
        age = self._loop.time() - self._born
        self.asked.append((round(age, 3), handler.http_get.path))
        return self._acts.answers(handler.http_get.path, age)


class Scripted:
    """A runtime of scripted containers."""

    def __init__(self, **acts: Acts) -> None:
        self.acts = acts
        self.instances: dict[str, list[Instance]] = {}

    async def start(self, container: Container) -> Instance:
        acts = self.acts.get(container.name, Acts())
        await asyncio.sleep(acts.starting_takes)
        made = self.instances.setdefault(container.name, [])
        made.append(Instance(acts, len(made)))
        return made[-1]


def a_pod(containers: str = "app", inits: str = "", **more: Any) -> dict[str, Any]:
    """Write a spec; a container named s… among `inits` is a sidecar."""
    return {
        "initContainers": [
            {"name": name, "image": "i", **({"restartPolicy": "Always"} if name.startswith("s") else {})}
            for name in inits.split()
        ],
        "containers": [{"name": name, "image": "i"} for name in containers.split()],
        **more,
    }


def probed(pod: dict[str, Any], container: str, kind: str, **numbers: Any) -> dict[str, Any]:
    for each in [*pod["initContainers"], *pod["containers"]]:
        if each["name"] == container:
            each[f"{kind}Probe"] = {"httpGet": {"path": f"/{kind}", "port": 80}, **numbers}
    return pod


def hooked(pod: dict[str, Any], container: str) -> dict[str, Any]:
    for each in [*pod["initContainers"], *pod["containers"]]:
        if each["name"] == container:
            each["lifecycle"] = {"preStop": {"exec": {"command": ["stop"]}}}
    return pod


def life_of(pod: dict[str, Any], **acts: Acts) -> Life:
    return Life(PodSpec.parse(pod), Scripted(**acts))


def moments(life: Life, container: str, what: Any) -> list[float]:
    """Give the seconds since the pod's first event at which something happened to a container."""
    return [round(event.at - life.story.events[0].at, 3) for event in life.story.of(container, what)]


def names(life: Life, what: Any) -> list[str]:
    return [event.container for event in life.story.events if event.what == what]


# --- the start ----------------------------------------------------------------------------------------------------


async def test_init_containers_run_one_after_another_and_then_the_others_start():
    async with life_of(a_pod("app", "i1 i2"), i1=Acts([(5, 0)]), i2=Acts([(7, 0)])) as life:
        await life.until_ready()
        assert names(life, "started") == ["i1", "i2", "app"]
        assert moments(life, "app", "started") == [12]


async def test_a_failed_init_container_is_tried_again_with_a_growing_pause_and_nothing_else_starts():
    async with life_of(a_pod("app", "i1"), i1=Acts([(1, 1), (1, 1), (1, 1), (1, 0)])) as life:
        await life.until_ready(deadline_s=600)
        # At once, after 10 s, after 20 s; each ran for a second.
        assert moments(life, "i1", "started") == [0, 1, 12, 33]
        assert moments(life, "app", "started") == [34]


async def test_a_failed_init_container_fails_a_pod_that_never_restarts():
    async with life_of(a_pod("app", "s1 i1", restartPolicy="Never"), i1=Acts([(1, 1)])) as life:
        await life.until_ended()
        assert life.phase == "Failed"
        assert names(life, "started") == ["s1", "i1"]
        assert names(life, "SIGTERM") == ["s1"]


async def test_a_sidecar_counts_as_started_when_its_startup_probe_has_passed_and_the_next_waits_for_that():
    pod = probed(a_pod("app", "s1 i2"), "s1", "startup", periodSeconds=1, failureThreshold=60)
    acts = Acts(answers=lambda path, age: path != "/startup" or age >= 7)
    async with life_of(pod, s1=acts, i2=Acts([(1, 0)])) as life:
        await life.until_ready()
        assert moments(life, "i2", "started") == [7]
        assert moments(life, "app", "started") == [8]


async def test_a_sidecar_that_dies_before_it_has_started_is_started_again_whatever_the_pods_policy():
    pod = probed(a_pod("app", "s1", restartPolicy="Never"), "s1", "startup", periodSeconds=1)
    acts = Acts([(0.5, 1)], answers=lambda path, age: age >= 2)
    async with life_of(pod, s1=acts) as life:
        await life.until_ready()
        assert life["s1"].restarts == 1


async def test_a_startup_probe_that_uses_its_failures_up_kills_and_the_next_instance_gets_them_anew():
    pod = probed(a_pod("app", "s1"), "s1", "startup", periodSeconds=2, failureThreshold=3)
    async with life_of(pod, s1=Acts(answers=lambda path, age: age >= 5)) as life:
        await life.until_started("s1", restarts=1)
        # Asked at 0, 2 and 4 s.
        assert moments(life, "s1", "probe failed") == [4]


# --- probes ---------------------------------------------------------------------------------------------------------


async def test_other_probes_wait_for_the_startup_probe_and_their_delay_counts_from_there():
    pod = probed(a_pod(), "app", "startup", periodSeconds=1)
    probed(pod, "app", "readiness", initialDelaySeconds=3, periodSeconds=5)
    runtime = Scripted(app=Acts(answers=lambda path, age: path != "/startup" or age >= 2))
    async with Life(PodSpec.parse(pod), runtime) as life:
        await life.until_ready()
        asked = [age for age, path in runtime.instances["app"][0].asked if path == "/readiness"]
        assert asked == [5]


async def test_a_container_is_ready_after_the_successes_and_unready_after_the_failures_that_the_probe_names():
    pod = probed(a_pod(), "app", "readiness", periodSeconds=1, successThreshold=2, failureThreshold=3)
    async with life_of(pod, app=Acts(answers=lambda path, age: 10 <= age < 20)) as life:
        await life.until_ready()
        await life.until_unready()
        assert moments(life, "app", "ready") == [11]
        assert moments(life, "app", "unready") == [22]


async def test_a_single_failure_between_successes_changes_nothing_when_three_are_needed():
    pod = probed(a_pod(), "app", "readiness", periodSeconds=1, failureThreshold=3)
    async with life_of(pod, app=Acts(answers=lambda path, age: int(age) % 3 != 2)) as life:
        await asyncio.sleep(60)
        assert moments(life, "app", "unready") == []


async def test_a_failed_liveness_probe_kills_within_the_grace_period_and_the_container_starts_again():
    pod = probed(a_pod(terminationGracePeriodSeconds=20), "app", "liveness", periodSeconds=5, failureThreshold=2)
    acts = Acts(answers=lambda path, age: age < 10, term_takes=float("inf"))
    async with life_of(pod, app=acts) as life:
        await life.until_started("app", restarts=1)
        assert moments(life, "app", "probe failed") == [15]
        assert moments(life, "app", "SIGTERM") == [15]
        assert moments(life, "app", "SIGKILL") == [35]


async def test_a_probes_own_grace_period_counts_before_the_pods():
    pod = probed(a_pod(), "app", "liveness", periodSeconds=5, failureThreshold=1, terminationGracePeriodSeconds=4)
    async with life_of(pod, app=Acts(answers=lambda path, age: age < 5, term_takes=float("inf"))) as life:
        await life.until_started("app", restarts=1)
        assert moments(life, "app", "SIGKILL") == [9]


async def test_a_sidecars_readiness_counts_for_the_pod():
    pod = probed(a_pod("app", "s1"), "s1", "readiness", periodSeconds=1, failureThreshold=1)
    async with life_of(pod, s1=Acts(answers=lambda path, age: age >= 30)) as life:
        await life.until(lambda: life["app"].ready, "the engine's container is ready")
        assert life.conditions() == {"Initialized": True, "ContainersReady": False, "Ready": False}
        await life.until_ready()


async def test_a_readiness_gate_that_nobody_has_set_counts_as_false():
    pod = a_pod(readinessGates=[{"conditionType": "warmup-sidecar.io/engine-warm"}])
    async with life_of(pod) as life:
        await life.until(lambda: life.conditions()["ContainersReady"], "containers are ready")
        assert not life.ready
        life.set_gate("warmup-sidecar.io/engine-warm", "True")
        assert life.ready
        life.set_gate("warmup-sidecar.io/engine-warm", "Unknown")
        assert not life.ready


# --- restarts -------------------------------------------------------------------------------------------------------


def test_pauses_between_restarts_grow_from_none_over_ten_seconds_to_five_minutes():
    backoff = Backoff()
    assert [backoff.pause_after(1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]


def test_ten_minutes_without_trouble_begin_the_pauses_anew():
    backoff = Backoff()
    for _ in range(5):
        backoff.pause_after(1)
    assert [backoff.pause_after(600), backoff.pause_after(599)] == [0, 10]


@pytest.mark.parametrize(
    ("policy", "code", "starts"),
    [("Always", 0, 2), ("Always", 1, 2), ("OnFailure", 0, 1), ("OnFailure", 1, 2), ("Never", 0, 1), ("Never", 1, 1)],
)
async def test_the_restart_policy_decides_about_app_containers(policy: str, code: int, starts: int):
    runtime = Scripted(app=Acts([(1, code)]))
    async with Life(PodSpec.parse(a_pod(restartPolicy=policy)), runtime) as life:
        await asyncio.sleep(5)
        assert len(runtime.instances["app"]) == starts
        assert life.story.of("app", "exited")[0].detail == str(code)


async def test_a_sidecar_that_ends_is_started_again_beside_containers_that_go_on():
    runtime = Scripted(s1=Acts([(5, 0)]))
    async with Life(PodSpec.parse(a_pod("app", "s1")), runtime) as life:
        await life.until_started("s1", restarts=1)
        await life.until_ready()
        assert len(runtime.instances["app"]) == 1


async def test_a_pod_whose_containers_are_done_completes_although_a_sidecar_still_runs():
    async with life_of(a_pod("app", "s1", restartPolicy="OnFailure"), app=Acts([(5, 0)])) as life:
        await life.until_ended()
        assert life.phase == "Succeeded"
        assert names(life, "SIGTERM") == ["s1"]


# --- the end --------------------------------------------------------------------------------------------------------


async def test_app_containers_are_ended_side_by_side_and_sidecars_afterwards_the_last_one_first():
    slow, slower = Acts(term_takes=3), Acts(term_takes=5)
    async with life_of(a_pod("a1 a2", "s1 s2"), a1=slow, a2=slower, s2=Acts(term_takes=1)) as life:
        await life.until_ready()
        began = life.story.events[0].at
        life.begin_delete()
        deleted = life.story.of("", "deleted")[0].at - began
        await life.until_ended()
        ended = {name: round(moments(life, name, "SIGTERM")[0] - deleted, 3) for name in ("a1", "a2", "s1", "s2")}
        assert ended == {"a1": 0, "a2": 0, "s2": 5, "s1": 6}


async def test_a_hook_runs_before_sigterm_and_takes_from_the_grace_period():
    pod = hooked(a_pod(terminationGracePeriodSeconds=20), "app")
    async with life_of(pod, app=Acts(term_takes=float("inf"), hook_takes=12)) as life:
        await life.until_ready()
        await life.delete()
        assert moments(life, "app", "SIGTERM") == [12]
        assert moments(life, "app", "SIGKILL") == [20]


async def test_a_hook_that_outlasts_the_grace_period_leaves_two_seconds():
    pod = hooked(a_pod(terminationGracePeriodSeconds=5), "app")
    async with life_of(pod, app=Acts(term_takes=float("inf"), hook_takes=100)) as life:
        await life.until_ready()
        await life.delete()
        assert [event.detail for event in life.story.of("app", "hook")] == ["failed"]
        assert moments(life, "app", "SIGKILL") == [7]


async def test_a_container_that_ends_by_itself_runs_no_hook():
    async with life_of(hooked(a_pod(), "app"), app=Acts([(1, 1)])) as life:
        await life.until_started("app", restarts=1)
        assert life.story.of("app", "hook") == []


async def test_sidecars_are_killed_with_what_is_left_when_an_app_uses_the_grace_period_up():
    stubborn = Acts(term_takes=float("inf"))
    async with life_of(a_pod("app", "s1", terminationGracePeriodSeconds=10), app=stubborn, s1=stubborn) as life:
        await life.until_ready()
        await life.delete()
        assert moments(life, "app", "SIGKILL") == [10]
        assert moments(life, "s1", "SIGTERM") == [10]
        assert moments(life, "s1", "SIGKILL") == [12]


async def test_nothing_is_started_again_once_the_pod_is_deleted():
    async with life_of(a_pod("app", "s1"), app=Acts(term_takes=10), s1=Acts([(7, 1)])) as life:
        await asyncio.sleep(5)
        await life.delete()
        assert names(life, "started") == ["s1", "app"]


async def test_a_pod_is_deleted_while_a_container_waits_for_its_next_start():
    async with life_of(a_pod(), app=Acts([(0, 1), (0, 1)])) as life:
        await life.until(lambda: life["app"].reason == "CrashLoopBackOff", "the container backs off")
        began = asyncio.get_running_loop().time()
        await life.delete()
        assert asyncio.get_running_loop().time() == began


async def test_a_pod_is_deleted_while_its_sidecar_has_not_started():
    pod = probed(a_pod("app", "s1"), "s1", "startup", periodSeconds=1, failureThreshold=1000)
    async with life_of(pod, s1=Acts(answers=lambda path, age: False, term_takes=1)) as life:
        await asyncio.sleep(5)
        await life.delete()
        assert names(life, "started") == ["s1"]
        assert moments(life, "s1", "exited") == [6]


async def test_a_container_that_is_being_started_when_the_pod_is_deleted_is_ended():
    async with life_of(a_pod(), app=Acts(starting_takes=5)) as life:
        await asyncio.sleep(1)
        await life.delete()
        assert life.story.order(("app", "started"), ("app", "SIGTERM"), ("app", "exited")) == [
            ("app", "started"),
            ("app", "SIGTERM"),
            ("app", "exited"),
        ]


async def test_no_probe_kills_once_the_pod_is_deleted_and_readiness_is_still_asked():
    pod = probed(a_pod(), "app", "liveness", periodSeconds=1, failureThreshold=1)
    probed(pod, "app", "readiness", periodSeconds=1, failureThreshold=1)
    acts = Acts(answers=lambda path, age: age < 5, term_takes=20)
    async with life_of(pod, app=acts) as life:
        await asyncio.sleep(3)
        life.begin_delete()
        assert (life.ready, life.takes_traffic) == (True, False)
        await life.until_ended()
        assert moments(life, "app", "unready") == [5]
        assert moments(life, "app", "probe failed") == []


async def test_only_pauses_between_restarts_are_shortened():
    pod = probed(a_pod(terminationGracePeriodSeconds=8), "app", "liveness", periodSeconds=10, failureThreshold=1)
    acts = Acts(answers=lambda path, age: age < 5, term_takes=float("inf"))
    async with Life(PodSpec.parse(pod), Scripted(app=acts), Clock(backoff_scale=0.1)) as life:
        await life.until_started("app", restarts=2)
        assert moments(life, "app", "SIGTERM")[0] == 10
        # At once, then after a tenth of 10 s.
        assert moments(life, "app", "started") == [0, 18, 37]


async def test_a_container_that_ends_is_unready_at_once_and_its_next_instance_proves_itself_anew():
    pod = probed(a_pod(), "app", "readiness", periodSeconds=5, failureThreshold=1)
    async with life_of(pod, app=Acts([(12, 1)], answers=lambda path, age: age >= 5)) as life:
        await life.until_ready()
        await life.until_unready()
        await life.until_ready()
        assert moments(life, "app", "unready") == [12]
        assert moments(life, "app", "ready") == [5, 17]


async def test_a_container_that_is_not_started_again_stays_unready():
    async with life_of(a_pod("app other", restartPolicy="Never"), app=Acts([(5, 0)])) as life:
        await life.until_ready()
        await asyncio.sleep(6)
        assert (life["app"].ready, life["other"].ready, life.ready) == (False, True, False)
