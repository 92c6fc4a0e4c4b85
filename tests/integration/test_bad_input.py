"""Settings that are wrong, beside a real engine: a sentence that says what to do, and no more harm than needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.pod import API_KEY, END_S, PUBLISH_S, READY_S, Pod
from tests.integration.stories import publish_ended

#: A pod whose engine can't be asked is tried again every 30 s.
HEALED_S = 120.0

WRONG_FIELD = """\
description: One field is misspelt.
steps:
  - {kind: prefill, tokens: [16], output_token: 3}
"""


@pytest.fixture
def wrong_key(serving_pod: Pod) -> Iterator[Pod]:
    """Give the pod with a wrong API key in the daemon's file; the right one comes back afterwards."""
    serving_pod.key_file.write_text("not-the-key", encoding="ascii")
    yield serving_pod
    serving_pod.key_file.write_text(API_KEY, encoding="ascii")
    # The next daemon asks at once; this one only at its next try, half a minute later.
    serving_pod.replace_daemon(proven=False)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [("misspelt.yaml", WRONG_FIELD, "output_token"), ("missing.yaml", "", "missing.yaml")],
    ids=["a wrong field", "no such file"],
)
def test_a_profile_that_cannot_be_used_is_told_and_the_automatic_choice_warms(
    serving_pod: Pod, tmp_path: Path, name: str, content: str, told: str
):
    if content:
        (tmp_path / name).write_text(content, encoding="utf-8")
    daemon = serving_pod.replace_daemon(proven=False, profile=tmp_path / name)
    status = daemon.wait_until_ready(READY_S)
    sentences = [each for each in status["degraded"] if each.startswith("WARMUP_PROFILE=") and told in each]
    warmed = (status["warmup"]["profile"], status["warmup"]["outcome"], status["flagged"])
    assert (len(sentences), warmed) == (1, ("cpu", "converged", False)), status["degraded"]


def test_a_wrong_api_key_keeps_the_pod_unready_and_the_probe_names_the_setting(wrong_key: Pod):
    daemon = wrong_key.replace_daemon(proven=False)
    daemon.wait_for_phase("suspended", READY_S)
    code, sentence = daemon.get("/readyz")
    assert (code, "WARMUP_API_KEY_FILE" in sentence) == (503, True), sentence


def test_a_wrong_api_key_ends_the_warm_up_as_failed(wrong_key: Pod):
    daemon = wrong_key.replace_daemon(proven=False)
    status = daemon.wait_for_phase("suspended", READY_S)
    warmup = (status["warmup"]["outcome"], "WARMUP_API_KEY_FILE" in status["warmup"]["sentence"])
    assert warmup == ("failed", True), status["warmup"]


def test_a_wrong_api_key_is_healed_by_correcting_the_file(wrong_key: Pod):
    daemon = wrong_key.replace_daemon(proven=False)
    daemon.wait_for_phase("suspended", READY_S)
    wrong_key.key_file.write_text(API_KEY, encoding="ascii")
    assert not daemon.wait_until_ready(HEALED_S)["flagged"], daemon.status()["reason"]


def test_a_setting_that_does_not_exist_is_told_and_the_pod_is_ready(serving_pod: Pod):
    daemon = serving_pod.replace_daemon(proven=True, warm_budgets="1")
    status = daemon.wait_until_ready(END_S)
    assert any("WARMUP_WARM_BUDGETS" in each and "WARMUP_WARM_BUDGET_S" in each for each in status["degraded"])


def test_a_store_used_read_only_is_left_alone_and_the_status_says_so(serving_pod: Pod):
    daemon = serving_pod.replace_daemon(proven=False, store_mode="read-only", publish_quiet_s=1)
    daemon.wait_until_ready(READY_S)
    publish = daemon.wait_for(publish_ended, PUBLISH_S, "the publish into a store used read-only ended")["publish"]
    assert (publish["outcome"], "WARMUP_STORE_MODE" in publish["sentence"]) == ("read_only", True), publish["sentence"]
