"""What a fallback makes of an engine's command and environment, by the launcher's own code run as a program, and its facts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.config.fallbacks import changes
from sidecar.handshake import ControlDirectory, Decision
from tests.unit.launching import Stage, output

CHECKOUT = Path(__file__).parents[2]
APPLY = """
import json, sys
from sidecar.launcher.change import Unchangeable, changed_command, changed_environment, is_change
found = []
for argv, change in json.load(sys.stdin):
    try:
        found.append(changed_command(argv, change) if is_change(change) else "no change")
    except Unchangeable as problem:
        found.append(str(problem))
print(json.dumps(found))
"""
CASES: dict[str, tuple[list[str], str, list[str]]] = {
    "replaces a value": (["vllm", "serve", "m", "--kv-cache-dtype", "fp8", "--x"], "--kv-cache-dtype auto",
                         ["vllm", "serve", "m", "--kv-cache-dtype", "auto", "--x"]),
    "replaces the other spelling": (["vllm", "serve", "--kv_cache_dtype=fp8"], "--kv-cache-dtype auto",
                                    ["vllm", "serve", "--kv-cache-dtype", "auto"]),
    "keeps the spelling with =": (["vllm", "serve", "--a", "1"], "--a=-2", ["vllm", "serve", "--a=-2"]),
    "replaces a negative number": (["vllm", "serve", "--a", "-1", "m"], "--a 2", ["vllm", "serve", "--a", "2", "m"]),
    "leaves one of several": (["vllm", "serve", "--a=1", "m", "--a", "3"], "--a 2", ["vllm", "serve", "--a", "2", "m"]),
    "adds what is not there": (["vllm", "serve", "m"], "--a 1 --b", ["vllm", "serve", "m", "--a", "1", "--b"]),
    "replaces several values": (["vllm", "serve", "--a", "1", "2", "--b"], "--a 3 4 5",
                                ["vllm", "serve", "--a", "3", "4", "5", "--b"]),
    "removes a flag": (["vllm", "serve", "--eager", "m"], "!--eager", ["vllm", "serve", "m"]),
    "removes a value": (["vllm", "serve", "--q", "fp8", "m"], "!--q *", ["vllm", "serve", "m"]),
    "leaves a tool before the engine": (["nsys", "--a", "1", "vllm", "serve"], "--a 2",
                                        ["nsys", "--a", "1", "vllm", "serve", "--a", "2"]),
    "works in a shell's script": (["sh", "-c", "cd / && exec vllm serve $M --a 'x' 2>&1 | tee log"], "--a 'y z'",
                                  ["sh", "-c", "cd / && exec vllm serve $M --a 'y z' 2>&1 | tee log"]),
    "leaves a folder of the engine's name": (["sh", "-c", "cd /opt/vllm && vllm serve m"], "--a 1",
                                             ["sh", "-c", "cd /opt/vllm && vllm serve m --a 1"]),
    "works in a shell in a shell": (["bash", "-lc", 'bash -c "vllm serve --a 1"'], "--a 2",
                                    ["bash", "-lc", "bash -c 'vllm serve --a 2'"]),
    "works behind a shell's words": (["sh", "-c", 'exec "$@"', "sh", "vllm", "serve", "--a", "1"], "--a 2",
                                     ["sh", "-c", 'exec "$@"', "sh", "vllm", "serve", "--a", "2"]),
    "knows no engine by name": (["python", "serve.py", "--a", "1"], "--a 2", ["python", "serve.py", "--a", "2"]),
    "leaves arguments to a variable": (["vllm", "serve", "--a", "1"], "V=1", ["vllm", "serve", "--a", "1"]),
}  # fmt: skip


def applied(cases: list[tuple[list[str], Any]]) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", APPLY], input=json.dumps(cases), cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    return list(json.loads(done.stdout))


def test_a_change_comes_to_the_engine_in_whatever_way_its_command_is_written() -> None:
    given = [(argv, changes(text)[0].to_json()) for argv, text, _ in CASES.values()]
    found = dict(zip(CASES, applied(given), strict=True))
    assert found == {name: wanted for name, (_, _, wanted) in CASES.items()}


def test_a_script_that_cant_be_taken_apart_is_left_alone_with_a_reason() -> None:
    [found] = applied([(["sh", "-c", "vllm serve 'm"], changes("--a 1")[0].to_json())])
    assert found == "its shell's script can't be taken apart"


@pytest.mark.parametrize("garbage", [None, [], {"text": 1}, {"text": "x", "options": [[]], "removed": []}])
def test_what_is_no_change_is_not_applied(garbage: Any) -> None:
    assert applied([(["vllm"], garbage)]) == ["no change"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


TELL = 'import os, sys; print(os.environ.get("VLLM_X"), os.environ.get("VLLM_Y"), sys.argv[1:])'


def test_the_launcher_hands_over_the_facts_of_each_fallback_and_starts_the_one_that_is_decided(stage: Stage) -> None:
    asked = changes("--kv-cache-dtype auto VLLM_X=2 !VLLM_Y; --b 1")
    stage.sidecar.prepare(stage.settings(fallbacks=tuple(each.to_json() for each in asked)))
    words = (sys.executable, "-I", "-c", TELL, "--kv-cache-dtype", "fp8")
    process = stage.launch(*words, env={"VLLM_X": "1", "VLLM_Y": "1"})
    waiting = stage.waiting()
    assert waiting.facts is not None
    variants = waiting.facts["fallbacks"]
    assert waiting.facts["argv"][-2:] == ["--kv-cache-dtype", "fp8"]
    assert [each["text"] for each in variants] == ["--kv-cache-dtype auto VLLM_X=2 !VLLM_Y", "--b 1"]
    assert variants[0]["facts"]["argv"][-2:] == ["--kv-cache-dtype", "auto"]
    assert variants[0]["facts"]["environment"]["VLLM_X"] == "2"
    assert "VLLM_Y" not in variants[0]["facts"]["environment"]
    assert stage.sidecar.decide(waiting.attempt, Decision("miss", change=asked[0].to_json()))
    assert output(process)[0].decode() == "2 None ['--kv-cache-dtype', 'auto']\n"
    assert stage.sidecar.state(waiting.attempt).change == asked[0].text


def test_a_decision_without_a_fallback_starts_the_command_as_it_was_asked_for(stage: Stage) -> None:
    asked = changes("--b 1")
    stage.sidecar.prepare(stage.settings(fallbacks=tuple(each.to_json() for each in asked)))
    process = stage.launch(sys.executable, "-I", "-c", TELL, "--b", "2")
    attempt = stage.waiting().attempt
    assert stage.sidecar.decide(attempt, Decision("miss"))
    assert output(process)[0].decode() == "None None ['--b', '2']\n"
    assert stage.sidecar.state(attempt).change == ""


def test_a_secret_in_the_command_is_not_told_by_the_facts_of_a_fallback(stage: Stage) -> None:
    stage.sidecar.prepare(stage.settings(fallbacks=(changes("--b 1")[0].to_json(),)))
    stage.launch(sys.executable, "-I", "-c", "pass", "--api-key", "hunter2hunter2")
    attempt = stage.waiting().attempt
    text = Path(stage.control, "attempts", attempt, "facts.json").read_text()
    assert "hunter2" not in text
    assert json.loads(text)["fallbacks"][0]["facts"]["argv"][-2:] == ["--b", "1"]
    assert isinstance(stage.sidecar, ControlDirectory)
    assert os.path.exists(stage.control / "sidecar.json")
