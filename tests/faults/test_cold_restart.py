"""An engine that started cold is restarted once before it is ready; one that stalled in a compiler goes on from there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rig import PATIENCE_S, Container, Daemon, Pod, until

#: An engine whose KV cache is smaller where it finds no kernels at its start.
COLD_IS_SMALLER = """
if [ -n "$(ls -A "$TRITON_CACHE_DIR" 2>/dev/null)" ]; then cp "$0.warm" "$0.script"; else cp "$0.cold" "$0.script"; fi
exec "$@" --script "@$0.script"
"""
#: An engine that is killed at its third request, after it has compiled, as by the time-out of its own step; once only.
STALLS_ONCE = """
if [ -e "$0.stalled" ]; then exec "$@" --script "@$0.warm"; fi
touch "$0.stalled"
"$@" --script "@$0.cold"
echo "(EngineCore pid=7) ERROR [core.py:720] TimeoutError: RPC call to execute_model timed out." >&2
exit 1
"""


def command(pod: Pod, shell: str, cold: dict[str, Any], warm: dict[str, Any]) -> list[str]:
    script = pod.place.script.with_name(f"engine-{pod.port}.sh")
    script.write_text(shell)
    Path(f"{script}.cold").write_text(json.dumps(cold))
    Path(f"{script}.warm").write_text(json.dumps(warm))
    return ["/bin/sh", str(script), *pod.engine_command()[:-2]]


def records(pod: Pod) -> list[dict[str, Any]]:
    found = pod.directories.store.glob("v1/exact/*/boots/*.json")
    return sorted((json.loads(path.read_text()) for path in found), key=lambda each: each["attempt"])


def restarts(daemon: Daemon, cause: str) -> str:
    _, page = daemon.get("/metrics")
    wanted = f'warmup_sidecar_engine_restarts_total{{cause="{cause}"'
    return next(line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(wanted))


def never_ready_before(daemon: Daemon, attempts: int, pod: Pod) -> None:
    """Look until so many attempts are there; fail when the pod was ready with fewer."""
    ends = time.monotonic() + PATIENCE_S
    while len(pod.attempts()) < attempts:
        assert daemon.get("/readyz")[0] != 200 or len(pod.attempts()) >= attempts, "ready before the restart"
        assert time.monotonic() < ends, daemon.notices()
        time.sleep(0.02)


@pytest.mark.parametrize("child", [False, True], ids=["launcher", "child"])
def test_a_cold_engine_is_restarted_once_before_it_is_ready_and_has_a_larger_kv_cache(pod: Pod, child: bool) -> None:
    words = command(pod, COLD_IS_SMALLER, {"kv_blocks": 3000}, {"kv_blocks": 4000})
    daemon = pod.start_daemon(*(words if child else ()), restart_after_cold="once")
    container = None if child else Container(pod, words, {}, ())
    try:
        never_ready_before(daemon, 2, pod)
        daemon.wait_until_ready(PATIENCE_S)
        shown = daemon.status()["engine"]["kv_cache"]
        assert (shown["tokens"], shown["cold"], shown["earlier_boots"]) == (64_000, False, 1)
        assert daemon.status()["restore"]["outcome"] == "kept"
        until(lambda: len(records(pod)) == 2, "a record of both boots")
        assert [(each["outcome"], each["kv_blocks"], each["cold"]) for each in records(pod)] == [
            ("made", 3000, True),
            ("made", 4000, False),
        ]
        assert len(pod.attempts()) == 2
        assert "restarted once" in daemon.notices()
        assert restarts(daemon, "asked") == "1.0"
    finally:
        if container is not None:
            container.close()


def test_by_default_a_smaller_kv_cache_is_only_told(pod: Pod) -> None:
    words = command(pod, COLD_IS_SMALLER, {"kv_blocks": 3000}, {"kv_blocks": 4000})
    daemon = pod.start_daemon(*words)
    daemon.wait_until_ready(PATIENCE_S)
    assert daemon.status()["engine"]["kv_cache"]["tokens"] == 48_000
    assert len(pod.attempts()) == 1


@pytest.mark.parametrize("child", [False, True], ids=["launcher", "child"])
def test_an_engine_that_timed_out_while_it_compiled_goes_on_with_what_it_has(pod: Pod, child: bool) -> None:
    words = command(pod, STALLS_ONCE, {"die_on_request": 3}, {})
    daemon = pod.start_daemon(*(words if child else ()))
    containers = [] if child else [Container(pod, words, {}, ())]
    try:
        if not child:
            assert containers[0].process.wait(PATIENCE_S) == 1
            containers.append(Container(pod, words, {}, ()))
        status = daemon.wait_until_ready(PATIENCE_S)
        assert status["engine"]["last_exit"]["cause"] == "compile_stall"
        assert status["restore"]["outcome"] == "kept"
        assert status["warmup"]["outcome"] == "converged", status["warmup"]["sentence"]
        assert status["warmup"]["killers"] == []
        assert not list(pod.directories.store.glob("v1/*/*/quarantine/*"))
        assert restarts(daemon, "compile_stall") == "1.0"
    finally:
        for container in containers:
            container.close()
