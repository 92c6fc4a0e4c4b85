"""Levels in, changes out: what the engine's port and the control directory show becomes each event once."""

from __future__ import annotations

import fcntl
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar import lifecycle as lc
from sidecar.caches.client import CacheClient
from sidecar.caches.fingerprint import fingerprint
from sidecar.config import Settings
from sidecar.engines.protocol import EngineStats
from sidecar.engines.watcher import Observation
from sidecar.handshake import ControlDirectory, LauncherSettings
from sidecar.lifecycle import Mode
from sidecar.metrics import Metrics
from sidecar.status import Board
from sidecar.supervisor.claiming import Keeper
from sidecar.supervisor.observers import AttemptObserver, EngineObserver, with_sm
from sidecar.supervisor.pod import Pod


def make_pod(now: list[float], **settings: Any) -> Pod:
    board = Board(lambda: now[0], lambda: now[0], "0", "launcher")
    caches = CacheClient(lambda: now[0])
    return Pod(
        settings=Settings(**settings),
        mode=Mode.LAUNCHER,
        boot="boot",
        host_boot="host",
        engine=None,
        name="pod-0",
        caches=caches,
        keeper=Keeper(caches),
        board=board,
        metrics=Metrics("0", "launcher"),
        clock=lambda: now[0],
        rng=random.Random(1),
    )


class Launcher:
    """The launcher's side of one attempt, written by hand; its lock is held until `die`."""

    def __init__(self, control: Path, name: str) -> None:
        self.name = name
        self.folder = control / "attempts" / name
        self.folder.mkdir(parents=True)
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def write(self, file: str, content: dict[str, Any]) -> None:
        (self.folder / f"{file}.tmp").write_text(json.dumps({"format": 1, "attempt": self.name, **content}))
        (self.folder / f"{file}.tmp").rename(self.folder / file)

    def start(self, by: str = "sidecar") -> None:
        self.write("decision.json", {"by": by, "why": ""})
        self.write("started.json", {"pid": 7, "by": by, "committed": [], "failed": {}, "engine_argv": ["vllm"]})

    def exit(self, code: int | None = 1, lines: tuple[str, ...] = (), restarting: bool = False) -> None:
        self.write(
            "exited.json",
            {"code": code, "signal": None, "seconds": 3.0, "restarting": restarting, "last_lines": list(lines)},
        )
        self.die()

    def die(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class Scene:
    """A control directory, an observer, and the events it has posted."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.now = [100.0]
        self.pod = make_pod(self.now, **settings)
        self.path = tmp_path / "control"
        self.control = ControlDirectory(self.path, "boot")
        self.control.prepare(LauncherSettings("0", "http://127.0.0.1:1", "/live"))
        self.events: list[lc.Event] = []
        self.observer = AttemptObserver(self.pod, self.control, self.events.append)
        self.launchers: list[Launcher] = []

    def launcher(self, number: int) -> Launcher:
        launcher = Launcher(self.path, f"{1_800_000_000_000_000_000 + number}-1-0000000{number}")
        self.launchers.append(launcher)
        return launcher

    def look(self) -> list[lc.Event]:
        self.observer.look()
        new, self.events[:] = list(self.events), []
        return new


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    for launcher in found.launchers:
        launcher.die()
    found.control.close()


def test_an_attempt_opens_when_its_facts_are_there_and_only_once(scene: Scene) -> None:
    launcher = scene.launcher(1)
    assert scene.look() == []
    launcher.write("facts.json", {"argv": ["vllm", "serve"]})
    assert scene.look() == [lc.AttemptOpened(launcher.name)]
    assert scene.look() == []
    assert scene.pod.facts["argv"] == ["vllm", "serve"]


def test_a_start_that_the_launcher_decided_itself_is_told_as_such(scene: Scene) -> None:
    launcher = scene.launcher(1)
    launcher.write("facts.json", {})
    scene.look()
    launcher.start(by="launcher")
    assert scene.look() == [lc.AttemptStarted(launcher.name, "launcher")]


def test_a_daemon_that_finds_a_running_engine_hears_of_its_start_and_not_of_its_opening(scene: Scene) -> None:
    launcher = scene.launcher(1)
    launcher.write("facts.json", {})
    launcher.start()
    assert scene.look() == [lc.AttemptStarted(launcher.name, "sidecar")]


def test_an_engine_that_dies_for_want_of_memory_does_not_count_against_the_cache(scene: Scene) -> None:
    launcher = scene.launcher(1)
    launcher.write("facts.json", {})
    launcher.start()
    scene.look()
    launcher.exit(1, ("torch.OutOfMemoryError: CUDA out of memory.",))
    [closed] = scene.look()
    assert isinstance(closed, lc.AttemptClosed)
    assert (closed.attempt, closed.counts) == (launcher.name, False)
    assert scene.pod.metrics.value("engine_restarts_total", cause="out_of_memory") == 1


def test_a_crash_counts_and_its_last_words_are_in_the_status(scene: Scene) -> None:
    launcher = scene.launcher(1)
    launcher.write("facts.json", {})
    launcher.start()
    scene.look()
    launcher.exit(1, ("AssertionError: expected size 4 but got 8",))
    [closed] = scene.look()
    assert isinstance(closed, lc.AttemptClosed)
    assert closed.counts
    assert "expected size 4 but got 8" in scene.pod.board.engine["last_exit"]["sentence"]


def test_a_launcher_that_was_killed_without_a_word_counts_against_nobody(scene: Scene) -> None:
    launcher = scene.launcher(1)
    launcher.write("facts.json", {})
    launcher.start()
    scene.look()
    launcher.die()
    [closed] = scene.look()
    assert isinstance(closed, lc.AttemptClosed)
    assert not closed.counts


def test_a_new_attempt_closes_the_old_one_first(scene: Scene) -> None:
    old = scene.launcher(1)
    old.write("facts.json", {})
    old.start()
    scene.look()
    old.exit(0)
    new = scene.launcher(2)
    new.write("facts.json", {})
    closed, opened = scene.look()
    assert isinstance(closed, lc.AttemptClosed)
    assert closed.attempt == old.name
    assert opened == lc.AttemptOpened(new.name)


def test_a_container_that_is_asked_to_end_is_told_once(scene: Scene) -> None:
    launcher = scene.launcher(1)
    launcher.write("facts.json", {})
    launcher.start()
    scene.look()
    launcher.write("terminating.json", {})
    assert scene.look() == [lc.AttemptTerminating(launcher.name)]
    assert scene.look() == []


def test_an_fp8_kv_cache_without_scales_is_told_once_a_start(scene: Scene) -> None:
    launcher = scene.launcher(1)
    text = "WARNING [kv_cache.py:163] Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended, verify"
    (launcher.folder / "lines.jsonl").write_text((json.dumps({"kind": "hint", "text": text}) + "\n") * 2)
    scene.look()
    told = [event["text"] for event in scene.pod.board.to_json()["events"] if "scale 1.0" in event["text"]]
    assert len(told) == 1
    assert "WARMUP_GOLDEN" in told[0]


def test_compile_lines_of_the_engine_are_counted_per_attempt(scene: Scene) -> None:
    first = scene.launcher(1)
    line = json.dumps({"kind": "jit", "text": "Triton kernel JIT compilation during inference: k"}) + "\n"
    (first.folder / "lines.jsonl").write_text(line * 3)
    scene.look()
    assert scene.pod.jit_lines == 3
    first.die()
    scene.launcher(2)
    scene.look()
    assert scene.pod.jit_lines == 0


def observed(state: str, identity: str = "process:1", **stats: Any) -> Observation:
    return Observation(state, identity, f"The engine is {state}.", EngineStats(**stats) if stats else None)


def test_an_engine_is_steady_after_five_equal_reports_and_not_before() -> None:
    events: list[lc.Event] = []
    observer = EngineObserver(make_pod([0.0]), events.append)
    for _ in range(5):
        observer.report(observed("up"))
    observer.report(observed("up", "process:2"))
    steady = [event.steady for event in events if isinstance(event, lc.EngineObserved)]
    assert steady == [False, False, False, False, True, False]


def test_numbers_that_the_engine_does_not_show_are_left_out_of_the_metrics() -> None:
    pod = make_pod([0.0])
    EngineObserver(pod, lambda event: None).report(observed("up", running=2.0))
    assert pod.metrics.value("engine_requests_running", phase="warmup") == 2.0
    assert pod.metrics.value("engine_kv_cache_usage_ratio", phase="warmup") is None


def test_an_engine_process_that_was_replaced_is_counted() -> None:
    pod = make_pod([0.0])
    observer = EngineObserver(pod, lambda event: None)
    for identity in ("process:1", "", "process:1", "process:2"):
        observer.report(observed("up", identity))
    assert pod.metrics.value("engine_restarts_total", cause="replaced") == 1


def test_the_seconds_to_the_first_answer_are_counted_from_the_attempts_start() -> None:
    now = [100.0]
    pod = make_pod(now)
    pod.opened_at = 100.0
    observer = EngineObserver(pod, lambda event: None)
    observer.report(observed("gone", ""))
    now[0] = 134.5
    observer.report(observed("up"))
    now[0] = 200.0
    observer.report(observed("up"))
    assert pod.board.engine["healthy_after_s"] == 34.5


def test_a_limit_that_only_the_engines_log_tells_is_a_hint_with_its_source(scene: Scene) -> None:
    launcher = scene.launcher(1)
    text = "INFO [scheduler.py:252] Chunked prefill is enabled with max_num_batched_tokens=8192."
    (launcher.folder / "lines.jsonl").write_text(json.dumps({"kind": "hint", "text": text}) + "\n")
    scene.look()
    hint = scene.pod.line_hints["max_num_batched_tokens"]
    assert (hint.value, hint.source) == (8192, "the engine's log")


def test_products_of_one_sm_version_have_one_toolchain_key_and_keep_their_own_exact_one() -> None:
    def keys(product: str) -> tuple[str, str]:
        known = fingerprint(with_sm({"gpus": [{"index": 0, "name": product}]}), "/live")
        return known.toolchain_key, known.exact_key

    (hopper, hopper_exact), (other, other_exact) = keys("NVIDIA H100 80GB HBM3"), keys("NVIDIA H200")
    assert hopper == other
    assert hopper_exact != other_exact
    assert keys("NVIDIA A100-SXM4-80GB")[0] != hopper


def test_a_burst_is_left_out_after_one_death_by_itself_or_two_from_outside() -> None:
    pod = make_pod([0.0])
    pod.suspects.update(["prefill/8192"])
    pod.last_end = "killed"
    assert pod.convict() == frozenset()
    pod.suspects.update(["prefill/8192"])
    assert pod.convict() == {"prefill/8192"}
    pod.suspects.update(["mixed/1"])
    assert pod.convict() == {"prefill/8192"}
    pod.last_end = "out_of_memory"
    assert pod.convict() == {"prefill/8192", "mixed/1"}


def test_two_random_draws_of_which_engines_died_from_outside_are_left_out_both() -> None:
    pod = make_pod([0.0])
    pod.last_end = "killed"
    draws = {f"draws/{count} at once, up to 9 of {count}00 tokens" for count in (2, 3)}
    pod.suspects.update([min(draws)])
    assert pod.convict() == frozenset()
    pod.suspects.update([max(draws)])
    assert pod.convict() == draws


STALLED = "(EngineCore pid=9) ERROR [core.py:720] TimeoutError: RPC call to execute_model timed out."


def _stall(scene: Scene, live: Path) -> lc.AttemptClosed:
    scene.pod.live_cache = str(live)
    launcher = scene.launcher(1)
    launcher.write("facts.json", {"argv": ["vllm"]})
    scene.look()
    launcher.exit(lines=(STALLED,))
    return next(event for event in scene.look() if isinstance(event, lc.AttemptClosed))


def test_a_step_that_timed_out_while_kernels_were_compiled_is_a_compile_stall(scene: Scene, tmp_path: Path) -> None:
    kernel = tmp_path / "live" / "triton" / "A" / "k.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"x")
    closed = _stall(scene, tmp_path / "live")
    assert (closed.counts, closed.passing) == (False, True)
    assert closed.detail.startswith("Compile stall:")
    assert scene.pod.metrics.value("engine_restarts_total", cause="compile_stall") == 1


def test_a_step_that_timed_out_on_restored_kernels_alone_counts_against_them(scene: Scene, tmp_path: Path) -> None:
    kernel = tmp_path / "live" / "triton" / "A" / "k.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"x")
    os.utime(kernel, (50.0, 50.0))
    closed = _stall(scene, tmp_path / "live")
    assert (closed.counts, closed.passing) == (True, False)


def test_a_burst_is_not_left_out_for_a_compile_stall_however_often() -> None:
    pod = make_pod([0.0])
    for _ in range(3):
        pod.suspect(["prefill/8192"])
        pod.last_end = "compile_stall"
        assert pod.convict() == frozenset()
    pod.suspect(["prefill/8192"])
    pod.last_end = "out_of_memory"
    assert pod.convict() == {"prefill/8192"}


def test_fallbacks_that_the_launcher_cant_apply_come_with_the_attempt_and_are_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path, fallbacks="--a 1; --b 2", on_golden_failed="fallback,hold")
    launcher = scene.launcher(1)
    known = [{"text": "--a 1", "problem": "its shell's script can't be taken apart"}, {"text": "--b 2", "facts": {}}]
    launcher.write("facts.json", {"fallbacks": known})
    assert lc.AttemptOpened(launcher.name, frozenset({1})) in scene.look()
    told = [event["text"] for event in scene.pod.board.to_json()["events"]]
    assert any("Fallback 1, `--a 1`, can't be applied: its shell's script" in text for text in told)
    launcher.die()
    scene.control.close()
