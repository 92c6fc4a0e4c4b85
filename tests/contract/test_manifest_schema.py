"""The published schema of manifests says the same as the reader: what is in the store, and what is refused."""

from __future__ import annotations

import copy
import json
import os
import time
from importlib import resources
from typing import Any

import jsonschema
import pytest

from sidecar.caches import manifest as manifests
from sidecar.caches.messages import PublishRequest
from sidecar.caches.publish import PublishTools, publish
from sidecar.errors import WarmupError
from tests.fakes import live_cache as fake

SCHEMA = json.loads(resources.files("sidecar.caches").joinpath("manifest.schema.json").read_text("utf-8"))
CHECK = jsonschema.Draft202012Validator(SCHEMA)
HEAD = ("format", "scope", "key", "name", "parent", "created_unix_s", "created_by", "packs", "files")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    root = tmp_path_factory.mktemp("schema")
    live, store = root / "live", root / "store"
    store.mkdir()
    fake.fill(live)
    fake.put(live / "vllm/torch_compile_cache" / os.fsdecode(b"torch_aot_compile/\xff\xfe"), b"data")
    request = PublishRequest(store=str(store), live_cache=str(live), facts=fake.facts(), attempt="p")
    tools = PublishTools(clock=time.monotonic, now=time.time, sleep=lambda _s: None)
    assert publish(request, tools).outcome == "published"
    return [json.loads(place.read_text()) for place in sorted(store.glob("v1/*/*/generations/*/manifest.json"))]


def believed(value: dict[str, Any]) -> bool:
    """Say whether the reader takes a manifest."""
    try:
        manifests.from_json(value)
    except WarmupError:
        return False
    return True


def edited(value: dict[str, Any], where: tuple[str | int, ...], *new: Any) -> dict[str, Any]:
    """Change one member of a manifest, or remove it."""
    found = copy.deepcopy(value)
    holder: Any = found
    for step in where[:-1]:
        holder = holder[step]
    if new:
        holder[where[-1]] = new[0]
    else:
        del holder[where[-1]]
    return found


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_what_is_published_fits_the_schema_and_has_every_kind_of_entry(published: list[dict[str, Any]]) -> None:
    assert [value["scope"] for value in published] == ["exact", "toolchain"]
    assert any("link" in file for value in published for file in value["files"])
    for value in published:
        CHECK.validate(value)


def test_everything_written_is_in_the_schema(published: list[dict[str, Any]]) -> None:
    for value in published:
        assert set(value) == set(SCHEMA["properties"]) == set(HEAD)
        assert all(set(pack) == set(SCHEMA["properties"]["packs"]["items"]["properties"]) for pack in value["packs"])
        assert all(set(file) <= set(SCHEMA["$defs"]["file"]["properties"]) for file in value["files"])


@pytest.mark.parametrize("where", [*((name,) for name in HEAD), ("packs", 0, "digest"), ("packs", 0, "unpacked")])
def test_a_missing_member_is_refused_by_both(published: list[dict[str, Any]], where: tuple[str | int, ...]) -> None:
    value = edited(published[0], where)
    assert not CHECK.is_valid(value)
    assert not believed(value)


@pytest.mark.parametrize("name", ["family", "path", "mtime_ns", "mode", "size", "sha256", "pack", "offset"])
def test_a_missing_member_of_a_file_is_refused_by_both(published: list[dict[str, Any]], name: str) -> None:
    value = edited(published[1], ("files", 0, name))
    assert not CHECK.is_valid(value)
    assert not believed(value)


@pytest.mark.parametrize("where", [("later",), ("packs", 0, "later"), ("files", 0, "later")])
def test_an_unknown_member_is_passed_over_by_both(
    published: list[dict[str, Any]], where: tuple[str | int, ...]
) -> None:
    value = edited(published[1], where, {"x": 1})
    assert CHECK.is_valid(value)
    assert believed(value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("family", "../x"),
        ("path", "../x"),
        ("path", "a//b"),
        ("path", "a/./b"),
        ("path", "/etc/passwd"),
        ("path", ""),
        ("path", "y" * 1025),
        ("size", -1),
        ("size", "10"),
        ("size", (1 << 44) + 1),
        ("sha256", "AB" * 32),
        ("mode", 0o4755),
        ("mtime_ns", 1.5),
        ("link", ""),
    ],
)
def test_a_wrong_member_of_a_file_is_refused_by_both(published: list[dict[str, Any]], name: str, wrong: Any) -> None:
    value = edited(published[1], ("files", 0, name), wrong)
    assert not CHECK.is_valid(value)
    assert not believed(value)


@pytest.mark.parametrize("path", ["a..b/..c", ".ninja_log", "a/.cache/b.", "..."])
def test_names_with_dots_are_taken_by_both(published: list[dict[str, Any]], path: str) -> None:
    value = edited(published[1], ("files", 0, "path"), path)
    assert CHECK.is_valid(value)
    assert believed(value)


def test_a_format_of_the_future_is_refused_by_both(published: list[dict[str, Any]]) -> None:
    value = edited(published[0], ("format",), 2)
    assert not CHECK.is_valid(value)
    assert not believed(value)
