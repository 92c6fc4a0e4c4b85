"""Which GPUs the engine uses, from what the launcher saw; where that is not certain, none."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.gpu.chosen import wish

#: Two of a host's eight, as the engine's container has device files for them.
TWO = [
    {"index": 0, "name": "NVIDIA H200", "uuid": "GPU-aaaa1111", "bus": "0000:18:00.0"},
    {"index": 1, "name": "NVIDIA H200", "uuid": "GPU-bbbb2222", "bus": "0000:2a:00.0"},
]
UNLIKE = [TWO[0], {**TWO[1], "name": "NVIDIA L4"}]


def chosen(gpus: list[dict[str, Any]], **environment: str) -> tuple[str, ...] | None:
    return wish({"gpus": gpus, "environment": environment}).uuids


def test_the_device_files_of_the_engines_container_name_its_gpus() -> None:
    assert chosen(TWO) == ("GPU-aaaa1111", "GPU-bbbb2222")


@pytest.mark.parametrize("word", ["all", "void", "none", ""])
def test_words_of_the_toolkit_that_name_no_gpu_leave_the_device_files(word: str) -> None:
    assert chosen(TWO, NVIDIA_VISIBLE_DEVICES=word) == ("GPU-aaaa1111", "GPU-bbbb2222")


def test_uuids_of_the_toolkit_count_without_device_files() -> None:
    assert chosen([], NVIDIA_VISIBLE_DEVICES="GPU-x,GPU-y") == ("GPU-x", "GPU-y")


def test_a_mig_instance_is_narrower_than_its_gpus_device_file() -> None:
    assert chosen(TWO[:1], NVIDIA_VISIBLE_DEVICES="MIG-1234") == ("MIG-1234",)


def test_indices_of_the_toolkit_are_the_hosts_and_name_nothing_here() -> None:
    assert chosen([], NVIDIA_VISIBLE_DEVICES="3,5") is None


def test_cuda_narrows_to_the_uuids_it_is_given() -> None:
    assert chosen(TWO, CUDA_VISIBLE_DEVICES="GPU-bbbb", NVIDIA_VISIBLE_DEVICES="all") == ("GPU-bbbb",)


def test_an_index_among_equal_gpus_counts_by_bus() -> None:
    assert chosen(TWO, CUDA_VISIBLE_DEVICES="1") == ("GPU-bbbb2222",)


def test_an_index_among_unlike_gpus_is_not_guessed() -> None:
    assert chosen(UNLIKE, CUDA_VISIBLE_DEVICES="0") is None
    assert "not all alike" in wish({"gpus": UNLIKE, "environment": {"CUDA_VISIBLE_DEVICES": "0"}}).why


def test_an_index_among_unlike_gpus_counts_by_bus_when_cuda_is_told_so() -> None:
    assert chosen(UNLIKE, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ("GPU-bbbb2222",)


def test_all_indices_are_all_gpus_in_whatever_order() -> None:
    assert chosen(UNLIKE, CUDA_VISIBLE_DEVICES="1,0") == ("GPU-aaaa1111", "GPU-bbbb2222")


def test_cuda_ends_its_list_at_the_first_index_that_is_not_there() -> None:
    assert chosen(TWO, CUDA_VISIBLE_DEVICES="1,7,0") == ("GPU-bbbb2222",)


@pytest.mark.parametrize("nothing", ["", "-1", "NoDevFiles"])
def test_an_engine_that_cuda_shows_nothing_uses_no_gpu(nothing: str) -> None:
    assert chosen(TWO, CUDA_VISIBLE_DEVICES=nothing) == ()


def test_the_setting_counts_before_all_else() -> None:
    facts = {"gpus": TWO, "environment": {"CUDA_VISIBLE_DEVICES": "0"}}
    assert wish(facts, ["GPU-bbbb2222"]).uuids == ("GPU-bbbb2222",)


@pytest.mark.parametrize(
    "facts", [{}, {"gpus": None}, {"gpus": [7], "environment": 3}, {"gpus": [{"name": "NVIDIA H200"}]}]
)
def test_facts_that_say_nothing_name_no_gpu_and_say_what_to_do(facts: dict[str, Any]) -> None:
    found = wish(facts)
    assert found.uuids is None
    assert "WARMUP_GPUS" in found.why


def test_a_uuid_that_the_driver_has_not_filled_in_names_nothing() -> None:
    assert chosen([{**TWO[0], "uuid": "GPU-????????-????"}]) is None
