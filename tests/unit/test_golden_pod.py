"""The golden check of a pod: what its outcome makes of the output check, what advice it gives, and what it costs the daemon."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sidecar.engines.protocol import EngineFacts
from sidecar.golden import GoldenResult, save
from sidecar.golden.loading import Loading
from sidecar.supervisor import golden_check
from sidecar.supervisor.pod import Pod
from sidecar.warmup.results import VerifyResult
from tests.unit.golden_scene import Scene, prompts, scene
from tests.unit.supervised import make_pod, observe

FACTS = EngineFacts("vllm", "0.0.0", "fake-model")
SAMPLED = VerifyResult("passed", "4 sampled answers are not degenerate.")


async def checked(here: Scene, root: Path, **settings: Any) -> tuple[golden_check.Checked, Pod]:
    """Compare as a pod does, with the recording in `golden.yaml`."""
    pod = make_pod(root, here.engine, **{"golden": root / "golden.yaml", **settings})
    observe(pod)
    return await golden_check.compare(pod, FACTS, SAMPLED, "salt"), pod


async def record(here: Scene, root: Path) -> None:
    """Record the engine as it is."""
    save(await here.record(prompts(4)), root / "golden.yaml")


@pytest.mark.parametrize(
    ("script", "outcome", "says"),
    [
        ({}, "passed", "is what was recorded"),
        ({"fault": "other_weights"}, "wrong", "8 of 8 prompts went wrong"),
        ({"generation": "500"}, "unchecked", "The golden file is not to blame: look at the engine's log."),
        ({"generation": "hang"}, "unchecked", "Raise WARMUP_GOLDEN_TIMEOUT_S (1 s now)"),
        ({"api_key": "other"}, "unchecked", "Check WARMUP_API_KEY_FILE."),
        ({"fault": "other_tokenizer"}, "unchecked", "record again"),
    ],
)
async def test_what_is_to_be_done_follows_from_what_was_wrong(
    tmp_path: Path, script: dict[str, str], outcome: str, says: str
):
    async with scene() as here:
        await record(here, tmp_path)
        for name, value in script.items():
            setattr(here.fake.script, name, value)
        found, _ = await checked(here, tmp_path, golden_timeout_s=1 if "hang" in script.values() else 60)
    assert found.result.outcome == outcome, found.result.sentence
    assert says in found.result.sentence


async def test_an_engine_that_sleeps_since_the_watcher_looked_is_sent_nothing_and_is_not_let_through(tmp_path: Path):
    async with scene() as here:
        await record(here, tmp_path)
        pod = make_pod(tmp_path, here.engine, golden=tmp_path / "golden.yaml", on_golden_failed="serve")
        observe(pod)
        before = here.fake.counters.texts
        here.fake.script.asleep = True
        found = await golden_check.compare(pod, FACTS, SAMPLED, "salt")
    assert found.result.outcome == "failed"
    assert found.result.sentence == "The engine is asleep, so nothing more was sent to it."
    assert here.fake.counters.texts == before


async def test_a_file_that_can_not_be_used_is_named_with_what_to_do_and_forgotten_once_it_is_mended(tmp_path: Path):
    async with scene() as here:
        await record(here, tmp_path)
        good = (tmp_path / "golden.yaml").read_text()
        (tmp_path / "golden.yaml").write_text("prompts: [")
        bad, pod = await checked(here, tmp_path)
        (tmp_path / "golden.yaml").write_text(good)
        mended = await golden_check.compare(pod, FACTS, SAMPLED, "again")
    assert bad.result.outcome == "unchecked"
    assert bad.result.sentence.endswith("Mend or replace the golden file.")
    assert (mended.result.outcome, pod.board.degraded) == ("passed", ())


async def test_a_volume_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = threading.Event()

    def hang(_: Path) -> Any:
        free.wait(30)

    monkeypatch.setattr(golden_check, "LOAD_S", 0.05)
    monkeypatch.setattr(golden_check, "_loader", lambda: Loading(hang))
    (tmp_path / "golden.yaml").touch()
    async with scene() as here:
        found, _ = await checked(here, tmp_path)
    free.set()
    assert "Look at the volume that it is on." in found.result.sentence


async def test_texts_are_compared_once_and_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    threads: list[threading.Thread] = []
    made = GoldenResult.to_json

    def noted(self: GoldenResult) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return made(self)

    monkeypatch.setattr(GoldenResult, "to_json", noted)
    async with scene() as here:
        await record(here, tmp_path)
        here.fake.script.fault = "other_weights"
        found, _ = await checked(here, tmp_path)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    assert found.golden is not None
    assert found.golden["failed"][0]["diff"]
