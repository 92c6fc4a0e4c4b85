"""Places that no variable moves: links into the live cache, a HOME that can't be written, caches that nobody knows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.handshake import Decision, Grown
from sidecar.launcher import unmanaged
from sidecar.launcher.attempts import Attempt
from tests.unit.launching import SHELL, Stage, files_in, output, until, write

PATHS = {"PATH": "/bin:/usr/bin"}
PLACE = "~/.quack/cache"


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[Any]:
    made: list[Stage] = []

    def stage(**changes: Any) -> Stage:
        live = tmp_path / "live"
        usual = {
            "links": {PLACE: f"{live}/quack_autotune", "$TMPDIR/x/tuned": f"{live}/x"},
            "directories": (f"{live}/triton", f"{live}/quack_autotune", f"{live}/x"),
            "look_s": 0.05,
            "not_caches": ("~/.cache/huggingface", "$TMPDIR/known_*"),
        }
        made.append(Stage(tmp_path, {**usual, **changes}))
        (tmp_path / "tmp").mkdir()
        return made[-1]

    yield stage
    for one in made:
        one.close()


def run(stage: Stage, script: str, **env: str) -> tuple[str, str]:
    """Run a shell script as the engine; give what it printed and what the launcher said."""
    temporary = {"TMPDIR": str(stage.root / "tmp")}
    stage.launch(SHELL, "-c", script, env={**PATHS, **temporary, **env})
    assert stage.sidecar.decide(stage.waiting().attempt, Decision("miss"))
    out, err = output(stage.launched[-1])
    return out.decode(), err


def test_what_the_engine_writes_at_a_linked_place_lies_in_the_live_cache(stages: Any):
    stage = stages()
    run(stage, "echo tuned > ~/.quack/cache/k; echo more > $TMPDIR/x/tuned/k")
    assert files_in(stage.live / "quack_autotune") == {"k": "tuned\n"}
    assert files_in(stage.live / "x") == {"k": "more\n"}


def test_links_are_taken_away_when_the_engine_has_ended(stages: Any):
    stage = stages()
    said = run(stage, "test -L ~/.quack/cache && echo linked")
    assert said == ("linked\n", "")
    assert not os.path.lexists(stage.root / "home/.quack/cache")
    assert not os.path.lexists(stage.root / "tmp/x/tuned")


def test_an_empty_directory_gives_way_to_the_link(stages: Any):
    stage = stages()
    (stage.root / "home/.quack/cache").mkdir(parents=True)
    run(stage, "echo tuned > ~/.quack/cache/k")
    assert files_in(stage.live / "quack_autotune") == {"k": "tuned\n"}


def test_a_link_that_a_killed_launcher_left_is_used_again(stages: Any):
    stage = stages()
    place = stage.root / "home/.quack/cache"
    place.parent.mkdir()
    place.symlink_to(stage.live / "quack_autotune")
    out, err = run(stage, "echo tuned > ~/.quack/cache/k && echo fine")
    assert (out, err) == ("fine\n", "")
    assert not os.path.lexists(place)


def test_files_of_the_user_stay_where_they_are_and_the_engine_starts(stages: Any):
    stage = stages()
    write(stage.root / "home/.quack/cache", {"mine": "kept"})
    out, err = run(stage, "cat ~/.quack/cache/mine")
    assert out == "kept"
    assert "can't be linked" in err
    assert files_in(stage.root / "home/.quack/cache") == {"mine": "kept"}


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_or_a_foreign_link_at_the_place_is_not_replaced(stages: Any, kind: str):
    stage = stages()
    place = stage.root / "home/.quack/cache"
    place.parent.mkdir()
    if kind == "file":
        place.write_text("mine")
    else:
        (stage.root / "elsewhere").mkdir()
        place.symlink_to(stage.root / "elsewhere")
    out, err = run(stage, "echo runs")
    assert out == "runs\n"
    assert "can't be linked" in err
    assert place.read_text() == "mine" if kind == "file" else place.readlink() == stage.root / "elsewhere"


def test_no_link_is_left_on_a_volume_that_other_pods_see(stages: Any):
    stage = stages()
    volume = stage.root / "home"
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(volume)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        _, err = run(stage, "test -e ~/.quack && echo made")
        assert "outlives this container" in err
        assert list(volume.iterdir()) == []
    finally:
        subprocess.run(["umount", str(volume)], check=True)


def test_nothing_is_linked_without_a_live_cache(stages: Any):
    stage = stages(live_cache="", environment={}, directories=())
    assert run(stage, "test -e ~/.quack || echo nothing") == ("nothing\n", "")


def grown(stage: Stage, script: str, least: int = 1, **env: str) -> tuple[Grown, ...]:
    """Run an engine until the launcher has told of so many directories that grew."""
    environment = {**PATHS, "TMPDIR": str(stage.root / "tmp"), **env}
    attempt, process = stage.started(SHELL, "-c", f"{script}; exec sleep 90", env=environment)
    found = until(lambda: seen if len(seen := stage.sidecar.grown(attempt)) >= least else None, "a directory that grew")
    process.terminate()
    return found


def test_a_directory_that_grows_while_the_engine_runs_is_told_with_its_size(stages: Any):
    stage = stages()
    write(stage.root / "home/.newdsl/cache", {"old": "x" * 500})
    found = grown(stage, "mkdir -p ~/.newdsl/cache; printf %4096s > ~/.newdsl/cache/k1; printf %1000s > ~/.newdsl/k2")
    assert [(one.path, one.where) for one in found] == [(str(stage.root / "home/.newdsl"), "home")]
    assert 4096 <= found[0].bytes <= 5096


def test_every_place_is_looked_at_but_known_ones_and_our_own(stages: Any):
    stage = stages(extra_roots=(f"{os.path.realpath(tempfile.gettempdir())}/absent",))
    extra = stage.root / "extra"
    extra.mkdir()
    stage.sidecar.prepare(stage.settings(**{**stage.changes, "extra_roots": (str(extra),)}))
    for place in ("home/.cache/new", "home/.cache/huggingface", "tmp/new", "tmp/known_1", "mine"):
        (stage.root / place).mkdir(parents=True)
    places = "~/.cache/new ~/.cache/huggingface $TMPDIR/new $TMPDIR/known_1 $EXTRA $TRITON_CACHE_DIR $LIVE"
    script = f"for place in {places}; do printf %100s > $place/k; done"
    moved = {"TRITON_CACHE_DIR": f"{stage.root}/mine", "LIVE": f"{stage.live}/triton"}
    found = grown(stage, script, least=4, EXTRA=str(extra), **moved)
    told = {os.path.relpath(one.path, stage.root): (one.bytes, one.where) for one in found}
    assert told == {
        "home/.cache/new": (100, "home"), "tmp/new": (100, "tmp"), "extra": (100, "extra"), "mine": (100, "moved")
    }  # fmt: skip


def places(root: Path, **environment: str) -> dict[str, str]:
    """Say where is looked, from the names below a root."""
    settings = {
        "live_cache": str(root / "live"),
        "environment": {"TRITON_CACHE_DIR": str(root / "live/triton")},
        "extra_roots": [],
        "not_caches": ["~/.cache/huggingface"],
    }
    given = {"HOME": str(root / "home"), "TMPDIR": str(root / "tmp"), **environment}
    found = unmanaged.Places(settings, given, str(root / "control")).found()
    return {os.path.relpath(path, root): where for path, where in found.items()}


def test_a_cache_behind_a_link_is_looked_at_once_and_a_link_to_what_is_known_is_not(tmp_path: Path):
    for folder in ("home/.cache/huggingface", "tmp", "live/triton", "control", "disk/dsl", "disk/more"):
        (tmp_path / folder).mkdir(parents=True)
    links = {
        "home/.dsl": "disk/dsl",
        "home/.cache/dsl-too": "disk/dsl",
        "home/.cache/more": "disk/more",
        "home/.cache/live": "live/triton",
        "home/.cache/all": "live",
        "home/.weights": "home/.cache/huggingface",
        "home/.self": "home",
        "home/.everything": ".",
        "tmp/gone": "nowhere",
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(tmp_path / target)
    assert places(tmp_path) == {"home/.cache/dsl-too": "home", "home/.cache/more": "home"}


def test_a_link_in_a_circle_does_not_hide_what_lies_beside_it(tmp_path: Path):
    for folder in ("home/.dsl", "home/.cache", "tmp"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "home/.circle").symlink_to(".circle")
    assert places(tmp_path) == {"home/.dsl": "home"}


def test_a_cache_directory_that_is_a_link_as_a_whole_is_looked_into(tmp_path: Path):
    for folder in ("home", "tmp", "disk/cache/dsl", "disk/cache/huggingface"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "home/.cache").symlink_to(tmp_path / "disk/cache")
    assert places(tmp_path) == {"home/.cache/dsl": "home"}
    assert places(tmp_path, XDG_CACHE_HOME=f"{tmp_path}/home/.cache/") == {"home/.cache/dsl": "home"}


def test_a_cache_directory_that_is_spelt_with_a_slash_at_its_end_is_not_looked_at_twice(tmp_path: Path):
    for folder in ("home/.cache/dsl", "tmp"):
        (tmp_path / folder).mkdir(parents=True)
    assert places(tmp_path, XDG_CACHE_HOME=f"{tmp_path}/home/.cache/") == {"home/.cache/dsl": "home"}


@pytest.mark.parametrize(
    ("name", "place", "grows"),
    [
        ("HF_HOME", "home/.weights", "home/.weights"),
        ("HF_HOME", "home/.cache", "home/.cache/hub"),
        ("TORCH_HOME", "home/.cache/torch", "home/.cache/torch"),
    ],
)
def test_downloads_are_no_cache_of_a_compiler_wherever_the_user_puts_them(
    tmp_path: Path, name: str, place: str, grows: str
):
    for folder in ("home/.cache/dsl", "tmp", grows):
        (tmp_path / folder).mkdir(parents=True)
    assert places(tmp_path, **{name: f"{tmp_path}/{place}"}) == {"home/.cache/dsl": "home"}


def test_a_cache_variable_with_a_slash_at_its_end_names_the_same_place(stages: Any):
    stage = stages()
    run(stage, "true", TRITON_CACHE_DIR=f"{stage.live}/triton/")
    [attempt] = [path.parent for path in stage.control.glob("attempts/*/facts.json")]
    facts = stage.sidecar.state(attempt.name).facts
    assert facts is not None
    assert facts["overrides"] == {}
    assert not [line for line in stage.sidecar.new_lines(attempt.name) if "TRITON" in line.text]


def test_a_home_full_of_files_does_not_hold_up_the_start(stages: Any):
    stage = stages(look_s=3600.0)
    for number in range(300):
        write(stage.root / f"home/.many{number}", {str(file): "" for file in range(10)})
    out, err = run(stage, "echo runs")
    assert (out, err) == ("runs\n", "")


@pytest.fixture
def restricted():
    """Give a pod's volume, a user who is not root and a HOME that this user can't write."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    home = root / "denied"
    (home / ".cache/huggingface").mkdir(parents=True)
    stage = Stage(root, {"links": {PLACE: f"{root}/live/quack_autotune"},
                         "directories": (f"{root}/live/quack_autotune",), "settle_s": 0.0})  # fmt: skip
    for path in (root / "live", root / "control", root / "control/attempts"):
        path.mkdir(exist_ok=True)
        os.chown(path, 64330, 64330)
        path.chmod(0o2775)
    yield stage, home
    stage.close()
    shutil.rmtree(root)


def as_user(stage: Stage, home: Path, script: str) -> tuple[dict[str, Any], str, str]:
    """Run a script as a user who isn't root; give the facts, its output and what the launcher said."""
    python = shutil.which("python3", path="/usr/bin") or ""
    stage.launch(
        SHELL, "-c", script, python=(python,), env={**PATHS, "HOME": str(home)}, user=64330, group=64330, extra_groups=[],
        cwd="/",
    )  # fmt: skip
    state = stage.waiting()
    assert stage.sidecar.decide(state.attempt, Decision("miss"))
    out, err = output(stage.launched[-1])
    return dict(state.facts or {}), out.decode(), err


def test_a_home_that_cant_be_written_is_moved_and_weights_stay_where_they_are(restricted: Any):
    stage, home = restricted
    told, out, err = as_user(stage, home, "echo $HOME $HF_HOME; touch ~/k && echo written")
    moved = str(stage.live / "home")
    assert out == f"{moved} {home}/.cache/huggingface\nwritten\n"
    assert f"HOME {home} can't be written; the engine gets {moved}" in err
    assert (told["home"], told["home_before"]) == (moved, str(home))


def test_a_home_that_can_be_written_stays_and_so_does_hf_home(restricted: Any):
    stage, home = restricted
    os.chown(home, 64330, 64330)
    told, out, _ = as_user(stage, home, "echo $HOME [$HF_HOME]")
    assert out == f"{home} []\n"
    assert told["home"] == str(home)
    assert "home_before" not in told


def test_links_are_made_in_the_home_that_the_engine_gets(restricted: Any):
    stage, home = restricted
    as_user(stage, home, "echo tuned > ~/.quack/cache/k")
    assert files_in(stage.live / "quack_autotune") == {"k": "tuned\n"}


NOTHING_KNOWN = re.compile(r"(?!)")


def test_a_look_ends_at_its_bounds_and_says_that_it_did_not_see_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "a", {str(number): "x" for number in range(20)})
    assert unmanaged.Look(60.0, NOTHING_KNOWN).size(str(tmp_path)) == (20, 20, True)
    assert unmanaged.Look(-1.0, NOTHING_KNOWN).size(str(tmp_path)).whole is False
    monkeypatch.setattr(unmanaged, "ENTRIES", 5)
    assert unmanaged.Look(60.0, NOTHING_KNOWN).size(str(tmp_path)) == (4, 4, False)


def test_where_the_first_look_was_cut_only_what_was_written_since_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(unmanaged, "FIRST_LOOK_S", -1.0)
    old = tmp_path / "home/.newdsl/old"
    write(old.parent, {"old": "x" * 5000})
    until(lambda: time.time() > old.stat().st_ctime + 0.05, "a file that is older than the engine")
    (tmp_path / "control/attempts").mkdir(parents=True)
    attempt = Attempt(str(tmp_path / "control"))
    settings = {"extra_roots": [], "environment": {}, "not_caches": [], "live_cache": ""}
    home = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "home")}
    watch = unmanaged.Watch(attempt, unmanaged.Places(settings, home, str(tmp_path / "control")), 0.01)
    watch.look_before()
    write(old.parent, {"new": "y" * 300})
    found = until(lambda: (attempt.read("unmanaged.json") or {}).get("grown"), "a directory that grew")
    watch.end()
    assert [(one["bytes"], one["files"]) for one in found] == [(300, 1)]


def test_a_directory_full_of_files_does_not_hide_what_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unmanaged, "ENTRIES", 40)
    monkeypatch.setattr(unmanaged, "SHARE", 10)
    (tmp_path / "control/attempts").mkdir(parents=True)
    attempt = Attempt(str(tmp_path / "control"))
    settings = {"extra_roots": [], "environment": {}, "not_caches": [], "live_cache": ""}
    home = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "home/.cache")}
    monkeypatch.setattr(unmanaged, "FIRST_LOOK_S", 60.0)
    monkeypatch.setattr(unmanaged, "LOOK_S", 60.0)
    write(tmp_path / "home/.cache/big", {str(number): "x" for number in range(60)})
    until(lambda: time.time() > (tmp_path / "home/.cache/big/59").stat().st_ctime + 0.05, "files that are old")
    watch = unmanaged.Watch(attempt, unmanaged.Places(settings, home, str(tmp_path / "control")), 0.01)
    watch.look_before()
    until(watch._seen.is_set, "the first look")
    write(tmp_path / "home/.newdsl", {"k": "yy"})
    found = until(lambda: (attempt.read("unmanaged.json") or {}).get("grown"), "a directory that grew")
    watch.end()
    assert [(os.path.basename(one["path"]), one["files"], one["whole"]) for one in found] == [(".newdsl", 1, True)]


def test_a_directory_that_was_not_seen_to_its_end_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unmanaged, "ENTRIES", 10)
    monkeypatch.setattr(unmanaged, "SHARE", 10)
    (tmp_path / "control/attempts").mkdir(parents=True)
    attempt = Attempt(str(tmp_path / "control"))
    settings = {"extra_roots": [], "environment": {}, "not_caches": [], "live_cache": ""}
    # One that is not there would stand for /tmp, where others write.
    (tmp_path / "tmp").mkdir()
    home = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    monkeypatch.setattr(unmanaged, "FIRST_LOOK_S", 60.0)
    monkeypatch.setattr(unmanaged, "LOOK_S", 60.0)
    watch = unmanaged.Watch(attempt, unmanaged.Places(settings, home, str(tmp_path / "control")), 0.01)
    watch.look_before()
    until(watch._seen.is_set, "the first look")
    write(tmp_path / "new", {str(number): "x" for number in range(60)})
    (tmp_path / "home").mkdir()
    (tmp_path / "new").rename(tmp_path / "home/.newdsl")
    found = until(lambda: (attempt.read("unmanaged.json") or {}).get("grown"), "a directory that grew")
    watch.end()
    assert [(one["files"], one["whole"]) for one in found] == [(10, False)]
