"""What a daemon ends with, also where a thread that hangs makes it end by force."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar import logs
from sidecar.config import Loaded, Settings
from sidecar.daemon import assembly, process
from sidecar.errors import EXIT_BUG, EXIT_OK


class Ended:
    """Stands for a daemon that ends at once: with a code, or by a bug."""

    code: int | None = 0

    def __init__(self, *_parts: object, **_more: object) -> None:
        pass

    async def run(self, _ending: object) -> int:
        if self.code is None:
            raise ValueError("a bug of ours")
        return self.code


class Force:
    """Takes note of what a daemon would be made to end with."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def within(self, _seconds: float, code: int) -> None:
        self.codes.append(code)
        threading.Thread(target=self.meanwhile, daemon=True).start()

    def gone(self) -> None:
        pass


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Iterator[Force]:
    """Keep this process from being ended, and from logging as a daemon does."""
    found = Force()
    monkeypatch.setattr(process, "Ending", lambda: found)
    monkeypatch.setattr(process, "Daemon", Ended)
    monkeypatch.setattr(logs, "configure", lambda *_settings: None)
    mask = os.umask(0o022)
    yield found
    os.umask(mask)


def loaded(**settings: Any) -> Loaded:
    return Loaded(Settings(**settings), (), {})


@pytest.mark.parametrize("code", [0, 3, 143])
def test_the_code_of_the_child_is_passed_on_also_by_force(
    force: Force, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(Ended, "code", code)
    assert process.run_daemon(loaded(), ()) == code
    assert force.codes == [code]


@pytest.mark.parametrize(("once", "code"), [(False, EXIT_BUG), (True, EXIT_OK)])
def test_a_bug_has_its_code_and_none_in_an_init_container_whose_engine_must_start(
    force: Force, monkeypatch: pytest.MonkeyPatch, once: bool, code: int
) -> None:
    monkeypatch.setattr(Ended, "code", None)
    with pytest.raises(ValueError, match="a bug of ours"):
        process.run_daemon(loaded(), (), once=once)
    assert force.codes == [code]


def test_a_control_directory_of_its_own_goes_although_a_thread_hangs(
    force: Force, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, hangs, left = tmp_path / "own", threading.Event(), list[bool]()
    own.mkdir()

    async def run(_daemon: Ended, _ending: object) -> int:
        asyncio.get_running_loop().run_in_executor(None, hangs.wait, 60)
        return 0

    def look() -> None:
        patience = time.monotonic() + 30
        while own.exists() and time.monotonic() < patience:
            time.sleep(0.01)
        left.append(own.exists())
        hangs.set()

    force.meanwhile = look
    monkeypatch.setattr(Ended, "run", run)
    monkeypatch.setattr(assembly, "settings_for_child", lambda _: loaded(control_dir=own).settings)
    assert process.run_daemon(loaded(control_dir=tmp_path), ("true",)) == 0
    assert left == [False]
    assert tmp_path.exists()
