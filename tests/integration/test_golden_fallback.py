"""A real vLLM with other weights than the recorded ones: the launcher restarts it with a fallback, and it is ready."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.demo.engine_setup import EnginePaths
from tests.integration.pod import END_S, PUBLISH_S, READY_S, Pod
from tests.integration.stories import publish_ended
from tests.integration.trusted_engine import LIMITS, make_model

#: Without graphs, which take a minute more at each of the starts.
WORDS = (*LIMITS, "--enforce-eager", "--load-format")
PROFILE = """\
description: A few requests.
steps:
  - {kind: prefill, tokens: [1, 16, 128], output_tokens: 2}
search: {enabled: false}
converge: {tolerance: 100, floor_s: 10, random_draws: 0}
"""
PROMPTS = """\
version: 1
prompts:
  - {name: tides, text: "The tide rises twice a day because"}
  - {name: bread, text: "To bake bread one needs"}
  - {name: count, text: "One, two, three,"}
  - {name: code, text: "def add(a, b):"}
"""
GOLDEN_S = 300.0


def record(pod: Pod, golden: Path) -> None:
    """Record what the pod's engine says."""
    prompts = golden.with_name("prompts.yaml")
    prompts.write_text(PROMPTS)
    words = ["golden", "record", "--url", pod.workplace.engine_url, "--api-key-file", str(pod.key_file)]
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", *words, "--out", str(golden), "--prompts", str(prompts)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=GOLDEN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def engine_words(pod: Pod) -> list[str]:
    newest = sorted((pod.workplace.control / "attempts").glob("[0-9]*/started.json"))[-1]
    return list(json.loads(newest.read_text())["engine_argv"])


@pytest.mark.slow
def test_an_engine_with_other_weights_falls_back_to_the_recorded_ones_and_the_next_pod_begins_there(
    tmp_path: Path, engine_paths: EnginePaths, tiny_model: Path
) -> None:
    model = make_model(engine_paths, "sharp", os.fspath(tiny_model), os.fspath(tmp_path / "sharp"))
    golden, profile = tmp_path / "golden.yaml", tmp_path / "few.yaml"
    profile.write_text(PROFILE)
    pod = Pod(tmp_path / "pod", engine_paths, model, *WORDS)
    settings: dict[str, Any] = {"profile": profile}
    try:
        daemon = pod.start_daemon(**settings)
        pod.start_engine("auto")
        daemon.wait_until_ready(READY_S)
        record(pod, golden)
        daemon.wait_for(publish_ended, PUBLISH_S, "the first publish ended")
        pod.move_to_another_node()

        settings |= {
            "golden": golden,
            "fallbacks": "--load-format auto",
            "on_golden_failed": "retry-cold,fallback,hold",
        }
        daemon = pod.start_daemon(**settings)
        # Random weights: what a model says that was loaded from the wrong file.
        pod.start_engine("dummy")
        status = daemon.wait_until_ready(2 * READY_S)
        assert status["golden"]["golden"]["outcome"] == "passed"
        assert status["engine"]["fallback"]["change"] == "--load-format auto"
        assert status["flagged"] is True
        assert engine_words(pod)[-2:] == ["--load-format", "auto"]
        store = pod.workplace.store
        daemon.wait_for(lambda _: any(store.glob("v1/exact/*/fallbacks/*.json")), END_S, "the fallback is remembered")
        pod.move_to_another_node()

        daemon = pod.start_daemon(**settings)
        pod.start_engine("dummy")
        daemon.wait_until_ready(READY_S)
        assert len(list((pod.workplace.control / "attempts").glob("[0-9]*"))) == 1
        assert engine_words(pod)[-2:] == ["--load-format", "auto"]
    finally:
        pod.end()
