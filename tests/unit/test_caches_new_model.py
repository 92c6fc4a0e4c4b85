"""A store between deployments: what another model, pod or image finds of what somebody else has published."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from sidecar.caches.families import BY_NAME
from sidecar.caches.messages import PublishRequest, RestoreRequest, RestoreResult
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.restore import RestoreTools, restore
from tests.fakes import live_cache as fake

MODEL_A = ["/usr/local/bin/vllm", "serve", "/models/a", "--max-model-len", "2048", "--port", "8000"]
MODEL_B = ["/usr/local/bin/vllm", "serve", "/models/b", "--max-model-len", "8192", "--port", "8000"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Give a store that holds what model A compiled."""
    live, store = tmp_path / "live", tmp_path / "store"
    live.mkdir()
    store.mkdir()
    fake.fill(live)
    request = PublishRequest(store=str(store), live_cache=str(live), facts=fake.facts(argv=MODEL_A), attempt="a")
    tools = PublishTools(clock=time.monotonic, now=time.time, sleep=lambda _s: None)
    assert publish(request, tools).outcome == "published"
    shutil.rmtree(live)
    live.mkdir()
    return store


def restored(store: Path, **facts: Any) -> RestoreResult:
    """Restore for an engine with these facts."""
    live = store.with_name("live")
    request = RestoreRequest(store=str(store), live_cache=str(live), facts=fake.facts(**facts), attempt="1-1-00000000")
    return restore(request, RestoreTools(clock=time.monotonic, sleep=lambda _s: None))


def test_a_new_model_on_a_known_image_and_gpu_starts_with_the_toolchain_families_alone(store: Path) -> None:
    result = restored(store, argv=MODEL_B)
    assert result.outcome == "partial"
    assert {BY_NAME[name].scope for name in result.families} == {"toolchain"}
    assert {"triton", "deep_gemm", "flashinfer"} <= set(result.families)
    assert set(result.generations) == {"toolchain"}


def test_the_sentence_about_a_new_model_names_what_is_another_one(store: Path) -> None:
    result = restored(store, argv=MODEL_B)
    assert "argv.command" in result.sentence
    assert [one.split(" is ")[0] for one in result.differs] == ["argv.--max-model-len", "argv.command"]


def test_what_differs_from_pod_to_pod_never_stands_in_the_explanation(store: Path) -> None:
    noise = {
        "VLLM_HOST_IP": "10.9.9.9", "VLLM_PORT": "tcp://10.96.0.7:8000",
        "NVIDIA_VISIBLE_DEVICES": "GPU-8a1f", "VLLM_API_KEY": "sha256:aa", "VLLM_USE_AOT_COMPILE": "0",
    }  # fmt: skip
    quiet = restored(store, argv=[*MODEL_B, "--served-model-name", "b"], hostname="engine-0", attempt="9-9-99999999")
    loud = restored(
        store, argv=[*MODEL_B, "--port", "1", "--api-key", "k"], environment=noise, hostname="engine-7", uid=7, cwd="/x"
    )
    assert loud.differs == quiet.differs


@pytest.mark.parametrize(
    "other",
    [
        {"gpus": [{"name": "NVIDIA RTX 5090", "index": 0, "sm": "sm120"}]},
        {"packages": {"vllm": {"version": "0.33.0", "record": "ff" * 32}}},
        {"driver": {"version": "590.44"}},
        {"python": {"version": "3.12.3", "prefix": "/opt/other", "abi": "cpython-312"}},
    ],
    ids=["another SM version", "a rebuilt image of the same versions", "another driver", "another prefix"],
)
def test_nothing_at_all_is_laid_down_where_the_toolchain_is_another(store: Path, other: dict[str, Any]) -> None:
    result = restored(store, argv=MODEL_A, **other)
    assert (result.outcome, result.commit, result.files) == ("miss", (), 0)
