"""What the readiness gate costs and how fast it is: memory and CPU of the daemon, and when the API server knows the truth.

Run it by hand, `python -m tests.bench.bench_kubernetes`; the API server is the fake one, so its own time is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sidecar.kube import condition
from tests.bench.figures import Figure, machine, table
from tests.bench.probing import ask, median
from tests.bench.subject import LIMIT_S, Subject
from tests.fakes.apiserver import FakeApiServer

MIB = 1 << 20
#: Issue 5: the condition follows the truth within 1 s of the daemon knowing; before ready three writes at most.
TOLD_S, WRITES = 1.0, 3


@contextmanager
def api_server(folder: Path) -> Iterator[FakeApiServer]:
    """Run the fake API server in a thread of its own."""
    loop = asyncio.new_event_loop()
    server = FakeApiServer(folder)
    spec = {"readinessGates": [{"conditionType": condition.CONDITION}], "containers": []}
    server.put("pods", {"metadata": {"name": "vllm-0", "namespace": "default"}, "spec": spec})
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def settings_for(server: FakeApiServer, folder: Path) -> dict[str, str]:
    """Give the settings and the environment of a pod of this API server."""
    folder.mkdir()
    (folder / "token").write_text("admin")
    (folder / "namespace").write_text("default")
    (folder / "ca.crt").write_bytes((server.folder / "ca.crt").read_bytes())
    return {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "WARMUP_SERVICE_ACCOUNT": str(folder),
        "WARMUP_POD_NAME": "vllm-0",
        "WARMUP_READINESS_GATE": "true",
        "WARMUP_EVENTS": "true",
        "WARMUP_PUBLISH_QUIET_S": "1",
    }


def status(server: FakeApiServer) -> str:
    """Give the condition's status as it stands at the API server."""
    return str(condition.read(server.get("pods", "vllm-0")).get("status"))


def until(reached: Any) -> float:
    """Wait for something and give the second of the monotonic clock."""
    ends = time.monotonic() + LIMIT_S
    while not reached():
        if time.monotonic() > ends:
            raise SystemExit("what was waited for did not come")
        time.sleep(0.002)
    return time.monotonic()


def costs(root: Path, seconds: float) -> Iterator[Figure]:
    """Measure the daemon at rest beside an idle engine, without and with the readiness gate and Events."""
    for name, gated in (("probes only", False), ("readiness gate and Events", True)):
        with api_server(root / f"server-{gated}") as server:
            settings = settings_for(server, root / f"account-{gated}") if gated else {"WARMUP_PUBLISH_QUIET_S": "1"}
            with Subject(root / str(gated), None, **settings).start(engine=True) as subject:
                subject.settle()
                time.sleep(3)
                before = subject.cpu_s()
                time.sleep(seconds)
                share = 100 * (subject.cpu_s() - before) / seconds
                yield Figure("rest", f"resident memory, {name}", subject.rss() / MIB, "MiB", None if gated else 64.0)
                yield Figure("rest", f"CPU of a core, {name}", share, "%", 1.0, f"{seconds:g} s")


def speed(root: Path, repeat: int) -> Iterator[Figure]:
    """Measure how long after /readyz the API server knows it, both ways, and how many writes a start makes."""
    opened, closed, writes = list[float](), list[float](), list[int]()
    for number in range(repeat):
        with api_server(root / f"server-{number}") as server:
            settings = settings_for(server, root / f"account-{number}")
            with Subject(root / str(number), None, **settings).start(engine=True) as subject:
                known = until(lambda at=subject: ask(at.port, "/readyz") == 200)
                opened.append(until(lambda to=server: status(to) == "True") - known)
                writes.append(server.count("PATCH", "POST"))
                engine = next(
                    each for each in subject.process.children(recursive=True) if "fakes.engine" in str(each.cmdline())
                )
                os.kill(engine.pid, signal.SIGSTOP)
                subject.process.send_signal(signal.SIGSTOP)
                os.kill(engine.pid, signal.SIGKILL)
                subject.process.send_signal(signal.SIGCONT)
                known = until(lambda at=subject: ask(at.port, "/readyz") != 200)
                closed.append(until(lambda to=server: status(to) == "False") - known)
    note = f"worst of {repeat}"
    yield Figure("gate", "/readyz 200 to condition True", max(opened), "s", TOLD_S, note)
    yield Figure("gate", "/readyz 503 to condition False", max(closed), "s", TOLD_S, note)
    yield Figure("gate", "the same, median", median(closed), "s")
    yield Figure("gate", "writes until the pod was ready", max(writes), "", WRITES, note)


def main() -> None:
    """Run both parts and print the figures as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="starts for the speed of the gate (default 5)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each look at rest (default 20)")
    given = parser.parse_args()
    before = machine()
    with tempfile.TemporaryDirectory(prefix="warmup-bench-") as folder:
        root = Path(folder)
        (root / "costs").mkdir()
        (root / "speed").mkdir()
        figures = [*costs(root / "costs", given.seconds), *speed(root / "speed", given.repeat)]
    print(table(figures))
    print(f"\n`python -m tests.bench.bench_kubernetes`; {before}; load at the end {machine().rpartition('load ')[2]}.")


if __name__ == "__main__":
    main()
