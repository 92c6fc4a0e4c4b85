"""The golden gate on a machine with a GPU: FP8 against BF16 KV cache, a fallback, and generations that were poisoned.

Run it by hand where vLLM and a GPU are: `python -m tests.bench.bench_gpu_golden --work DIR --json FILE -- vllm serve MODEL …`;
the command is the trusted one (BF16 KV cache), `--other` is what is put behind it. Nothing here is a test, and no number is
asserted. Dummy weights will do for the mechanism; they say nothing about the quality of a real model's answers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sidecar.caches.left_facts import left
from sidecar.caches.publish import PublishTools, publish
from sidecar.caches.publish_messages import PublishRequest
from tests.bench.bench_gpu import get
from tests.bench.figures import machine
from tests.bench.gpu_pod import Pod, environment_of
from tests.bench.gpu_poison import make_unrunnable, make_wrong

LOOK_S = 0.2
COMMAND_S = 300.0


def arguments() -> argparse.Namespace:
    """Read the command line; what follows `--` is the trusted engine's command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for live cache, stores, HOME and logs")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures; written after every step")
    parser.add_argument(
        "--other", default="--kv-cache-dtype fp8", help="options that make it the configuration to check"
    )
    parser.add_argument("--back", default="--kv-cache-dtype auto", help="the fallback that undoes them")
    parser.add_argument("--steps", default="trusted,other,fallback,poisoned,wrong", help="which steps, in this order")
    parser.add_argument("--prompts", type=Path, help="prompts to record; default: the starter set")
    parser.add_argument(
        "--strict", type=float, help="drift in percent that makes `fallback` fail; default: half of what was"
    )
    parser.add_argument(
        "--warm-s", type=float, default=20.0, help="cap of each warm-up: what is shown here is the check"
    )
    parser.add_argument("--start-s", type=float, default=900.0, help="seconds for one start until it is ready or held")
    parser.add_argument("--port", type=int, default=9797, help="the daemon's port")
    parser.add_argument("--engine-url", default="http://127.0.0.1:8100")
    parser.add_argument("engine", nargs="+", help="the trusted engine's command, after --")
    return parser.parse_args()


class Gate:
    """The steps, each a pod of its own on an empty live cache at the same place."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._work = given, given.work
        self._golden, self._strict = given.work / "golden.yaml", given.work / "strict.yaml"
        self.figures: dict[str, Any] = {"machine": machine()}

    def trusted(self) -> dict[str, Any]:
        """Start on an empty store, record, and let the kernels be published."""
        with _Start(self._given, "trusted", [], {}) as start:
            found = start.until_settled()
            words = ["--prompts", str(self._given.prompts)] if self._given.prompts else []
            found["record"] = start.command("golden", "record", "--out", str(self._golden), *words)
            start.until_published()
        return found

    def other(self) -> dict[str, Any]:
        """Check the other configuration; bad output is served, to see all of it."""
        settings = {"WARMUP_GOLDEN": str(self._golden), "WARMUP_ON_GOLDEN_FAILED": "serve"}
        with _Start(self._given, "other", self._given.other.split(), settings) as start:
            return start.until_settled()

    def fallback(self) -> dict[str, Any]:
        """Check it with a limit that it breaks: the launcher restarts the engine as it is trusted."""
        drift = self.figures.get("other", {}).get("status", {}).get("golden", {}).get("golden", {}).get("drift_percent")
        strict = self._given.strict or (drift or 0.02) / 2
        text = self._golden.read_text()
        for name in ("drift_percent", "same_drift_percent"):
            text = "\n".join(
                f"  {name}: {strict}" if line.startswith(f"  {name}:") else line for line in text.split("\n")
            )
        self._strict.write_text(text)
        settings = {
            "WARMUP_GOLDEN": str(self._strict),
            "WARMUP_ON_GOLDEN_FAILED": "fallback,hold",
            "WARMUP_FALLBACKS": self._given.back,
        }
        with _Start(self._given, "fallback", self._given.other.split(), settings) as start:
            return {"allowed_percent": strict, **start.until_settled()}

    def poisoned(self) -> dict[str, Any]:
        """Start the trusted engine on kernels that can't run."""
        return self._on_spoilt("poisoned", make_unrunnable)

    def wrong(self) -> dict[str, Any]:
        """Start the trusted engine on kernels that run and compute something else."""
        return self._on_spoilt("wrong", make_wrong)

    def _on_spoilt(self, name: str, spoil: Callable[[Path], object]) -> dict[str, Any]:
        """Publish spoilt kernels in a store of their own, so that their digests are right, and start on them."""
        live = self._work / "live-trusted"
        shutil.rmtree(self._work / "live", ignore_errors=True)
        shutil.copytree(live, self._work / "live", symlinks=True)
        spoilt = spoil(self._work / "live")
        store = self._work / f"store-{name}"
        store.mkdir()
        tools = PublishTools(clock=time.monotonic, now=time.time, sleep=time.sleep)
        facts = left(live) or {}
        request = PublishRequest(
            store=str(store), live_cache=str(self._work / "live"), facts=facts, attempt="poisoned", settle_s=0
        )
        told = publish(request, tools).sentence
        settings = {"WARMUP_GOLDEN": str(self._golden), "WARMUP_STORE": str(store)}
        with _Start(self._given, name, [], settings) as start:
            return {"spoilt": spoilt, "published": told, **start.until_settled()}

    def run(self) -> None:
        """Take the steps; what one found is written before the next begins."""
        for step in self._given.steps.split(","):
            self.figures[step] = getattr(self, step)()
            self._given.json.write_text(json.dumps(self.figures, indent=1), encoding="utf-8")
            print(summary(step, self.figures[step]), flush=True)


class _Start:
    """One pod; `with` ends it."""

    def __init__(self, given: argparse.Namespace, name: str, more: list[str], settings: Mapping[str, str]) -> None:
        self._given, self._work, self._name = given, given.work, name
        for folder in ("live", "control", "tmp"):
            shutil.rmtree(self._work / folder, ignore_errors=True)
        for folder in ("store", "tmp", "home"):
            (self._work / folder).mkdir(parents=True, exist_ok=True)
        log = self._work / f"{name}.log"
        log.unlink(missing_ok=True)
        found = environment_of(self._work, given.port, given.engine_url)
        self._environment = found | {"WARMUP_WARM_BUDGET_S": str(given.warm_s), **settings}
        self._pod = Pod([*given.engine, *more], self._work / "control", self._environment, log)
        self._began = time.monotonic()

    def __enter__(self) -> _Start:
        return self

    def __exit__(self, *_: object) -> None:
        self._pod.end()
        kept = self._work / f"live-{self._name}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.move(self._work / "live", kept)

    def until_settled(self) -> dict[str, Any]:
        """Wait until the pod is ready or held for its output, and say what its status said on the way."""
        found: dict[str, Any] = {"phases": []}
        while self._pod.tend() and time.monotonic() - self._began < self._given.start_s:
            code, text = get(f"http://127.0.0.1:{self._given.port}/status")
            status = json.loads(text) if code == 200 else {}
            phase = status.get("phase")
            if phase and found["phases"][-1:] != [[phase, status["reason"]]]:
                found["phases"].append([phase, status["reason"]])
            found |= {
                "seconds": round(time.monotonic() - self._began, 1),
                "status": status,
                "engine_starts": self._pod.starts,
            }
            if phase == "ready" or (phase == "suspended" and "Held by policy" in status["reason"]):
                break
            time.sleep(LOOK_S)
        return found

    def until_published(self) -> None:
        """Wait until the kernels are in the store."""
        while self._pod.tend() and time.monotonic() - self._began < self._given.start_s:
            code, text = get(f"http://127.0.0.1:{self._given.port}/status")
            if code == 200 and json.loads(text)["publish"]["outcome"] not in ("pending", "running"):
                return
            time.sleep(LOOK_S)

    def command(self, *words: str) -> str:
        """Run a command of the product against the engine and give what it printed."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sidecar", *words], env=self._environment, capture_output=True, text=True,
            timeout=COMMAND_S, check=False,
        )  # fmt: skip
        return f"exit {done.returncode}\n{done.stdout}{done.stderr}"


def summary(step: str, found: Mapping[str, Any]) -> str:
    """Say in a few lines what a step found."""
    status = found.get("status", {})
    golden = status.get("golden", {})
    events = [each.get("text") for each in status.get("events", []) if each.get("level") != "info"]
    return "\n".join(
        (
            f"### {step}: {status.get('phase')} after {found.get('seconds')} s, {found.get('engine_starts')} container starts",
            f"- {status.get('reason')}",
            f"- check: {golden.get('outcome')}: {golden.get('sentence')}",
            f"- restore: {status.get('restore', {}).get('outcome')}; fallback: {status.get('engine', {}).get('fallback')}",
            *(f"- {each}" for each in events),
            *([str(found["record"])] if "record" in found else []),
        )
    )


def main() -> None:
    """Take the steps one after the other and print what was found."""
    given = arguments()
    given.work.mkdir(parents=True, exist_ok=True)
    Gate(given).run()


if __name__ == "__main__":
    main()
