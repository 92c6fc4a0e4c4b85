"""Why an engine ended, from its exit code and last words; conservative: without a known sign it is a crash.

Whether the restored cache is given up is not decided here; it is only said whether it could be to blame.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sidecar.handshake.messages import Exited

#: Every cause, with its meaning; the label `cause` of the restart counter has these values.
CAUSES = {
    "restart": "The sidecar asked for the restart.",
    "terminated": "The container was asked to end.",
    "clean": "The engine ended with code 0 and said nothing of an error.",
    "not_found": "The engine's command does not exist or can't be executed.",
    "bad_arguments": "The engine refuses its arguments.",
    "missing_model": "The model's files can't be found or read.",
    "port_in_use": "Something else listens on the engine's port.",
    "out_of_memory": "GPU or main memory was not enough.",
    "disk_full": "A disk is full.",
    "no_permission": "The engine may not write where it has to.",
    "no_compiler": "A compiler that the engine needs is not in its image.",
    "artifact_download": "The engine wanted to download kernels and could not.",
    "driver_too_old": "Code was built for a newer CUDA than the driver has.",
    "wrong_arch": "A kernel was built for another GPU.",
    "gpu_unusable": "A GPU, its driver or its links failed or were not there; another node may do.",
    "peer_missing": "Other parts of the engine, mostly on other nodes, did not come in time.",
    "limit_reached": "A limit on processes, threads or open files was reached.",
    "compile_stall": "Compile stall: kernels were being compiled for longer than the engine waits for one step.",
    "step_timeout": "One step took longer than the engine waits for it, and no kernel was compiled meanwhile.",
    "killed": "The engine was killed from outside.",
    "crash": "The engine failed in a way that names no other cause.",
}
#: Causes that a restored cache can bring about; all others never count against a generation.
_CACHE_MAY_BE_TO_BLAME = frozenset({"crash", "wrong_arch", "driver_too_old", "step_timeout"})
#: Causes that another try on the same caches gets past: what was compiled is there by then.
PASSING = frozenset({"compile_stall"})

#: What engines print, tried in this order: the specific before what may follow from it. Wordings of vLLM 0.2x
#: to 0.33, PyTorch 2.x, the CUDA runtime's error strings, huggingface_hub, ninja, asyncio and argparse.
_SIGNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(signs, re.IGNORECASE))
    for cause, signs in (
        (
            "wrong_arch",
            r"no kernel image is available|unsupported gpu architecture|invalid device function"
            r"|is not compatible with the current PyTorch installation",
        ),
        (
            "driver_too_old",
            r"driver version is insufficient"
            r"|provided PTX was compiled with an unsupported toolchain",
        ),
        # What the CUDA runtime and NVML say of hardware and driver (cudaError_t and nvmlReturn_t, by their texts).
        (
            "gpu_unusable",
            r"uncorrectable (ECC|NVLink) error|CUDA-capable device\(s\) is/are busy or unavailable"
            r"|no CUDA-capable device is detected|No CUDA GPUs are available|Found no NVIDIA driver"
            r"|system not yet initialized|unsupported display driver / cuda driver combination"
            r"|forward compatibility was attempted on non supported HW|CUDA driver initialization failed"
            r"|MPS client failed to connect|Failed to infer device type"
            r"|NVMLError_(DriverNotLoaded|LibRmVersionMismatch|GpuIsLost)|Driver/library version mismatch"
            r"|nvlink or a hardware error",
        ),
        (
            "out_of_memory",
            r"(CUDA|HIP) out of memory|OutOfMemoryError|(CUDA|HIP) error: out of memory|std::bad_alloc"
            r"|CU(BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED|(Cuda|Hip) failure \d* ?'out of memory'"
            r"|Cannot allocate memory|No available memory for the cache blocks"
            r"|less than desired GPU memory utilization"
            r"|larger than the available KV cache memory"
            r"|larger than the maximum number of tokens that can be stored in KV cache"
            r"|(^|\s)MemoryError\b",
        ),
        ("port_in_use", r"address already in use|\[Errno 98\]"),
        ("disk_full", r"No space left on device|Disk quota exceeded"),
        (
            "missing_model",
            r"is not a local folder and is not a valid model identifier|RepositoryNotFoundError"
            r"|GatedRepoError|LocalEntryNotFoundError|does not appear to have a file named"
            r"|Invalid repository ID or local directory|Cannot find any model weights"
            r"|No such file or directory: \S*(config\.json|\.safetensors|tokenizer)"
            r"|SafetensorError|couldn't connect to 'https?://|OfflineModeIsEnabled"
            r"|HTTPError: 40[13] Client Error(?!.*(nvidia\.com/|\.cubin))"
            r"|(Stale file handle|Input/output error): \S*\.safetensors",
        ),
        (
            "artifact_download",
            r"Failed to (download|get file)\b.*|Max retries exceeded with url|HTTPError: 40[13] Client Error"
            r"|outgoing traffic has been disabled",
        ),
        (
            "no_compiler",
            r"(nvcc|g\+\+|gcc|c\+\+|ninja): (command )?not found"
            r"|InvalidCxxCompiler|Could not find nvcc"
            r"|Ninja is required to load C\+\+ extensions|Failed to find C compiler"
            r"|No such file or directory: '\S*(nvcc|ninja|g\+\+|gcc)'",
        ),
        ("no_permission", r"PermissionError|Read-only file system"),
        ("limit_reached", r"can't start new thread|Too many open files|BlockingIOError: \[Errno 11\]"),
        # The rendezvous of torch.distributed (c10d TCPStore, torch 2.x): before any kernel is loaded. Of each address that it
        # tries in vain it warns, also where the next one answers.
        (
            "peer_missing",
            r"Timed out after \d+ seconds waiting for clients|The client socket has timed out\b"
            r"|The client socket has failed to connect to any network address",
        ),
        # vLLM's executor (v1/executor/multiproc_executor.py, 0.9 to 0.33), NCCL's watchdog and its monitor
        # (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, 2.x), and gloo's.
        (
            "step_timeout",
            r"RPC call to \w+ timed out|Watchdog caught collective operation timeout"
            r"|watchdog (thread )?got stuck for|Timed out waiting \d+ms for (recv|send) operation",
        ),
        (
            "bad_arguments",
            r"error: (unrecognized|argument |the following arguments|ambiguous option)"
            r"|validation errors? for \w*(Config|Args)|invalid choice:",
        ),
    )
)
_GO_ON = (
    "What it compiled is kept and the next start goes on from there; if that repeats, raise "
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS and --distributed-timeout-seconds of the engine."
)
#: Ends that look so from outside where the kernel has ended a worker or a compiler for want of memory.
_AS_IF = frozenset({"crash", "killed", "step_timeout"})
#: What only code on a GPU does (cudaError_t, by its texts), whatever the kernel of the machine has ended meanwhile.
_ON_GPU = re.compile(
    r"illegal memory access|misaligned address|an illegal instruction was encountered|device-side assert|invalid program counter"
    r"|hardware stack error|unspecified launch failure"
)
_DEATH = re.compile(
    r"EngineDeadError|Engine ?core (?!pid=).*(failed|died)|(^|\s)[\w.]*(Error|Exception)\b:|Traceback \(most recent",
    re.IGNORECASE,
)
#: How vLLM begins a line below the level of an error. Without a network FlashInfer warns of "Max retries exceeded" at
#: each start and goes on; what an engine only warns of did not end it.
_MILD = re.compile(r"(\([^)]*\)\s*)?(DEBUG|INFO|WARNING)\b")
_SAME_AS_KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True)
class ExitCause:
    """Why an engine ended: one of `CAUSES`, a sentence, and whether a restored cache may be to blame.

    `passing`: another try on the same caches gets further, so they are kept and the try is worth it.
    """

    cause: str
    sentence: str
    counts: bool
    passing: bool = False


def classify_exit(
    exited: Exited,
    terminating: bool = False,
    fatal_lines: Sequence[str] = (),
    compiled: Callable[[], bool] = lambda: False,
) -> ExitCause:
    """Tell why the engine ended.

    `terminating`: its container had been asked to end. `fatal_lines`: texts of earlier lines of kind fatal,
    because the root cause of a vLLM death is often above the last lines. `compiled` is asked, where a step took too
    long, whether this engine has compiled kernels: one that has not waits for itself, and its caches may be why.
    """
    lines = [*fatal_lines, *exited.last_lines]
    cause, evidence = _cause(exited, terminating, lines)
    starved = exited.oom_kills > 0 and cause in _AS_IF and not any(map(_ON_GPU.search, lines))
    if starved:
        cause = "out_of_memory"
    if cause == "step_timeout" and compiled():
        cause = "compile_stall"
    said = f' It said: "{_short(evidence)}"' if evidence else ""
    if starved:
        said = f" The kernel ended {exited.oom_kills} of its container's processes: raise the memory limit.{said}"
    sentence = f"{CAUSES[cause]} ({_ending(exited)}).{said}".replace(". (", " (", 1)
    advice = f" {_GO_ON}" if cause in PASSING else ""
    return ExitCause(cause, sentence + advice, cause in _CACHE_MAY_BE_TO_BLAME, cause in PASSING)


def _cause(exited: Exited, terminating: bool, lines: Sequence[str]) -> tuple[str, str]:
    if exited.restarting:
        return "restart", ""
    if terminating or exited.signal in (signal.SIGTERM, signal.SIGINT):
        return "terminated", ""
    if exited.code in (126, 127):
        return "not_found", lines[-1] if lines else ""
    grave = [line for line in lines if not _MILD.match(line)]
    death = next((line for line in reversed(grave) if _DEATH.search(line)), "")
    if exited.code == 0 and not death:
        return "clean", ""
    for cause, signs in _SIGNS:
        for line in grave:
            if signs.search(line):
                return cause, line
    if exited.signal == signal.SIGKILL or exited.code == _SAME_AS_KILLED:
        return "killed", ""
    return "crash", death or (lines[-1] if lines else "")


def _ending(exited: Exited) -> str:
    after = f"after {exited.seconds:.0f} s"
    if exited.signal is not None:
        return f"{_signal_name(exited.signal)} {after}"
    return f"it never ran, {after}" if exited.code is None else f"exit code {exited.code} {after}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _short(line: str) -> str:
    text = " ".join(line.split())
    return text if len(text) <= 200 else text[:199] + "…"
