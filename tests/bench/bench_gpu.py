"""The whole product on a machine with a GPU: starts on an empty and on a filled store, then live traffic, kernels and first tokens.

Run it by hand where vLLM and a GPU are: `python -m tests.bench.bench_gpu --work DIR --json FILE -- vllm serve MODEL --port 8100 …`.
Nothing here is a test, and no number is asserted. What is sent is in `gpu_traffic.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.bench_exporter import compare, figures
from tests.bench.figures import machine
from tests.bench.gpu_pod import Pod, environment_of
from tests.bench.gpu_traffic import Traffic

PUBLISH_ENDED = ("published", "nothing_new", "read_only", "failed", "disabled")
PUBLISH_S = 60.0
EXPORTER_PAIRS, EXPORTER_S = 4, 5.0


def arguments() -> argparse.Namespace:
    """Read the command line; what follows `--` is the engine's command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for live cache, store, HOME and logs")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures; written after every step")
    parser.add_argument(
        "--starts", default="empty,filled", help="each `empty` (store wiped), `filled` (store kept) or `half`"
    )
    parser.add_argument("--half", type=Path, help="live cache that a `half` start finds, without a store")
    parser.add_argument("--requests", type=int, default=500, help="requests of the random mix; 0: none")
    parser.add_argument("--passes", type=int, default=2, help="passes of the random mix")
    parser.add_argument("--cases", action=argparse.BooleanOptionalAction, default=True, help="send the fixed cases too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start-s", type=float, default=1800.0, help="seconds for one start until it is ready")
    parser.add_argument("--keep-half", type=Path, help="copy the live cache here when the engine's own start has ended")
    parser.add_argument(
        "--kill", action="store_true", help="at the end kill the engine and wait until it is ready again"
    )
    parser.add_argument(
        "--exporter", action="store_true", help="at the end compare latency with and without the daemon"
    )
    parser.add_argument("--port", type=int, default=9797, help="the daemon's port")
    parser.add_argument("--code", type=Path, help="another checkout whose sidecar is measured, to compare")
    parser.add_argument("--engine-url", default="http://127.0.0.1:8100")
    parser.add_argument("--model", default="m", help="the name under which the engine serves its model")
    parser.add_argument("--max-model-len", type=int, default=32768)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=30_000, help="prompts are drawn from token ids below this")
    parser.add_argument("engine", nargs="+", help="the engine's command, after --")
    return parser.parse_args()


def get(url: str) -> tuple[int, str]:
    """Ask once; 0 when nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Start:
    """One start through the sidecar and its launcher, on an empty live cache."""

    def __init__(self, given: argparse.Namespace, name: str, last: bool) -> None:
        self._given, self._work, self.name, self._last = given, given.work, name, last
        self.figures: dict[str, Any] = {"name": name, "machine": machine()}
        for folder in ("live", "control", "tmp", "home") + (("store",) if name.endswith("empty") else ()):
            shutil.rmtree(self._work / folder, ignore_errors=True)
        for folder in ("store", "tmp", "home"):
            (self._work / folder).mkdir(parents=True, exist_ok=True)
        if name.endswith("half"):
            shutil.copytree(given.half, self._work / "live", symlinks=True)

    def run(self) -> None:
        """Start, wait for ready, send the traffic, wait for the publish, kill the engine if that is wanted, end it."""
        self._began = time.monotonic()
        log = self._work / f"{self.name}.log"
        log.unlink(missing_ok=True)
        self._pod = Pod(self._given.engine, self._work / "control", self._environment(), log)
        try:
            if self._until_ready():
                self._traffic()
                self._until_published()
                if self._given.exporter and self._last:
                    self._exporter()
                if self._given.kill and self._last:
                    self._kill()
        finally:
            self._status()
            self._pod.end()

    def _environment(self) -> dict[str, str]:
        found = environment_of(self._work, self._given.port, self._given.engine_url)
        if self._given.code:
            found["PYTHONPATH"] = f"{self._given.code}:{os.environ.get('PYTHONPATH', '')}"
        if self.name.endswith("half"):
            found["WARMUP_STORE"] = ""
        return found

    def _until_ready(self) -> bool:
        health = f"{self._given.engine_url}/health"
        while self._pod.tend() and self._seconds() < self._given.start_s:
            if "health_s" not in self.figures and get(health)[0] == 200:
                self._note("health_s", self._seconds())
                if self._given.keep_half and not self._given.keep_half.exists():
                    shutil.copytree(self._work / "live", self._given.keep_half, symlinks=True)
            if self._ready():
                self._note("ready_s", self._seconds())
                self._status()
                return True
            time.sleep(0.2)
        self._note("gave_up_s", self._seconds())
        return False

    def _ready(self) -> bool:
        return get(f"http://127.0.0.1:{self._given.port}/readyz")[0] == 200

    def _exporter(self) -> None:
        """Note what live requests notice of the daemon, in pairs of windows."""
        given, metrics = self._given, f"http://127.0.0.1:{self._given.port}/metrics"
        felt = asyncio.run(
            compare(EXPORTER_PAIRS, EXPORTER_S, given.engine_url, given.model, self._pod.daemon, metrics)
        )
        self._note("exporter", [asdict(figure) for figure in figures(*felt, EXPORTER_PAIRS)])

    def _kill(self) -> None:
        """Kill the engine and note how soon traffic is kept away, and when it may come again."""
        killed = self._pod.kill_engine()
        while self._ready() and time.monotonic() - killed < PUBLISH_S:
            time.sleep(0.02)
        self._note("unready_after_kill_s", round(time.monotonic() - killed, 3))
        while self._pod.tend() and time.monotonic() - killed < self._given.start_s:
            if self._ready():
                self._note("ready_after_kill_s", round(time.monotonic() - killed, 2))
                return
            time.sleep(0.2)

    def _traffic(self) -> None:
        given = self._given
        limits = (given.max_model_len, given.max_num_seqs, given.vocabulary)
        traffic = Traffic(given.engine_url, given.model, self._work / "live", *limits, given.seed)
        if given.requests:
            self._note("mix", asyncio.run(traffic.mix(given.requests, given.passes)))
        if given.cases:
            self._note("cases", asyncio.run(traffic.cases()))

    def _until_published(self) -> None:
        end = time.monotonic() + PUBLISH_S
        while self._pod.tend() and time.monotonic() < end:
            if self._status().get("publish", {}).get("outcome") in PUBLISH_ENDED:
                return
            time.sleep(0.5)

    def _status(self) -> dict[str, Any]:
        code, text = get(f"http://127.0.0.1:{self._given.port}/status")
        if code == 200:
            self._note("status", json.loads(text))
        known: dict[str, Any] = self.figures.get("status", {})
        return known

    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 2)

    def _note(self, name: str, value: Any) -> None:
        self.figures[name] = value
        path = self._given.json.with_suffix(f".{self.name}.json")
        path.write_text(json.dumps(self.figures, indent=1), encoding="utf-8")


def summary(figures: dict[str, Any]) -> str:
    """Make the lines of the README's table of one start."""
    status = figures.get("status", {})
    restore, warmup = status.get("restore", {}), status.get("warmup", {})
    lines = [
        f"### {figures['name']} ({figures['machine']})", "",
        f"- /health after {figures.get('health_s')} s, ready after {figures.get('ready_s')} s",
        f"- after the engine was killed: unready after {figures.get('unready_after_kill_s')} s, "
        f"ready again after {figures.get('ready_after_kill_s')} s",
        f"- restore: {restore.get('outcome')}, {restore.get('files')} files, {restore.get('bytes')} B, {restore.get('seconds')} s",
        f"- warm-up: {warmup.get('outcome')}, {warmup.get('requests')} requests, {warmup.get('seconds')} s, "
        f"kernels {warmup.get('kernels_before_ready')}: {warmup.get('sentence')}",
        f"- effectiveness: {json.dumps(restore.get('effectiveness'))}",
        f"- publish: {status.get('publish', {}).get('sentence')}", "",
        "| live traffic | requests | median s | p99 s | worst s | failed | kernels compiled |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in figures.get("mix", []) + figures.get("cases", []):
        seen = [row["requests"], row["median_s"], row["p99_s"], row["worst_s"], row["failed"], len(row["kernels"])]
        lines.append(f"| {row['case']} | " + " | ".join(str(each) for each in seen) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the starts one after the other and print what was measured."""
    given = arguments()
    given.work.mkdir(parents=True, exist_ok=True)
    kinds = given.starts.split(",")
    for number, kind in enumerate(kinds, 1):
        start = Start(given, f"{number}-{kind}", number == len(kinds))
        start.run()
        print(summary(start.figures), flush=True)


if __name__ == "__main__":
    main()
