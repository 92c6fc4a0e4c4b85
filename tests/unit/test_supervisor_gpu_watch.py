"""The watch over the engine's GPUs: what it tells board, metrics and the state machine, and how often it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from sidecar import lifecycle as lc
from sidecar.engines.watcher import Observation
from sidecar.errors import GpuUnavailable
from sidecar.gpu.reading import Gpu, GpuSnapshot, Seen, Wish
from sidecar.lifecycle import Mode, Phase, Policy, Snapshot
from sidecar.supervisor.gpu_watch import LONGEST_PAUSE_S, GpuWatch
from sidecar.supervisor.observers import EngineObserver
from sidecar.supervisor.telling import Teller
from tests.unit.test_supervisor_observers import make_pod

pytestmark = pytest.mark.looptime

GPU = Gpu(1, "GPU-b", "NVIDIA H200", "sm90", memory="device", memory_size_bytes=141 << 30, power_watts=400.0)
FINE = GpuSnapshot("570", "12.8", (GPU,), (Seen(1, "GPU-b", "NVIDIA H200", "sm90"),), 1)
LOST = GpuSnapshot("570", "12.8", (Gpu(1, "GPU-b", "NVIDIA H200", "sm90", lost=True),), (), 1)


def away(kind: str) -> GpuUnavailable:
    error = GpuUnavailable(f"NVML can't be used: {kind}.")
    error.kind = kind
    return error


class Readings:
    """A reader that gives one answer after another, the last one for ever; notes when it was asked for what."""

    def __init__(self, answers: Iterable[GpuSnapshot | GpuUnavailable]) -> None:
        self._answers = list(answers)
        self.asked: list[float] = []
        self.wishes: list[Wish] = []

    async def read(self, wish: Wish) -> GpuSnapshot:
        self.asked.append(asyncio.get_running_loop().time())
        self.wishes.append(wish)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, GpuUnavailable):
            raise answer
        return answer

    async def close(self) -> None:
        pass


def watch(*answers: GpuSnapshot | GpuUnavailable) -> tuple[Any, GpuWatch, Readings]:
    pod = make_pod([0.0])
    readings = Readings(answers)
    return pod, GpuWatch(pod, readings), readings  # type: ignore[arg-type]


def told(pod: Any) -> list[str]:
    return [event.text for event in pod.board.events()]


async def seen_for(watching: GpuWatch, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await watching.run()


async def test_a_reading_goes_to_board_metrics_and_whoever_needs_sm_version_and_memory() -> None:
    pod, watching, _ = watch(FINE)
    await watching.read()
    assert (pod.sm, pod.gpu_memory_gib) == ("sm90", 141.0)
    assert pod.board.gpu["gpus"][0]["power_watts"] == 400.0
    assert pod.metrics.value("gpu_power_watts", gpu="1", uuid="GPU-b") == 400.0
    assert pod.metrics.value("gpu_lost", gpu="1", uuid="GPU-b") == 0


async def test_only_the_gpus_that_the_launcher_saw_are_asked_for() -> None:
    pod, watching, readings = watch(FINE)
    pod.facts = {"gpus": [{"name": "NVIDIA H200", "uuid": "GPU-b"}]}
    await watching.read()
    assert readings.wishes == [Wish(("GPU-b",))]


async def test_readings_are_ten_seconds_apart() -> None:
    _, watching, readings = watch(FINE)
    await seen_for(watching, 35)
    assert readings.asked == pytest.approx([0, 10, 20, 30])


async def test_a_driver_in_trouble_is_asked_more_and_more_seldom_and_at_the_old_pace_when_it_is_back() -> None:
    _, watching, readings = watch(*[away("unknown")] * 6, FINE)
    await seen_for(watching, 600)
    pauses = [b - a for a, b in zip(readings.asked, readings.asked[1:], strict=False)]
    assert pauses[:8] == pytest.approx([20, 40, 80, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S, 10, 10])


async def test_no_reading_falls_into_the_check_of_the_output() -> None:
    pod, watching, readings = watch(FINE)
    pod.board.enter(Phase.VERIFYING)
    await seen_for(watching, 25)
    assert readings.asked == pytest.approx([0])


async def test_a_check_that_lasts_does_not_stop_the_readings_for_good() -> None:
    pod, watching, readings = watch(FINE)
    pod.board.enter(Phase.VERIFYING)
    await seen_for(watching, 95)
    assert readings.asked == pytest.approx([0, 40, 80])


async def test_no_value_is_kept_while_nvml_is_away_and_all_come_back_with_it() -> None:
    pod, watching, _ = watch(FINE, away("unknown"), FINE)
    await watching.read()
    await watching.read()
    assert pod.metrics.value("gpu_up") == 0
    assert "gpu_power" not in pod.metrics.render().decode()
    assert pod.metrics.value("gpu_reading_troubles_total", reason="unknown") == 1
    await watching.read()
    assert pod.metrics.value("gpu_power_watts", gpu="1", uuid="GPU-b") == 400.0
    assert told(pod) == ["NVML can't be used: unknown.", "NVML answers again."]


async def test_trouble_that_stays_is_told_once() -> None:
    pod, watching, _ = watch(FINE, away("no_answer"))
    for _ in range(4):
        await watching.read()
    assert told(pod) == ["NVML can't be used: no_answer."]


@pytest.mark.parametrize("kind", ["no_library", "no_driver", "no_gpu"])
async def test_a_node_without_gpus_is_no_event(kind: str) -> None:
    pod, watching, _ = watch(away(kind))
    await watching.read()
    assert told(pod) == []
    assert pod.board.gpu["kind"] == kind


async def test_a_gpu_that_the_sidecar_does_not_see_is_told_once() -> None:
    pod, watching, _ = watch(GpuSnapshot("570", "12.8", (), (), 1, ("GPU-b can't be seen.",)))
    for _ in range(3):
        await watching.read()
    assert told(pod) == ["GPU-b can't be seen."]


async def test_that_nobody_says_which_gpus_the_engine_uses_stands_in_the_status() -> None:
    pod, watching, _ = watch(GpuSnapshot("570", "12.8", (), (), None))
    await watching.read()
    assert "WARMUP_GPUS" in pod.board.gpu["unclear"]
    assert pod.metrics.value("gpu_up") == 1
    assert pod.metrics.value("source_missing", source="gpu") == 1


def states_posted(pod: Any) -> list[tuple[str, str]]:
    events: list[lc.Event] = []
    EngineObserver(pod, events.append).report(Observation("up", "process:1", "The engine answers /health."))
    return [(event.state, event.detail) for event in events if isinstance(event, lc.EngineObserved)]


async def test_a_lost_gpu_withdraws_readiness_though_the_engine_answers_and_gives_it_back() -> None:
    pod, watching, _ = watch(FINE, LOST, LOST, FINE)
    await watching.read()
    assert states_posted(pod)[0][0] == "up"
    for _ in range(2):
        await watching.read()
    ((state, detail),) = states_posted(pod)
    assert state == "gpu_lost"
    assert "GPU-b" in detail
    assert pod.metrics.value("gpu_lost", gpu="1", uuid="GPU-b") == 1
    assert pod.metrics.value("gpu_power_watts", gpu="1", uuid="GPU-b") is None
    await watching.read()
    assert states_posted(pod)[0][0] == "up"
    assert len([text for text in told(pod) if "GPU" in text]) == 2


async def test_a_loss_that_withdraws_traffic_is_one_event_and_the_withdrawal_another() -> None:
    pod, watching, _ = watch(FINE, LOST)
    await watching.read()
    ready = Snapshot(Mode.LAUNCHER, Phase.READY, identity="process:1", warm="converged", verify="passed")
    teller = Teller(pod)
    await watching.read()
    ((state, detail),) = states_posted(pod)
    seen = lc.EngineObserved(state, "process:1", detail, True)
    after, _ = lc.step(ready, seen, Policy())
    teller.stepped(ready, seen, after, lc.gate(after))
    loss, withdrawal = told(pod)
    assert "lost GPU-b" in loss
    assert withdrawal.startswith("Traffic is withdrawn")
    assert "GPU-b" not in withdrawal
    assert loss in lc.gate(after).sentence


async def test_nvml_that_answers_nothing_but_lost_is_told_as_the_loss_alone_and_so_is_its_end() -> None:
    pod, watching, _ = watch(FINE, away("lost"), away("lost"), FINE)
    pod.facts = {"gpus": [{"name": "NVIDIA H200", "uuid": "GPU-b"}]}
    for _ in range(4):
        await watching.read()
    loss, end = told(pod)
    assert "lost GPU-b" in loss
    assert end == "All GPUs of the engine can be reached again."


async def test_nvml_that_says_lost_and_then_nothing_at_all_is_told_for_both() -> None:
    pod, watching, _ = watch(FINE, away("lost"), away("no_answer"))
    for _ in range(3):
        await watching.read()
    _, trouble = told(pod)
    assert trouble == "NVML can't be used: no_answer."


async def test_a_driver_that_forgets_its_clients_leaves_readiness_alone() -> None:
    pod, watching, _ = watch(FINE, away("unknown"))
    await watching.read()
    await watching.read()
    assert states_posted(pod)[0][0] == "up"


async def test_a_lost_gpu_keeps_counting_as_lost_while_nvml_is_away() -> None:
    pod, watching, _ = watch(LOST, away("no_answer"))
    await watching.read()
    await watching.read()
    assert states_posted(pod)[0][0] == "gpu_lost"
    assert pod.board.gpu["kind"] == "no_answer"
    assert [(gpu["uuid"], gpu["index"], gpu["lost"]) for gpu in pod.board.gpu["gpus"]] == [("GPU-b", 1, True)]
    assert pod.metrics.value("gpu_lost", gpu="1", uuid="GPU-b") == 1


async def test_a_lost_gpu_that_a_later_reading_does_not_find_stays_lost_until_one_shows_it_well() -> None:
    unread = GpuSnapshot("570", "12.8", (), (), 1, ("GPU-b can't be read.",))
    pod, watching, _ = watch(LOST, unread, FINE)
    for _ in range(2):
        await watching.read()
    assert [gpu["lost"] for gpu in pod.board.gpu["gpus"]] == [True]
    assert pod.metrics.value("gpu_lost", gpu="1", uuid="GPU-b") == 1
    assert states_posted(pod)[0][0] == "gpu_lost"
    await watching.read()
    assert [gpu["lost"] for gpu in pod.board.gpu["gpus"]] == [False]
    assert states_posted(pod)[0][0] == "up"


async def test_of_two_lost_gpus_the_one_that_is_well_again_is_no_longer_shown_as_lost() -> None:
    first, second = (Gpu(number, f"GPU-{number}", lost=True) for number in (0, 1))
    both = GpuSnapshot("570", "12.8", (first, second), (), 2)
    half = GpuSnapshot("570", "12.8", (Gpu(0, "GPU-0"),), (), 2, ("GPU-1 can't be read.",))
    pod, watching, _ = watch(both, half)
    for _ in range(2):
        await watching.read()
    assert [(gpu["uuid"], gpu["lost"]) for gpu in pod.board.gpu["gpus"]] == [("GPU-0", False), ("GPU-1", True)]
    assert "GPU-1" in pod.lost_gpus
    assert "GPU-0" not in pod.lost_gpus


async def test_other_gpus_of_a_new_engine_are_not_lost_because_the_old_ones_were() -> None:
    other = GpuSnapshot("570", "12.8", (), (), 1, ("GPU-c can't be read.",))
    pod, watching, _ = watch(LOST, other)
    pod.facts = {"gpus": [{"name": "NVIDIA H200", "uuid": "GPU-b"}]}
    await watching.read()
    pod.facts = {"gpus": [{"name": "NVIDIA H200", "uuid": "GPU-c"}]}
    await watching.read()
    assert (pod.board.gpu["gpus"], pod.lost_gpus) == ([], "")


async def test_nvml_that_answers_nothing_but_lost_loses_the_only_gpu_of_the_engine_by_name() -> None:
    pod, watching, _ = watch(FINE, away("lost"), FINE)
    pod.facts = {"gpus": [{"name": "NVIDIA H200", "uuid": "GPU-b"}]}
    for _ in range(2):
        await watching.read()
    assert "lost GPU-b" in states_posted(pod)[0][1]
    assert [gpu["lost"] for gpu in pod.board.gpu["gpus"]] == [True]
    assert pod.metrics.value("gpu_lost", gpu="1", uuid="GPU-b") == 1
    assert pod.metrics.value("gpu_reading_troubles_total", reason="lost") == 1
    await watching.read()
    assert states_posted(pod)[0][0] == "up"


async def test_which_of_several_is_lost_is_not_guessed_when_nvml_does_not_say() -> None:
    pod, watching, _ = watch(away("lost"))
    pod.facts = {"gpus": [{"name": "NVIDIA H200", "uuid": uuid} for uuid in ("GPU-a", "GPU-b")]}
    await watching.read()
    assert "gpus" not in pod.board.gpu
    assert "doesn't say which" in states_posted(pod)[0][1]
    assert "GPU-a and GPU-b" in states_posted(pod)[0][1]
