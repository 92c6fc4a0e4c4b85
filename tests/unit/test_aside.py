"""Work beside the event loop: what comes too late is told so, and is there for whoever asks again."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

import pytest

from sidecar.aside import Aside, beside


def hanging(free: threading.Event, begun: list[str]) -> Callable[[], str]:
    """Make work that ends when it is let go."""

    def work() -> str:
        begun.append("work")
        free.wait(30)
        return f"piece {len(begun)}"

    return work


async def late(resumed: bool) -> tuple[Aside[str], threading.Event, list[str]]:
    """Give an aside with a piece that came too late, asked for by `resume` or `get`, and then more patience."""
    aside, free, begun = Aside[str]("test", 0.01), threading.Event(), list[str]()
    work = hanging(free, begun)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
            await (aside.resume(work) if resumed else aside.get(work))
    assert begun == ["work"]
    assert aside.late is resumed
    aside._deadline_s = 30
    return aside, free, begun


async def test_what_came_too_late_is_the_answer_to_who_asks_again() -> None:
    aside, free, begun = await late(resumed=True)
    free.set()
    assert await aside.resume(hanging(free, begun)) == "piece 1"
    assert not aside.late
    assert await aside.resume(hanging(free, begun)) == "piece 2"


async def test_work_that_hangs_is_not_begun_again_beside_it() -> None:
    aside, free, begun = await late(resumed=False)
    assert await aside.do(hanging(free, begun)) is None
    assert begun == ["work"]
    free.set()


async def test_an_error_that_comes_too_late_is_raised_once() -> None:
    aside, free = Aside[str]("test", 0.01), threading.Event()

    def fail() -> str:
        free.wait(30)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(TimeoutError):
        await aside.resume(fail)
    aside._deadline_s = 30
    free.set()
    with pytest.raises(OSError, match="Input/output error"):
        await aside.resume(fail)
    assert await aside.resume(lambda: "fine") == "fine"


async def test_a_time_out_that_the_work_itself_ran_into_is_told_as_it_is() -> None:
    def fail() -> str:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    with pytest.raises(TimeoutError, match="Connection timed out"):
        await beside("test", 30, fail)
