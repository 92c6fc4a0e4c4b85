"""`store killers`: what pods reported of deadly warm-up traffic is listed, and forgotten when asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.store import open_store
from sidecar.errors import UsageError
from sidecar.warmup.reported import report
from tests.unit.test_cli_store import run

KEY = "e0" * 16


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Make a store with two reports of one key, and another key that begins alike."""
    location = str(tmp_path)
    _report(location, KEY, "a" * 16, "prefill/8192", 1_900_000_000.0)
    _report(location, KEY, "b" * 16, "search/1 at once, up to 300 of 302 tokens", 1_900_000_060.0)
    _report(location, "e1" * 16, "c" * 16, "decode/256", 1_900_000_000.0)
    return location


def _report(location: str, key: str, boot: str, name: str, at: float) -> None:
    found: dict[str, Any] = {**report([name], "p", at), "boot": boot}
    opened = open_store(location, "read-write", lambda _: None)
    opened.record_boot("exact", key, f"none.killer.{int(at):012d}-{boot[:8]}", found)


def test_reports_of_a_key_are_listed_with_pod_and_time(store: str) -> None:
    code, said = run("killers", "e0", "--store", store)
    assert code == 0
    assert said.splitlines() == [
        "2030-03-17 17:46 UTC, pod aaaaaaaa: prefill/8192",
        "2030-03-17 17:47 UTC, pod bbbbbbbb: search/1 at once, up to 300 of 302 tokens",
    ]


def test_reports_are_given_as_json(store: str) -> None:
    [first, _] = json.loads(run("killers", "e0", "--json", "--store", store)[1])
    assert first == {"burst": "prefill/8192", "pod": "a" * 16, "at": 1_900_000_000.0}


def test_forgotten_reports_are_gone_and_those_of_other_keys_stay(store: str) -> None:
    assert "Forgotten" in run("killers", "e0", "--forget", "--store", store)[1]
    assert "No pod reported" in run("killers", "e0", "--store", store)[1]
    assert "decode/256" in run("killers", "e1", "--store", store)[1]


@pytest.mark.parametrize(("key", "why"), [("e", "beginning of 2 keys"), ("ff", "begins no key")])
def test_a_key_that_is_not_one_is_refused(store: str, key: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        run("killers", key, "--forget", "--store", store)
