"""Boards as they look in each phase of a pod's life, for the tests of the status page.

Nothing is measured here; the figures are plausible ones of an H200 start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sidecar.lifecycle import Gate, Phase
from sidecar.status import Board

#: Sunday 2026-11-29 17:00 UTC.
EPOCH = 1_795_971_600.0

GPU = {
    "driver": "570.133.20",
    "gpus": [
        {
            "index": 0,
            "uuid": "GPU-5d1e7a36-0f5c-4b8e-9c39-1a2b3c4d5e6f",
            "name": "NVIDIA H200",
            "sm": "sm90",
            "utilization_ratio": 0.63,
            "memory_used_bytes": 128.4e9,
            "memory_size_bytes": 150.7e9,
            "power_watts": 412.5,
            "temperature_celsius": 54.0,
        }
    ],
}
ENGINE = {
    "url": "http://127.0.0.1:8000",
    "kind": "vllm",
    "version": "0.25.1",
    "model": "Qwen/Qwen3-8B-FP8",
    "identity": "1795971640.11",
    "state": "up",
    "detail": "",
    "attempt": "1795971603123456789-17-9f3c2a71",
    "restarts": 0,
    "healthy_after_s": 76.4,
    "running": 12,
    "waiting": 0,
    "kv_cache_usage": 0.41,
    "limits": {
        "max_model_len": 32768,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
        "kv_cache_dtype": "fp8",
        "quantization": "fp8",
        "block_size": 16,
    },
    "sources": {
        "version": "/version",
        "model": "/v1/models",
        "max_model_len": "/v1/models",
        "max_num_batched_tokens": "launcher: --max-num-batched-tokens",
        "max_num_seqs": "default of vLLM 0.25",
        "kv_cache_dtype": "launcher: --kv-cache-dtype",
    },
}
RESTORE = {
    "outcome": "hit",
    "sentence": "Everything of generation 000007 that fits this start was laid down.",
    "generation": "000007-5f1c9e2d",
    "exact_key": "b1946ac92492d2347c6235b4d2611184c3f0",
    "toolchain_key": "7d793037a0760186574b0282f2f435e7",
    "files": 4312,
    "bytes": 1_284_000_000,
    "bytes_done": 1_284_000_000,
    "rejected": {},
    "seconds": 4.8,
    "families": {
        "torch_compile": {"files": 118, "bytes": 96e6, "scope": "exact"},
        "triton": {"files": 3120, "bytes": 402e6, "scope": "toolchain"},
        "flashinfer": {"files": 640, "bytes": 611e6, "scope": "toolchain"},
        "deep_gemm": {"files": 434, "bytes": 175e6, "scope": "toolchain"},
    },
}
COLD_RESTORE = {
    "outcome": "miss",
    "sentence": "The store has nothing for this image, driver and GPU: this start is cold and its "
    "kernels are published for the next one.",
    "exact_key": RESTORE["exact_key"],
    "toolchain_key": RESTORE["toolchain_key"],
    "files": 0,
    "bytes": 0,
    "rejected": {},
    "seconds": 0.4,
    "families": {},
}


def _step(
    name: str,
    state: str,
    first: float | None,
    best: float | None,
    last: float | None,
    kernels: int,
    requests: int,
    detail: str = "",
) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "prefill",
        "state": state,
        "requests": requests,
        "ttft_first_s": first,
        "ttft_best_s": best,
        "ttft_last_s": last,
        "kernels": kernels,
        "seconds": (first or 0) * 1.4 or None,
        "detail": detail,
    }


COLD_STEPS = (
    _step("prefill-sweep", "done", 20.5, 0.081, 0.083, 9, 44),
    _step("decode-128", "done", 23.1, 0.31, 0.33, 4, 128),
    _step("decode-256", "done", 24.5, 0.62, 0.62, 3, 256),
    _step("mixed-prefill-decode", "done", 3.2, 0.21, 0.22, 1, 64),
    _step("shared-prefix-8k", "done", 9.5, 0.4, 0.41, 2, 16),
    _step("log-probabilities", "done", 1.9, 0.09, 0.09, 1, 8),
    _step("structured-output", "done", 0.57, 0.07, 0.07, 0, 4),
    _step(
        "adapters",
        "unsupported",
        None,
        None,
        None,
        0,
        1,
        "The engine answered 404: the model `lora-a` does not exist.",
    ),
)
WARM_STEPS = tuple(
    {**step, "ttft_first_s": step["ttft_best_s"] and step["ttft_best_s"] * 1.12, "kernels": 0, "seconds": 0.9}
    for step in COLD_STEPS
)
PASSED = {
    "outcome": "passed",
    "sentence": "Eight sampled answers are not degenerate.",
    "checks": [
        {"name": "natural text", "passed": True, "detail": "", "seconds": 0.4},
        {"name": "batch of 8", "passed": True, "detail": "", "seconds": 0.9},
    ],
}
EVENTS = (
    "Launcher laid; the engine's container may start.",
    "The launcher of attempt 9f3c2a71 handed over its facts.",
    "Restore: hit, 4312 files, 1.3 GB in 4.8 s.",
    "The engine answers: vLLM 0.25.1 serves Qwen/Qwen3-8B-FP8.",
)
WARM_SENTENCE = (
    "A whole round of 516 requests compiled nothing and every step is within 1.5 x of its best; 300 "
    "random draws from the mix "
    "compiled nothing either (no more than 1 % of the mix at 95 % confidence)."
)

COVERAGE = {
    "visited": [(n, 1) for n in range(16, 8193, 61)]
    + [(n, k) for k in (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256) for n in range(k, 8193, 347)]
    + [(n, n) for n in range(1, 257, 5)],
    "replayed": [],
    "compiled": [(128, 1), (2048, 1), (8192, 1), (128, 128), (256, 256), (4096, 64), (8192, 16)],
    "omitted": 0,
    "max_tokens": 8192,
    "max_requests": 256,
    "converged": True,
}
HISTORY = {
    "key": RESTORE["exact_key"],
    "starts": [
        {
            "generation": f"0000000{number}-5f1c9e2d5f1c9e2d",
            "outcome": outcome,
            "seconds": seconds,
            "cold": outcome == "made",
            "at": EPOCH - 86_400 * (8 - number),
        }
        for number, starts in enumerate(
            (
                (("made", 762.0), ("ready", 96.0), ("ready", 93.5)),
                (("made", 131.0), ("ready", 91.0), ("died", None), ("ready", 90.2)),
                (("ready", 92.4),),
            ),
            start=5,
        )
        for outcome, seconds in starts
    ],
}

Walk = tuple[tuple[Phase, float], ...]
START: Walk = ((Phase.STARTING, 0.3), (Phase.AWAITING_LAUNCHER, 22.0))


class Clock:
    """A clock that moves when it is told to; seconds."""

    def __init__(self) -> None:
        self.now = EPOCH

    def __call__(self) -> float:
        return self.now


def board(walk: Walk, sentence: str, flagged: bool = False, **sections: Any) -> Board:
    """Make a board that went through the phases of `walk`, each for its seconds, the last one still going
    on.
    """
    clock = Clock()
    made = Board(clock, clock, "0.1.0", "launcher", startup_open=True, startup_sentence="The launcher is in place.")
    events = list(EVENTS)
    for index, (phase, seconds) in enumerate(walk):
        if index:
            made.enter(phase)
        if events:
            made.tell(events.pop(0))
        clock.now += seconds
    made.gate = Gate(made.phase is Phase.READY, flagged, sentence)
    for name, value in sections.items():
        setattr(made, name, value)
    return made


def starting() -> Board:
    """Give the first second of a sidecar."""
    return board(((Phase.STARTING, 0.2),), "The sidecar is starting.")


def awaiting_launcher() -> Board:
    """Give a pod whose engine image is being pulled."""
    return board(
        START,
        "Waiting for the engine's container: its launcher has not reported yet. If the container runs, "
        "check that its command "
        "is prefixed with `python3 <control dir>/launcher.py --` and that both mount the control directory.",
        gpu=GPU,
    )


def restoring() -> Board:
    """Give a restore half-way."""
    return board(
        (*START, (Phase.RESTORING, 2.1)),
        "Restoring kernel caches from the store; the engine starts as soon as this ends, whatever comes of it.",
        restore={**RESTORE, "outcome": "running", "sentence": "", "bytes_done": 730e6, "seconds": 2.1},
        gpu=GPU,
    )


def awaiting_engine() -> Board:
    """Give an engine that loads its weights."""
    return board(
        (*START, (Phase.RESTORING, 4.8), (Phase.AWAITING_ENGINE, 41.0)),
        "Waiting for the engine to answer (connection refused); restore was: hit.",
        restore=RESTORE,
        engine={
            "url": ENGINE["url"],
            "state": "gone",
            "detail": "connection refused",
            "attempt": ENGINE["attempt"],
        },
        gpu=GPU,
    )


def warming() -> Board:
    """Give a cold start in the middle of its first round."""
    steps = [
        *COLD_STEPS[:3],
        {**COLD_STEPS[3], "state": "running", "ttft_last_s": None, "ttft_best_s": None},
        *(
            {
                **step,
                "state": "pending",
                "ttft_first_s": None,
                "ttft_best_s": None,
                "ttft_last_s": None,
                "kernels": 0,
                "seconds": None,
                "detail": "",
            }
            for step in COLD_STEPS[4:]
        ),
    ]
    return board(
        (*START, (Phase.RESTORING, 0.4), (Phase.AWAITING_ENGINE, 552.0), (Phase.WARMING, 74.0)),
        "Warming up: traffic waits until a whole round of real requests compiles nothing new.",
        restore=COLD_RESTORE,
        engine=ENGINE,
        warmup={
            "outcome": "running",
            "profile": "sm90",
            "round": 1,
            "steps": steps,
            "requests": 452,
            "seconds": 74.0,
            "kernels_before_ready": {"deep_gemm": 14, "triton": 3},
            "kernels_after_ready": {},
        },
        gpu=GPU,
        history=HISTORY,
    )


def ready() -> Board:
    """Give a cold start that has become ready and published."""
    return board(
        (
            *START,
            (Phase.RESTORING, 0.4),
            (Phase.AWAITING_ENGINE, 552.0),
            (Phase.WARMING, 163.0),
            (Phase.VERIFYING, 2.2),
            (Phase.READY, 3720.0),
        ),
        WARM_SENTENCE + " Eight sampled answers are not degenerate.",
        restore=COLD_RESTORE,
        engine=ENGINE,
        warmup={
            "outcome": "converged",
            "sentence": WARM_SENTENCE,
            "profile": "sm90",
            "round": 3,
            "steps": list(COLD_STEPS),
            "requests": 1548,
            "seconds": 163.0,
            "kernels_before_ready": {"deep_gemm": 17, "triton": 3},
            "kernels_after_ready": {},
        },
        golden=PASSED,
        gpu=GPU,
        coverage=COVERAGE,
        history={"key": RESTORE["exact_key"], "starts": []},
        cache={
            "path": "/var/cache/engine",
            "files": 4332,
            "bytes": 1.29e9,
            "kernels": {"deep_gemm": 217, "triton": 1043, "flashinfer": 58},
        },
        publish={
            "outcome": "published",
            "sentence": "4332 files are published for the next pod.",
            "generation": "000008-a1b2c3d4",
            "parent": None,
            "files": 4332,
            "new_files": 4332,
            "bytes": 391e6,
            "seconds": 11.2,
            "count": 1,
        },
    )


def ready_after_restore() -> Board:
    """Give a warm start."""
    return board(
        (
            *START,
            (Phase.RESTORING, 4.8),
            (Phase.AWAITING_ENGINE, 76.4),
            (Phase.WARMING, 9.1),
            (Phase.VERIFYING, 2.2),
            (Phase.READY, 95.0),
        ),
        WARM_SENTENCE + " Eight sampled answers are not degenerate.",
        restore=RESTORE,
        engine={**ENGINE, "ready_after_s": 92.5},
        warmup={
            "outcome": "converged",
            "sentence": WARM_SENTENCE,
            "profile": "sm90",
            "round": 1,
            "steps": list(WARM_STEPS),
            "requests": 516,
            "seconds": 9.1,
            "kernels_before_ready": {},
            "kernels_after_ready": {},
        },
        golden=PASSED,
        gpu=GPU,
        coverage={**COVERAGE, "replayed": COVERAGE["compiled"], "compiled": []},
        history=HISTORY,
        publish={"outcome": "nothing_new", "sentence": "Nothing new since generation 000007.", "count": 0},
        cache={
            "path": "/var/cache/engine",
            "files": 4312,
            "bytes": 1.28e9,
            "kernels": {"deep_gemm": 200, "triton": 1040},
        },
    )


def compiling_under_traffic() -> Board:
    """Give a ready pod whose traffic met shapes that warm-up did not."""
    made = ready_after_restore()
    made.warmup = {**made.warmup, "kernels_after_ready": {"deep_gemm": 2}}
    made.tell("2 kernels of deep_gemm were compiled under traffic.", "warning")
    return made


def suspended() -> Board:
    """Give a pod whose engine answers and does nothing, in its second life."""
    made = board(
        (
            *START,
            (Phase.RESTORING, 4.8),
            (Phase.AWAITING_ENGINE, 76.4),
            (Phase.WARMING, 9.1),
            (Phase.VERIFYING, 2.2),
            (Phase.READY, 5400.0),
            (Phase.AWAITING_LAUNCHER, 3.0),
            (Phase.RESTORING, 0.1),
            (Phase.AWAITING_ENGINE, 74.0),
            (Phase.WARMING, 8.0),
            (Phase.VERIFYING, 2.0),
            (Phase.READY, 640.0),
            (Phase.SUSPENDED, 31.0),
        ),
        "The engine makes no progress with requests running (12 running, no token for 120 s); restart "
        "its container if it stays so.",
        restore={**RESTORE, "outcome": "kept", "sentence": "This pod's own live cache was kept."},
        engine={
            **ENGINE,
            "state": "stalled",
            "restarts": 1,
            "running": 12,
            "waiting": 31,
            "kv_cache_usage": 0.94,
            "detail": "12 running, no token for 120 s",
            "last_exit": {"cause": "killed", "sentence": "It was killed (signal 9) after 1 h 31 min."},
        },
        warmup={
            "outcome": "converged",
            "sentence": WARM_SENTENCE,
            "profile": "sm90",
            "round": 1,
            "steps": list(WARM_STEPS),
            "requests": 516,
            "seconds": 8.0,
        },
        golden=PASSED,
        gpu=GPU,
    )
    made.tell("The engine's process was killed (signal 9).", "error")
    made.tell("The engine makes no progress with requests running.", "error")
    return made


def degraded() -> Board:
    """Give a pod with a broken store and a wrong setting that serves by policy."""
    made = board(
        (
            *START,
            (Phase.RESTORING, 0.1),
            (Phase.AWAITING_ENGINE, 610.0),
            (Phase.WARMING, 1800.0),
            (Phase.VERIFYING, 2.0),
            (Phase.READY, 12.0),
        ),
        "Warm-up ran out of its budget of 1800 s in round 9, which still compiled 1 kernel. Serving by "
        "policy, "
        "without full proof.",
        flagged=True,
        engine={**ENGINE, "kv_cache_usage": None, "running": None, "waiting": None},
        restore={
            "outcome": "failed",
            "sentence": "The store /mnt/store can't be read (Stale file handle): mount it again. The engine "
            "was started cold.",
            "rejected": {"digest": 3},
            "seconds": 0.1,
        },
        warmup={
            "outcome": "exhausted",
            "sentence": "The budget of 1800 s ended in round 9, which still compiled 1 kernel.",
            "round": 9,
            "profile": "sm90",
            "steps": [
                *COLD_STEPS[:4],
                {
                    **COLD_STEPS[4],
                    "state": "failed",
                    "detail": "The engine answered 500: "
                    "CUDA error: no kernel image is available for execution on the device",
                },
            ],
            "kernels_before_ready": {"triton": 41},
        },
        publish={
            "outcome": "failed",
            "sentence": "Nothing can be published: /mnt/store can't be written (Stale file handle).",
        },
        golden={"outcome": "passed", "sentence": "Eight sampled answers are not degenerate."},
        gpu={"unavailable": "NVML can't be loaded (libnvidia-ml.so.1: not found): GPU metrics are left out."},
        degraded=(
            "WARMUP_WARM_BUGDET_S is not a setting. Did you mean WARMUP_WARM_BUDGET_S?",
            "The store /mnt/store can't be read (Stale file handle): nothing is restored or published.",
        ),
    )
    made.tell("Restore failed: Stale file handle.", "error")
    made.tell("Warm-up ran out of its budget.", "warning")
    return made


def draining() -> Board:
    """Give a pod on its way out."""
    made = ready_after_restore()
    made.enter(Phase.DRAINING)
    made.gate = Gate(False, False, "Draining, asked by the operator: no new traffic; requests in flight may end.")
    return made


SCENES: Mapping[str, Callable[[], Board]] = {
    scene.__name__: scene
    for scene in (
        starting,
        awaiting_launcher,
        restoring,
        awaiting_engine,
        warming,
        ready,
        ready_after_restore,
        compiling_under_traffic,
        suspended,
        degraded,
        draining,
    )
}
