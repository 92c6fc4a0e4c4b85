"""An engine that is one half of a pair, through a connector that needs a peer in every request: it is sent nothing."""

from __future__ import annotations

import json

import pytest

from tests.faults.rig import PATIENCE_S, Pod, throughout, until

#: A prefill engine behind a connector that reads its peer's address out of each request.
HALF = ("--kv-transfer-config", json.dumps({"kv_connector": "P2pNcclConnector", "kv_role": "kv_producer"}))


@pytest.mark.side_by_side
def test_it_serves_flagged_and_the_status_says_why(pod: Pod):
    daemon = pod.start_daemon()
    pod.start_container(words=HALF)
    daemon.wait_until_ready(PATIENCE_S)
    status = daemon.status()
    found = (status["warmup"]["outcome"], status["warmup"]["reason"], status["golden"]["outcome"], status["flagged"])
    assert found == ("unwarmed", "no_safe_payload", "skipped", True)
    assert "role is prefill through P2pNcclConnector" in status["warmup"]["sentence"]
    assert "role is prefill through P2pNcclConnector" in status["reason"]
    assert pod.engine()["requests"] == []


@pytest.mark.side_by_side
def test_it_is_held_where_the_policy_says_so_and_the_probe_says_why(pod: Pod):
    daemon = pod.start_daemon(on_unwarmed="hold")
    pod.start_container(words=HALF)
    until(lambda: "no safe local payload" in daemon.readyz()[1], "the reason in the probe's body")
    throughout(0.5, lambda: not daemon.is_ready, "unready")
    assert pod.engine()["requests"] == []
