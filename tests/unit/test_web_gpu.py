"""The engine's GPUs on the status page and in `status`: what is wrong comes first, and nothing unknown is shown."""

from __future__ import annotations

import dataclasses
import html
import re
from pathlib import Path
from typing import Any

import pytest

from sidecar.commands import gpu_view
from sidecar.gpu.fields import THROTTLE_REASONS
from sidecar.gpu.reading import Gpu, GpuSnapshot
from sidecar.web import gpu_facts, page
from tests.fakes import scenes
from tests.fakes.readings import full_gpu, full_snapshot

ALERTS = Path(__file__).resolve().parents[2] / "k8s/components/monitoring/prometheusrule.yaml"


def shown(snapshot: GpuSnapshot, **more: Any) -> str:
    status = {**scenes.ready().to_json(), "gpu": {**snapshot.to_json(), **more}}
    return html.unescape(page.render(status, now=scenes.EPOCH, refresh=0))


def one(**changes: Any) -> dict[str, Any]:
    return dataclasses.replace(full_gpu(0), **changes).to_json()


def test_each_gpu_of_the_engine_has_its_numbers_in_words() -> None:
    text = shown(full_snapshot(2))
    assert "2 GPUs" in text
    assert "400 W of 700 · 54 °C · 1980 MHz · sm90" in text
    assert "1: NVIDIA H200" in text
    assert "clocks held down" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lost": True}, "lost"),
        ({"throttled": {"hw_thermal_slowdown": 1.0, "sw_power_cap": 0.0}}, "clocks held down: hw thermal slowdown"),
        ({"ecc_errors": {"uncorrected_volatile": 3.0}}, "3 uncorrected memory errors"),
        ({"row_remap_pending": 1.0}, "to be remapped"),
        ({"row_remap_failed": 1.0, "row_remap_pending": 1.0}, "could not be remapped"),
        ({"nvlink_links": {"active": 17, "inactive": 1}}, "1 of 18 NVLink links down"),
    ],
)
def test_what_is_wrong_with_a_gpu_is_a_sentence_on_the_page_and_in_the_table(
    changes: dict[str, Any], said: str
) -> None:
    (wrong,) = gpu_facts.troubles(one(**changes))
    assert said in wrong
    snapshot = GpuSnapshot("570", "12.8", (dataclasses.replace(full_gpu(0), **changes),), (), 1)
    assert said in shown(snapshot)
    assert said in gpu_view.grid({"gpu": snapshot.to_json()}).rows[0][-1]


def test_a_gpu_that_is_well_has_no_trouble() -> None:
    assert gpu_facts.troubles(one()) == []


def test_the_reasons_that_are_a_fault_are_those_of_the_alert() -> None:
    (named,) = re.findall(r'gpu_throttled\{reason=~"([^"]+)"\}', ALERTS.read_text(encoding="utf-8"))
    assert set(named.split("|")) == gpu_facts.BRAKES


@pytest.mark.parametrize("reason", sorted(set(THROTTLE_REASONS) - gpu_facts.BRAKES))
def test_a_clock_that_is_limited_as_usual_is_no_alarm_and_said_softly(reason: str) -> None:
    busy = dataclasses.replace(full_gpu(0), throttled=dict.fromkeys(THROTTLE_REASONS, 0.0) | {reason: 1.0})
    assert gpu_facts.troubles(busy.to_json()) == []
    said = f"clocks limited as usual: {reason.replace('_', ' ')}"
    snapshot = GpuSnapshot("570", "12.8", (busy,), (), 1)
    assert f'<p class="soft small">{said}</p>' in shown(snapshot)
    assert gpu_view.grid({"gpu": snapshot.to_json()}).rows[0][-1] == said


def test_a_card_without_a_bridge_has_no_links_that_are_down() -> None:
    bare = one(nvlink_links={"active": 0, "inactive": 18})
    assert (gpu_facts.troubles(bare), gpu_facts.remarks(bare)) == ([], ["no NVLink in use"])


def with_lost(index: int, gpus: int = 8) -> GpuSnapshot:
    found = [full_gpu(each) for each in range(gpus)]
    found[index] = Gpu(index, found[index].uuid, "NVIDIA H200", "sm90", lost=True)
    found[1] = dataclasses.replace(found[1], throttled={"hw_slowdown": 1.0})
    return dataclasses.replace(full_snapshot(gpus), gpus=tuple(found))


def test_a_lost_gpu_stands_first_and_by_its_uuid_then_those_with_faults() -> None:
    text, table = shown(with_lost(5)), gpu_view.grid({"gpu": with_lost(5).to_json()}).rows
    assert re.findall(r"<h3>(\d): NVIDIA", text) == ["5", "1", "0", "2", "3", "4", "6", "7"]
    assert [row[0][0] for row in table] == ["5", "1", "0", "2", "3", "4", "6", "7"]
    assert full_gpu(5).uuid in table[0][-1]
    assert '<div class="one-gpu lost"><h3>5: NVIDIA H200</h3>' in text
    assert '<span class="tag bad">1 lost</span>' in text
    assert text.index('id="gpu"') < text.index('id="restore"')


def test_without_a_lost_gpu_the_card_stands_behind_what_the_start_did() -> None:
    assert shown(full_snapshot(8)).index('id="gpu"') > shown(full_snapshot(8)).index('id="restore"')


def test_a_gpu_that_was_lost_is_shown_as_lost_while_nvml_can_not_be_used() -> None:
    lost = Gpu(3, "GPU-3-of-eight", "NVIDIA H200", lost=True).to_json()
    status = {**scenes.ready().to_json(), "gpu": {"unavailable": "NVML hangs.", "kind": "no_answer", "gpus": [lost]}}
    text = html.unescape(page.render(status, now=scenes.EPOCH, refresh=0))
    rows = gpu_view.grid(status).rows
    for said in ("NVML hangs.", "lost: the driver can't reach GPU-3-of-eight"):
        assert said in text
        assert said in " ".join(" ".join(row) for row in rows)


def test_the_uuid_can_be_reached_without_a_pointer() -> None:
    text = shown(full_snapshot(1))
    assert "<summary>UUID <code>GPU-00000000…</code></summary>" in text
    assert f'<code class="whole">{full_gpu(0).uuid}</code>' in text


def test_a_node_without_a_driver_has_no_table() -> None:
    assert gpu_view.grid({"gpu": {"unavailable": "No driver.", "kind": "no_driver"}}).rows == []


def test_memory_that_is_the_machines_is_called_so() -> None:
    assert "of the machine" in gpu_facts.memory(one(memory="unified"))
    assert "of the machine" not in gpu_facts.memory(one())


def test_a_mig_instance_shows_its_profile() -> None:
    assert gpu_facts.title(one(mig="1g.18gb")) == "0: NVIDIA H200 MIG 1g.18gb"


def test_other_peoples_gpus_are_counted_and_not_shown() -> None:
    snapshot = dataclasses.replace(full_snapshot(8), gpus=(full_gpu(3),), expected=1)
    text = shown(snapshot)
    assert "8 GPUs; the engine's are shown" in text
    assert "3: NVIDIA H200" in text
    assert "4: NVIDIA H200" not in text


def test_why_no_gpu_is_shown_is_said() -> None:
    assert "Nobody says which" in shown(GpuSnapshot("570", "12.8", (), (), None), unclear="Nobody says which.")


def test_a_sentence_about_a_gpu_that_is_not_seen_stands_with_the_others() -> None:
    snapshot = GpuSnapshot("570", "12.8", (full_gpu(0),), (), 2, ("GPU-x can't be seen.",))
    assert "GPU-x can" in shown(snapshot)


@pytest.mark.parametrize("odd", [None, {}, {"gpus": None}, {"gpus": [None, 7]}, {"gpus": [{}]}, {"gpus": "x"}])
def test_odd_sections_are_coped_with(odd: Any) -> None:
    status = {**scenes.ready().to_json(), "gpu": odd}
    assert page.render(status, now=scenes.EPOCH, refresh=0)
    assert len(gpu_view.grid(status).rows) <= 1


def test_a_gpu_of_which_nothing_is_known_shows_its_name_alone() -> None:
    bare = Gpu(0, "GPU-x", "NVIDIA H200").to_json()
    assert (gpu_facts.title(bare), gpu_facts.load(bare), gpu_facts.memory(bare)) == ("0: NVIDIA H200", "", "")
