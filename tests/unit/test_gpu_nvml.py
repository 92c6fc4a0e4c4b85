"""What NVML answers, field by field, driven through the real pynvml against a stub libnvidia-ml.so.1 that gcc makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml import NEEDS_GCC, NvmlStub, Worker, compile_stub

FULL: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-stub-0",
    "name": "NVIDIA H200",
    "sm": "sm90",
    "mig": "",
    "lost": False,
    "memory": "device",
    "utilization_ratio": 0.63,
    "memory_busy_ratio": 0.2,
    "memory_used_bytes": 1_400_000_000,
    "memory_size_bytes": 150_754_820_096,
    "memory_reserved_bytes": 600_000_000,
    "power_watts": 412.5,
    "power_limit_watts": 700.0,
    "energy_joules": 5000.5,
    "temperature_celsius": 54.0,
    "memory_temperature_celsius": 61.0,
    "clock_hertz": {"sm": 1.98e9, "memory": 3.201e9},
    "clock_max_hertz": {"sm": 1.98e9, "memory": 3.201e9},
    "throttled": dict.fromkeys(
        (
            "applications_clocks_setting",
            "sw_power_cap",
            "hw_slowdown",
            "sync_boost",
            "sw_thermal_slowdown",
            "hw_thermal_slowdown",
            "hw_power_brake",
            "display_clock_setting",
        ),
        0.0,
    ),
    "ecc_errors": {
        "corrected_volatile": 0,
        "uncorrected_volatile": 10,
        "corrected_aggregate": 1,
        "uncorrected_aggregate": 11,
    },
    "remapped_rows": {"corrected": 1, "uncorrected": 2},
    "row_remap_pending": 1.0,
    "row_remap_failed": 0.0,
    "pcie_link_generation": 5,
    "pcie_link_width": 16,
    "pcie_replays": 3,
    "pcie_bytes": {"sent": 197.0, "received": 198.0},
    "nvlink_links": {"active": 17, "inactive": 1},
    "nvlink_bytes": {"sent": 138 * 1024, "received": 139 * 1024},
    "nvlink_errors": {"crc": 38.0, "replay": 52.0, "recovery": 59.0},
}
#: Each call that may be refused, and what the reading has then instead of what it has else.
REFUSED: dict[str, dict[str, Any]] = {
    "name": {"name": None},
    "capability": {"sm": None},
    "utilization": {"utilization_ratio": None, "memory_busy_ratio": None},
    "power": {"power_watts": None},
    "power_limit": {"power_limit_watts": None},
    "energy": {"energy_joules": None},
    "temperature": {"temperature_celsius": None},
    "clock_sm": {"clock_hertz": {"memory": 3.201e9}},
    "clock_max": {"clock_max_hertz": None},
    "ecc": {"ecc_errors": None},
    "remapped": {"remapped_rows": None, "row_remap_pending": None, "row_remap_failed": None},
    "pcie_generation": {"pcie_link_generation": None},
    "pcie_width": {"pcie_link_width": None},
    "pcie_replays": {"pcie_replays": None},
    "nvlink_state": {"nvlink_links": None},
    "mig_mode": {},
    "fields": {
        "memory_temperature_celsius": None,
        "pcie_bytes": None,
        "nvlink_links": None,
        "nvlink_bytes": None,
        "nvlink_errors": None,
    },
    "field_82": {"memory_temperature_celsius": None},
    "field_138": {"nvlink_bytes": {"received": 139 * 1024}},
    "field_52": {"nvlink_errors": {"crc": 38.0, "recovery": 59.0}},
    "memory_v2": {"memory_used_bytes": 2_000_000_000, "memory_reserved_bytes": None},
    "reasons": {},
}
NO_MEMORY = dict.fromkeys(("memory", "memory_used_bytes", "memory_size_bytes", "memory_reserved_bytes"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    if not compile_stub(folder):
        pytest.skip(NEEDS_GCC)
    return folder


@pytest.fixture(scope="module")
def shared(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker(NvmlStub(library, tmp_path_factory.mktemp("state"))) as worker:
        yield worker


@pytest.fixture
def worker(shared: Worker) -> Worker:
    """The process that other tests asked too, with a scenario that is all well."""
    shared.stub.set()
    return shared


@pytest.fixture
def fresh(library: Path, tmp_path: Path) -> Iterator[Worker]:
    """A process of its own, for what is asked once and remembered."""
    with Worker(NvmlStub(library, tmp_path)) as worker:
        yield worker


@pytest.fixture
def fresh_for(worker: Worker, request: pytest.FixtureRequest) -> Iterator[Worker]:
    """A process that hasn't asked yet what it asks once: name and SM version."""
    once = request.node.callspec.params["call"] in ("name", "capability")
    if once:
        worker.stop()
    yield worker
    if once:
        worker.stop()


def one(answer: dict[str, Any]) -> dict[str, Any]:
    assert len(answer["reading"]["gpus"]) == 1, answer
    gpu: dict[str, Any] = answer["reading"]["gpus"][0]
    return gpu


def machine_bytes() -> int:
    row = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return int(row.split()[1]) * 1024


def test_every_field_of_a_gpu_is_read_in_base_units(worker: Worker) -> None:
    answer = worker.ask("GPU-stub-0")["reading"]
    assert one({"reading": answer}) == FULL
    assert (answer["driver"], answer["cuda"], answer["sm"], answer["expected"]) == ("570.133.20", "12.8", "sm90", 1)


@pytest.mark.parametrize("code", [3, 4, 13, 999], ids=["not supported", "no permission", "unknown function", "unknown"])
@pytest.mark.parametrize("call", REFUSED)
def test_a_field_that_is_refused_is_left_out_and_all_others_stay(fresh_for: Worker, call: str, code: int) -> None:
    fresh_for.stub.set(FAIL=f"{call}={code}")
    assert one(fresh_for.ask("GPU-stub-0")) == FULL | REFUSED[call]


def test_drivers_before_535_name_the_reasons_otherwise(worker: Worker) -> None:
    worker.stub.set(FAIL="reasons=13", THROTTLE=0x40 | 0x1)
    throttled = one(worker.ask("GPU-stub-0"))["throttled"]
    assert [reason for reason, held in throttled.items() if held] == ["hw_thermal_slowdown"]


def test_an_idle_gpu_is_not_throttled(worker: Worker) -> None:
    worker.stub.set(THROTTLE=0x1)
    assert not any(one(worker.ask("GPU-stub-0"))["throttled"].values())


# --- memory that the GPU shares with the machine


@pytest.mark.parametrize(
    "scenario",
    [{"FAIL": "memory=3,memory_v2=3"}, {"UNIFIED": 0}, {"UNIFIED": machine_bytes()}],
    ids=["not supported", "success with 0", "success with the machine's size"],
)
def test_a_gpu_without_memory_of_its_own_shows_the_machines_and_says_so(
    fresh: Worker, scenario: dict[str, Any]
) -> None:
    fresh.stub.set(SM="12.1", NAME="NVIDIA GB10", **scenario)
    gpu = one(fresh.ask("GPU-stub-0"))
    assert (gpu["memory"], gpu["memory_size_bytes"]) == ("unified", machine_bytes())
    assert 0 < gpu["memory_used_bytes"] < machine_bytes()
    others = FULL.keys() - NO_MEMORY.keys() - {"name", "sm"}
    assert {name: gpu[name] for name in others} == {name: FULL[name] for name in others}


@pytest.mark.parametrize("scenario", [{"FAIL": "memory=3,memory_v2=3"}, {"UNIFIED": 0}], ids=["not supported", "0"])
def test_memory_that_a_gpu_with_its_own_does_not_show_is_left_out(worker: Worker, scenario: dict[str, Any]) -> None:
    worker.stub.set(**scenario)
    assert one(worker.ask("GPU-stub-0")) == FULL | NO_MEMORY


def test_a_product_that_is_not_in_the_table_and_has_the_machines_memory_shares_it(fresh: Worker) -> None:
    fresh.stub.set(SM="13.7", UNIFIED=machine_bytes())
    assert one(fresh.ask("GPU-stub-0"))["memory"] == "unified"


# --- which GPUs


def test_of_eight_visible_gpus_only_the_engines_are_read(worker: Worker) -> None:
    worker.stub.set(GPUS=8)
    worker.stub.calls()
    reading = worker.ask("GPU-stub-5", "GPU-stub-2")["reading"]
    assert [(gpu["index"], gpu["uuid"]) for gpu in reading["gpus"]] == [(5, "GPU-stub-5"), (2, "GPU-stub-2")]
    assert len(reading["seen"]) == 8
    assert worker.stub.calls().count("power") == 2


def test_of_several_gpus_none_is_shown_while_nobody_says_which_the_engine_uses(worker: Worker) -> None:
    worker.stub.set(GPUS=8)
    reading = worker.ask()["reading"]
    assert (reading["gpus"], reading["expected"], reading["sm"]) == ([], None, "sm90")


def test_a_single_gpu_needs_no_naming(worker: Worker) -> None:
    reading = worker.ask()["reading"]
    assert (reading["gpus"], reading["expected"]) == ([FULL], 1)


def test_a_gpu_of_the_engine_that_the_sidecar_does_not_see_is_a_sentence(worker: Worker) -> None:
    reading = worker.ask("GPU-stub-0", "GPU-elsewhere")["reading"]
    assert [gpu["uuid"] for gpu in reading["gpus"]] == ["GPU-stub-0"]
    assert reading["expected"] == 2
    assert "GPU-elsewhere" in reading["troubles"][0]
    assert "NVIDIA_VISIBLE_DEVICES" in reading["troubles"][0]


def test_an_engine_without_gpus_has_none(worker: Worker) -> None:
    worker.stub.set(FAIL="count=9")
    assert worker.ask()["kind"] == "no_driver"


# --- MIG


def test_a_mig_instance_has_its_own_memory_and_its_gpu_shows_what_all_instances_share(worker: Worker) -> None:
    worker.stub.set(GPUS=2, MIG="1:3")
    instance, whole = worker.ask("MIG-stub-1-2")["reading"]["gpus"]
    assert (instance["uuid"], instance["mig"], instance["memory_size_bytes"]) == ("MIG-stub-1-2", "1g.18gb", 18 << 30)
    assert (instance["power_watts"], instance["utilization_ratio"], instance["sm"]) == (None, None, "sm90")
    assert (whole["uuid"], whole["power_watts"], whole["memory_used_bytes"]) == ("GPU-stub-1", 412.5, None)


def test_two_instances_of_one_gpu_show_it_once(worker: Worker) -> None:
    worker.stub.set(MIG="0:3")
    gpus = worker.ask("MIG-stub-0-0", "MIG-stub-0-1")["reading"]["gpus"]
    assert [gpu["uuid"] for gpu in gpus] == ["MIG-stub-0-0", "GPU-stub-0", "MIG-stub-0-1"]


def test_the_only_instance_of_a_gpu_is_the_engines(worker: Worker) -> None:
    worker.stub.set(MIG="0:1")
    assert [gpu["uuid"] for gpu in worker.ask("GPU-stub-0")["reading"]["gpus"]] == ["MIG-stub-0-0", "GPU-stub-0"]


def test_one_of_several_instances_is_never_guessed(worker: Worker) -> None:
    worker.stub.set(MIG="0:3")
    reading = worker.ask("GPU-stub-0")["reading"]
    assert [(gpu["uuid"], gpu["memory_used_bytes"]) for gpu in reading["gpus"]] == [("GPU-stub-0", None)]
    assert "WARMUP_GPUS" in reading["troubles"][0]


# --- GPUs and drivers that go


def test_a_lost_gpu_shows_nothing_but_that_and_its_neighbour_stays(worker: Worker) -> None:
    worker.stub.set(GPUS=2, FAIL="power@0=15")
    first, second = worker.ask("GPU-stub-0", "GPU-stub-1")["reading"]["gpus"]
    known = {"index": 0, "uuid": "GPU-stub-0", "name": "NVIDIA H200", "sm": "sm90", "mig": "", "lost": True}
    assert first == dict.fromkeys(FULL) | known
    assert (second["lost"], second["power_watts"]) == (False, 412.5)


def test_a_gpu_whose_handle_is_lost_is_lost_by_its_uuid(worker: Worker) -> None:
    worker.stub.set(GPUS=2, FAIL="handle@1=15,by_uuid@1=6")
    gpus = worker.ask("GPU-stub-0", "GPU-stub-1")["reading"]["gpus"]
    assert [(gpu["uuid"], gpu["lost"]) for gpu in gpus] == [("GPU-stub-0", False), ("GPU-stub-1", True)]


def test_all_gpus_lost_are_told_one_by_one(worker: Worker) -> None:
    worker.stub.set(GPUS=2, FAIL="handle=15,by_uuid=15")
    gpus = worker.ask("GPU-stub-0", "GPU-stub-1")["reading"]["gpus"]
    assert [gpu["lost"] for gpu in gpus] == [True, True]


def test_a_lost_gpu_that_spoils_the_count_is_found_by_its_uuid_and_the_other_is_a_sentence(worker: Worker) -> None:
    worker.stub.set(GPUS=2, FAIL="count=15,by_uuid@1=15")
    reading = worker.ask("GPU-stub-0", "GPU-stub-1")["reading"]
    assert [(gpu["uuid"], gpu["lost"]) for gpu in reading["gpus"]] == [("GPU-stub-1", True)]
    assert "GPU-stub-0" in reading["troubles"][0]
    assert "while one of the node is lost" in reading["troubles"][0]


@pytest.mark.parametrize("fail", ["count=15", "init=15"])
def test_a_loss_of_which_nvml_tells_no_more_is_one_of_no_gpu(worker: Worker, fail: str) -> None:
    worker.stop()
    worker.stub.set(GPUS=2, FAIL=fail)
    assert worker.ask("GPU-stub-0", "GPU-stub-1")["kind"] == "lost"


@pytest.mark.parametrize(
    ("code", "advice"),
    [(999, "recreate the pod"), (4, "may not open its device file"), (20, "left out until it can")],
    ids=["unknown", "no permission", "other"],
)
@pytest.mark.parametrize("by_uuid", [True, False], ids=["known by UUID", "UUID not found"])
def test_a_gpu_that_is_there_and_can_not_be_read_is_told_by_its_code(
    worker: Worker, code: int, advice: str, by_uuid: bool
) -> None:
    worker.stub.set(GPUS=2, FAIL=f"handle@1={code},by_uuid@1={code if by_uuid else 6}")
    reading = worker.ask("GPU-stub-0", "GPU-stub-1")["reading"]
    assert [(gpu["uuid"], gpu["lost"]) for gpu in reading["gpus"]] == [("GPU-stub-0", False)]
    assert advice in reading["troubles"][0]
    assert "GPU-stub-1" in reading["troubles"][0]
    assert "NVIDIA_VISIBLE_DEVICES" not in reading["troubles"][0]


def test_a_gpu_that_is_not_counted_and_answers_by_its_uuid_that_it_is_in_trouble_is_not_called_unseen(
    worker: Worker,
) -> None:
    worker.stub.set(GPUS=1, FAIL="by_uuid@1=999")
    assert "recreate the pod" in worker.ask("GPU-stub-0", "GPU-stub-1")["reading"]["troubles"][0]


def test_a_gpu_all_of_whose_fields_are_unknown_costs_its_neighbour_nothing(worker: Worker) -> None:
    more = {"memory", "clock_memory", "old_reasons"}
    fields = {each for each in REFUSED if not each.startswith("field_")} - {"name", "capability"} | more
    worker.stub.set(GPUS=2, FAIL=",".join(f"{each}@1=999" for each in sorted(fields)))
    reading = worker.ask("GPU-stub-0", "GPU-stub-1")["reading"]
    assert [gpu["uuid"] for gpu in reading["gpus"]] == ["GPU-stub-0"]
    assert "recreate the pod" in reading["troubles"][0]


def test_a_lost_gpu_is_lost_though_its_neighbour_can_not_be_read(worker: Worker) -> None:
    worker.stub.set(GPUS=2, FAIL="handle@0=999,by_uuid@0=999,handle@1=15,by_uuid@1=15")
    reading = worker.ask("GPU-stub-0", "GPU-stub-1")["reading"]
    assert [(gpu["uuid"], gpu["lost"]) for gpu in reading["gpus"]] == [("GPU-stub-1", True)]
    assert "recreate the pod" in reading["troubles"][0]


def test_a_mig_instance_that_can_not_be_read_is_told_by_its_code(worker: Worker) -> None:
    worker.stub.set(MIG="0:3", FAIL="mig_handle=4")
    reading = worker.ask("MIG-stub-0-1")["reading"]
    assert "may not open its device file" in reading["troubles"][0]


def test_a_driver_that_forgets_its_clients_is_no_lost_gpu(worker: Worker) -> None:
    worker.stop()
    worker.stub.set(UNKNOWN_AFTER=60)
    answers = [worker.ask("GPU-stub-0") for _ in range(2)]
    assert "reading" in answers[0]
    assert (answers[1]["kind"], answers[1]["trouble"]) == ("unknown", "Unknown Error")


def test_what_is_unknown_for_every_field_is_not_a_reading_without_fields(worker: Worker) -> None:
    worker.stub.set(FAIL="*@0=999")
    assert worker.ask("GPU-stub-0")["kind"] == "unknown"


@pytest.mark.parametrize(
    ("code", "kind"), [(9, "no_driver"), (12, "no_library"), (18, "mismatch"), (4, "no_permission"), (20, "other")]
)
def test_each_way_in_which_nvml_does_not_open_has_its_word(worker: Worker, code: int, kind: str) -> None:
    worker.stop()
    worker.stub.set(FAIL=f"init={code}")
    assert worker.ask("GPU-stub-0")["kind"] == kind
    worker.stub.set()
    assert "reading" in worker.ask("GPU-stub-0")


def test_no_gpu_at_all_has_its_word(worker: Worker) -> None:
    worker.stub.set(GPUS=0)
    assert worker.ask()["kind"] == "no_gpu"


# --- what is not asked


def test_processes_are_never_listed_and_a_reading_asks_each_thing_once(worker: Worker) -> None:
    worker.ask("GPU-stub-0")
    worker.stub.calls()
    worker.ask("GPU-stub-0")
    calls = worker.stub.calls()
    assert "processes" not in calls
    assert "init" not in calls
    assert len(calls) < 60


def test_with_release_nvml_is_closed_between_readings(library: Path, tmp_path: Path) -> None:
    with Worker(NvmlStub(library, tmp_path), "--release") as worker:
        worker.ask("GPU-stub-0")
        worker.ask("GPU-stub-0")
        calls = [call for call in worker.stub.calls() if call in ("init", "shutdown")]
    assert calls == ["init", "shutdown", "init", "shutdown"]
