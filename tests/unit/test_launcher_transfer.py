"""Role and connectors of an engine that is half of a pair: told by name, everything else of the configuration is not."""

from __future__ import annotations

import json

import pytest

from sidecar.engines.outside import hints_of, launcher_place
from sidecar.engines.protocol import EngineFacts
from sidecar.engines.server_facts import facts_of_hints
from sidecar.launcher.facts import collect_facts
from sidecar.launcher.transfer import kv_transfer
from sidecar.warmup.roles import unwarmed

CONFIG = {
    "kv_connector": "P2pNcclConnector", "kv_role": "kv_producer", "kv_ip": "10.0.0.7", "password": "hunter2",
    "kv_connector_extra_config": {"proxy": "10.0.0.9:1", "connectors": [{"kv_connector": "Inner", "kv_ip": "10.1.1.1"}]},
}  # fmt: skip
SERVE = ["vllm", "serve", "m"]
NAMES = {
    "kv_role": "kv_producer",
    "kv_connector": "P2pNcclConnector",
    "kv_connector_extra_config": {"connectors": [{"kv_connector": "Inner"}]},
}


def _facts(argv: list[str]) -> EngineFacts:
    """Learn an engine from the facts that a launcher with this command writes."""
    return facts_of_hints(hints_of([launcher_place(collect_facts(argv, {"PATH": ""}, {}))]))


@pytest.mark.parametrize("equals", [False, True], ids=("two words", "one word"))
def test_names_are_told_and_addresses_and_secrets_are_not(equals: bool):
    text = json.dumps(CONFIG)
    words = [f"--kv-transfer-config={text}"] if equals else ["--kv_transfer_config", text]
    assert kv_transfer([*SERVE, *words]) == NAMES


def test_single_fields_are_told_too():
    words = ["--kv-transfer-config.kv_role", "kv_consumer", "--kv-transfer-config.kv_ip=10.0.0.1"]
    assert kv_transfer([*SERVE, *words]) == {"kv_role": "kv_consumer"}


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"kv_role": {"a": 1}, "kv_connector": "a b; c"}'])
def test_what_can_not_be_read_is_told_as_nothing(text: str):
    assert kv_transfer([*SERVE, "--kv-transfer-config", text]) == {}


def test_an_engine_that_is_no_half_has_no_such_fact():
    assert kv_transfer(SERVE) is None
    assert _facts(SERVE).role == "both"


@pytest.mark.parametrize("shell", [False, True], ids=("words", "a shell's words"))
def test_the_role_of_an_engine_behind_the_launcher_is_known_and_nothing_is_sent_to_it(shell: bool):
    words = [*SERVE, "--kv-transfer-config", json.dumps(CONFIG)]
    argv = ["sh", "-c", "exec vllm serve m --kv-transfer-config '" + words[-1] + "'"] if shell else words
    written = json.dumps(collect_facts(argv, {"PATH": ""}, {}))
    facts = _facts(argv)
    assert (facts.role, facts.kv_connectors) == ("prefill", ("P2pNcclConnector",))
    assert "no safe local payload" in unwarmed(facts)
    assert not any(secret in written for secret in ("hunter2", "10.0.0.7", "10.0.0.9", "10.1.1.1"))
