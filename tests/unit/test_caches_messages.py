"""Claims about what the daemon and the cache worker say to each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.caches.messages import (
    CommitEntry,
    FamilyCount,
    Progress,
    PublishRequest,
    PublishResult,
    RestoreRequest,
    RestoreResult,
)

EXAMPLES = [
    RestoreRequest(store="/s", live_cache="/l", facts={"argv": ["a"]}, attempt="1", exclude=("nv",)),
    RestoreResult(
        outcome="hit",
        sentence="Fine.",
        generation="g",
        generations={"exact": "g"},
        rejected={"digest": 1},
        families={"nv": FamilyCount(files=1, bytes=2, scope="toolchain")},
        commit=(CommitEntry(family="nv", staged="/a", live="/b"),),
        clear=("/l/x",),
    ),
    PublishRequest(store="/s", live_cache="/l", facts={}, attempt="1", restored={"exact": "g"}),
    PublishResult(outcome="published", sentence="Fine.", skipped={"unstable": 3}),
    Progress(bytes_done=1, bytes_total=2, files_done=3),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_json(message: Any) -> None:
    assert type(message).from_json(json.loads(json.dumps(message.to_json()))) == message


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    assert Progress.from_json({"bytes_done": 1, "bytes_total": 2, "files_done": 3, "speed": 4}).files_done == 3


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {"outcome": "hit"},
        {"outcome": "great", "sentence": ""},
        {"outcome": "hit", "sentence": "", "files": "many"},
        {"outcome": "hit", "sentence": "", "files": True},
        {"outcome": "hit", "sentence": "", "commit": [{"family": "nv"}]},
        {"outcome": "hit", "sentence": "", "rejected": {"a": "b"}},
    ],
)
def test_what_is_no_result_is_refused_with_a_sentence(wrong: object) -> None:
    with pytest.raises(ValueError, match="RestoreResult"):
        RestoreResult.from_json(wrong)
