"""The daemon's side of the control directory, against files as launchers write them and worse ones."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.errors import HandshakeError
from sidecar.handshake import CommitEntry, ControlDirectory, Decision, Grown, LauncherSettings, Line, Proven

FIRST, SECOND, THIRD = (f"179597500854784323{number}-1-0000000{number}" for number in (1, 2, 3))
SETTINGS = LauncherSettings("1", "http://127.0.0.1:8000", "/live", {"A": "1"}, ("/live/a",))
GARBAGE = [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"format": 7}']


class Launcher:
    """Writes what a launcher writes; it lives until closed."""

    def __init__(self, control: Path, attempt: str, facts: bool = True) -> None:
        self.path = control / "attempts" / attempt
        self.path.mkdir()
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if facts:
            self.write("facts.json", {"format": 1, "attempt": attempt, "argv": ["vllm"]})

    def write(self, name: str, value: object) -> None:
        (self.path / name).write_text(json.dumps(value))

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDirectory]:
    made = ControlDirectory(tmp_path / "run", "b007")
    made.prepare(SETTINGS)
    yield made
    made.close()


@pytest.fixture
def launcher(control: ControlDirectory) -> Iterator[Launcher]:
    made = Launcher(control.path, FIRST)
    yield made
    made.close()


def test_what_is_laid_down_can_be_used_by_the_engines_user_whatever_the_umask(tmp_path: Path):
    before = os.umask(0o077)
    try:
        control = ControlDirectory(tmp_path / "run", "b007")
        control.prepare(SETTINGS)
        control.close()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").iterdir()}
    assert modes == {"launcher.py": 0o775, "sidecar.json": 0o664, "sidecar.lock": 0o664, "attempts": 0o2775}
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o2775
    assert json.loads((tmp_path / "run" / "sidecar.json").read_text())["boot"] == "b007"


def test_the_launcher_that_is_laid_down_is_the_same_bytes_every_time_and_can_be_executed(control: ControlDirectory):
    first = (control.path / "launcher.py").read_bytes()
    control.prepare(SETTINGS)
    assert (control.path / "launcher.py").read_bytes() == first
    ended = subprocess.run([sys.executable, control.path / "launcher.py"], capture_output=True, text=True)
    assert (ended.returncode, "usage" in ended.stderr) == (2, True)


def test_a_second_daemon_is_refused_until_the_first_has_gone(control: ControlDirectory):
    other = ControlDirectory(control.path, "0the")
    with pytest.raises(HandshakeError, match="Another sidecar"):
        other.prepare(SETTINGS)
    assert json.loads((control.path / "sidecar.json").read_text())["boot"] == "b007"
    control.close()
    other.prepare(SETTINGS)
    other.close()


def test_a_directory_that_cant_be_made_is_a_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HandshakeError, match="WARMUP_CONTROL_DIR"):
        ControlDirectory(tmp_path / "file" / "run", "b").prepare(SETTINGS)


def test_the_current_attempt_is_the_newest_whose_launcher_lives(control: ControlDirectory):
    assert control.current() is None
    launchers = [Launcher(control.path, name) for name in (FIRST, SECOND, THIRD)]
    seen = []
    for launcher in reversed(launchers):
        state = control.current()
        assert state is not None
        seen.append(state.attempt)
        launcher.close()
    assert seen == [THIRD, SECOND, FIRST]
    assert control.current() is None


def test_another_observer_that_is_looking_is_no_launcher(control: ControlDirectory, launcher: Launcher):
    launcher.close()
    other = os.open(launcher.path / "lock", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)
    assert not control.state(FIRST).alive
    os.close(other)


def test_a_launcher_waits_from_its_facts_to_the_decision(control: ControlDirectory):
    launcher = Launcher(control.path, FIRST, facts=False)
    assert not control.state(FIRST).waiting
    launcher.write("facts.json", {"format": 1, "attempt": FIRST})
    assert control.state(FIRST).waiting
    assert control.decide(FIRST, Decision("miss"))
    assert not control.state(FIRST).waiting
    launcher.close()


@pytest.mark.parametrize("facts", [{"format": 1, "attempt": SECOND}, {"format": 2, "attempt": FIRST}, {}])
def test_facts_of_another_attempt_or_format_are_not_believed(
    control: ControlDirectory, launcher: Launcher, facts: dict
):
    launcher.write("facts.json", facts)
    assert control.state(FIRST).facts is None


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("name", ["facts.json", "decision.json", "started.json", "exited.json"])
def test_garbage_is_not_there_yet(control: ControlDirectory, launcher: Launcher, name: str, garbage: bytes):
    (launcher.path / name).write_bytes(garbage)
    state = control.state(FIRST)
    values = {
        "facts.json": state.facts,
        "decision.json": state.decided_by or None,
        "started.json": state.started,
        "exited.json": state.exited,
    }
    assert values[name] is None


def test_what_was_garbage_is_read_once_it_is_finished(control: ControlDirectory, launcher: Launcher):
    (launcher.path / "exited.json").write_text('{"code": 1, "sig')
    assert control.state(FIRST).exited is None
    launcher.write("exited.json", {"code": 1, "signal": None, "seconds": 2, "restarting": False, "last_lines": []})
    exited = control.state(FIRST).exited
    assert exited is not None
    assert (exited.code, exited.seconds) == (1, 2.0)


def test_a_fifo_in_the_place_of_a_file_holds_nobody(control: ControlDirectory, launcher: Launcher):
    os.mkfifo(launcher.path / "started.json")
    assert control.state(FIRST).started is None


@pytest.mark.parametrize("name", ["..", "x", "", "attempts", "1-1-zzzzzzzz", f"{FIRST}.tmp", f"../{FIRST}"])
def test_names_that_are_no_attempts_are_passed_over(control: ControlDirectory, name: str):
    if name not in ("..", "") and "/" not in name:
        (control.path / "attempts" / name).mkdir()
    assert control.current() is None
    state = control.state(name)
    assert (state.alive, state.facts) == (False, None)
    assert control.decide(name, Decision("miss")) is False


def test_the_first_decision_wins_and_says_what_to_do(control: ControlDirectory, launcher: Launcher):
    entry = CommitEntry("triton", "/live/.staging/x/triton", "/live/triton")
    decision = Decision("hit", (entry,), ("/live/inductor",), {"A": "1"}, ("B",), ("--x",))
    assert control.decide(FIRST, decision) is True
    assert control.decide(FIRST, Decision("cold")) is False
    assert json.loads((launcher.path / "decision.json").read_text()) == {
        "format": 1,
        "by": "sidecar",
        "restore": "hit",
        "commit": [vars(entry)],
        "clear": ["/live/inductor"],
        "environment": {"A": "1"},
        "unset": ["B"],
        "append": ["--x"],
    }
    assert control.state(FIRST).decided_by == "sidecar"
    assert sorted(path.name for path in launcher.path.iterdir()) == ["decision.json", "facts.json", "lock"]


def test_attempts_that_are_not_current_can_neither_be_decided_nor_restarted(control: ControlDirectory):
    old, new = Launcher(control.path, FIRST), Launcher(control.path, SECOND)
    assert not control.decide(FIRST, Decision("hit"))
    assert not control.request_restart(FIRST, "why")
    new.close()
    assert not control.decide(SECOND, Decision("hit"))
    assert control.decide(FIRST, Decision("hit"))
    assert control.request_restart(FIRST, "why")
    assert control.state(FIRST).restart_asked
    old.close()
    assert not control.request_restart(FIRST, "again")


def test_lines_are_told_once_and_a_half_written_one_waits(control: ControlDirectory, launcher: Launcher):
    lines = launcher.path / "lines.jsonl"
    assert control.new_lines(FIRST) == ()
    lines.write_bytes(b'{"kind": "jit", "text": "a"}\nnot json\n{"kind": "new", "text": "b"}\n{"kind": "hint", "te')
    assert control.new_lines(FIRST) == (Line("jit", "a"),)
    with lines.open("ab") as stream:
        stream.write(b'xt": "c"}\n')
    assert control.new_lines(FIRST) == (Line("hint", "c"),)
    assert control.new_lines(FIRST) == ()


def test_a_file_of_lines_larger_than_one_look_is_read_in_several(control: ControlDirectory, launcher: Launcher):
    count = 5000
    (launcher.path / "lines.jsonl").write_text(
        "".join(json.dumps({"kind": "jit", "text": f"{number} {'x' * 200}"}) + "\n" for number in range(count))
    )
    found: list[Line] = []
    while new := control.new_lines(FIRST):
        found += new
    assert [int(line.text.split()[0]) for line in found] == list(range(count))


def test_a_proven_engine_is_remembered_while_its_launcher_lives(control: ControlDirectory, launcher: Launcher):
    proven = Proven(FIRST, "1700000000.5", "3-abc")
    control.write_proven(proven)
    assert ControlDirectory(control.path, "next").read_proven() == proven
    launcher.close()
    assert control.read_proven() is None
    control.write_proven(Proven("", "1700000000.5"))
    assert control.read_proven() == Proven("", "1700000000.5")
    control.clear_proven()
    control.clear_proven()
    assert control.read_proven() is None


@pytest.mark.parametrize(
    "garbage",
    [*GARBAGE, b'{"attempt": "", "identity": "", "generation": ""}', b'{"identity": 1}'],
    ids=range(len(GARBAGE) + 2),
)
def test_a_proof_that_is_garbage_proves_nothing(control: ControlDirectory, garbage: bytes):
    (control.path / "proven.json").write_bytes(garbage)
    assert control.read_proven() is None


def test_a_directory_that_vanished_is_nobody_waiting(control: ControlDirectory, launcher: Launcher):
    (control.path / "attempts").rename(control.path / "away")
    assert control.current() is None
    assert control.decide(FIRST, Decision("hit")) is False
    with pytest.raises(HandshakeError):
        ControlDirectory(control.path / "nowhere", "x").write_proven(Proven("", "1"))


def test_a_look_is_cheap(control: ControlDirectory, launcher: Launcher):
    launcher.write(
        "facts.json", {"format": 1, "attempt": FIRST, "packages": {f"p{i}": {"record": "x" * 64} for i in range(200)}}
    )
    for number in range(5):
        Launcher(control.path, f"1795975008547843230-{number + 1}-0000000{number}").close()
    control.current()
    began = time.process_time()
    for _ in range(500):
        control.current()
        control.new_lines(FIRST)
    # About 0.1 ms of CPU: 20 looks a second cost 0.2 % of a core. Ten times that is something else than noise.
    assert (time.process_time() - began) / 500 < 0.001


def test_what_grew_is_read_anew_each_time_and_garbage_is_passed_over(control: ControlDirectory, launcher: Launcher):
    assert control.grown(FIRST) == control.grown("no attempt") == ()
    good = {"path": "/root/.x", "bytes": 5, "files": 1, "where": "home"}
    bad = [7, None, {}, {**good, "bytes": -1}, {**good, "bytes": True}, {**good, "path": 3}]
    launcher.write("unmanaged.json", {"format": 1, "grown": [*bad, good]})
    assert control.grown(FIRST) == (Grown("/root/.x", 5, 1, "home"),)
    launcher.write("unmanaged.json", {"format": 1, "grown": [{**good, "bytes": 9}]})
    assert control.grown(FIRST)[0].bytes == 9
    for content in GARBAGE:
        (launcher.path / "unmanaged.json").write_bytes(content)
        assert control.grown(FIRST) == ()
    launcher.write("unmanaged.json", {"format": 1, "grown": [good] * 1000})
    assert len(control.grown(FIRST)) <= 50


def test_a_launcher_of_an_older_version_starts_by_the_settings_of_this_one(control: ControlDirectory):
    settings = json.loads((control.path / "sidecar.json").read_text())
    assert settings["format"] == 1
    assert {"environment", "directories", "wait_s", "links", "extra_roots", "not_caches", "look_s"} <= set(settings)


def test_a_launcher_that_goes_on_to_its_next_attempt_while_it_is_looked_for_is_found(
    control: ControlDirectory, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
):
    look = ControlDirectory._newest_first
    opened: list[Launcher] = []

    def listed_just_before(self: ControlDirectory) -> list[str]:
        found = look(self)
        if not opened:
            opened.append(Launcher(control.path, SECOND))
            launcher.close()
        return found

    monkeypatch.setattr(ControlDirectory, "_newest_first", listed_just_before)
    state = control.current()
    opened[0].close()
    assert state is not None
    assert state.attempt == SECOND
