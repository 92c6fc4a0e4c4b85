"""A store that takes no writes, then does, and a kernel that only live traffic asked for."""

from __future__ import annotations

from tests.integration.stories import KilledWarming, LateKernel


def test_a_pod_beside_a_store_without_write_permission_is_ready_without_a_flag(killed_warming: KilledWarming):
    assert not killed_warming.ready["flagged"], killed_warming.ready["reason"]


def test_the_status_says_that_the_store_takes_no_writes(killed_warming: KilledWarming):
    publish = killed_warming.published["publish"]
    assert publish["outcome"] == "read_only", publish["sentence"]
    assert "store" in publish["sentence"].lower(), publish["sentence"]


def test_a_request_whose_kernel_nothing_warmed_compiles_it(late_kernel: LateKernel):
    new = late_kernel.kernels_after.keys() - late_kernel.kernels_before.keys()
    assert new, "the request for the plug-in compiled nothing new"


def test_a_kernel_compiled_while_serving_is_counted_after_ready(late_kernel: LateKernel):
    counted = sum(late_kernel.counted["warmup"]["kernels_after_ready"].values())
    assert counted == len(late_kernel.kernels_after) - len(late_kernel.kernels_before)


def test_a_kernel_compiled_while_serving_is_told_with_what_follows_from_it(late_kernel: LateKernel):
    told = [event["text"] for event in late_kernel.counted["events"] if "compiled while serving" in event["text"]]
    assert len(told) == 1, late_kernel.counted["events"][-3:]


def test_a_kernel_compiled_while_serving_is_published_once_the_store_takes_it(late_kernel: LateKernel):
    assert late_kernel.published["publish"]["outcome"] == "published"
    assert late_kernel.kernels_stored == len(late_kernel.kernels_after)


def test_the_pod_stays_ready_throughout(late_kernel: LateKernel):
    assert late_kernel.published["timeline"][-1]["phase"] == "ready"
    assert late_kernel.published["since"] == late_kernel.counted["since"]
