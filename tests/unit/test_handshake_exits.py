"""Why engines end: words of real engines, and what is not a cause."""

from __future__ import annotations

import pytest

from sidecar.handshake import CAUSES, Exited, classify_exit

API_SERVER = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)

CASES = [
    (
        "out_of_memory",
        1,
        "(EngineCore_DP0 pid=9) ERROR 11-29 [core.py:700] torch.OutOfMemoryError: CUDA out of memory. Tried",
    ),
    (
        "out_of_memory",
        1,
        "ValueError: Free memory on device (10/80 GiB) on startup is less than desired GPU memory utilization",
    ),
    (
        "out_of_memory",
        1,
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    ),
    (
        "out_of_memory",
        1,
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.0 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (8.1 GiB).",
    ),
    ("bad_arguments", 2, "vllm: error: unrecognized arguments: --nope"),
    ("bad_arguments", 2, "api_server.py: error: argument --kv-cache-dtype: invalid choice: 'fp7'"),
    ("bad_arguments", 1, "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"),
    ("missing_model", 1, "OSError: /models/m is not a local folder and is not a valid model identifier listed on"),
    ("missing_model", 1, "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error."),
    ("missing_model", 1, "ValueError: Invalid repository ID or local directory specified: '/models/m'."),
    ("port_in_use", 1, "OSError: [Errno 98] Address already in use"),
    (
        "out_of_memory",
        1,
        "ERROR [core.py:700] RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    (
        "out_of_memory",
        1,
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error, NCCL version "
        "2.27.3 ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'",
    ),
    (
        "missing_model",
        1,
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ),
    (
        "missing_model",
        1,
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find",
    ),
    ("missing_model", 1, "OSError: [Errno 116] Stale file handle: '/models/m/model-00001-of-00004.safetensors'"),
    ("gpu_unusable", 1, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("gpu_unusable", 1, "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("gpu_unusable", 1, "RuntimeError: No CUDA GPUs are available"),
    (
        "gpu_unusable",
        1,
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    ),
    ("gpu_unusable", 1, "pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch."),
    (
        "peer_missing",
        1,
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    ),
    (
        "peer_missing",
        1,
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to",
    ),
    (
        "peer_missing",
        1,
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (n0, 29500).",
    ),
    (
        "artifact_download",
        1,
        "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://edge.urm.nvidia.com/x/fmha.cubin",
    ),
    (
        "missing_model",
        1,
        "huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/nvidia/m/x",
    ),
    ("limit_reached", 1, "RuntimeError: can't start new thread"),
    ("limit_reached", 1, "OSError: [Errno 24] Too many open files"),
    ("wrong_arch", 1, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("driver_too_old", 1, "RuntimeError: CUDA driver version is insufficient for CUDA runtime version"),
    ("disk_full", 1, "OSError: [Errno 28] No space left on device: '/var/cache/engine/x'"),
    ("no_permission", 1, "PermissionError: [Errno 13] Permission denied: '/.triton'"),
    ("no_compiler", 1, "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found"),
    ("no_compiler", 1, "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'"),
    ("artifact_download", 1, "RuntimeError: Failed to download cubin fmhaSm100.cubin"),
    ("crash", 1, "AssertionError: expected size 4==4, stride 5120==2560 at dim=0"),
    ("crash", 1, API_SERVER),
    ("crash", 134, "terminate called after throwing an instance of 'c10::Error'"),
    ("crash", 0, "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."),
    ("clean", 0, "INFO: Application shutdown complete."),
    ("not_found", 127, "vllm: [Errno 2] No such file or directory: 'vllm'"),
    ("killed", 137, "INFO still loading"),
    (
        "step_timeout",
        1,
        "(EngineCore_DP0 pid=9) ERROR 11-29 [core.py:720] TimeoutError: RPC call to execute_model timed out.",
    ),
    ("step_timeout", 1, "ERROR [core.py:655] TimeoutError: RPC call to sample_tokens timed out."),
    (
        "step_timeout",
        134,
        "[rank1]:[E1129 20:27:21.43 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600081 milliseconds",
    ),
    ("step_timeout", 1, "[PG 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"),
]


@pytest.mark.parametrize(("cause", "code", "line"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)])
def test_the_cause_is_read_from_exit_code_and_last_words(cause: str, code: int, line: str):
    found = classify_exit(Exited(code, None, 12.3, False, ("INFO before", line)))
    assert found.cause == cause
    assert CAUSES[cause].rstrip(".") in found.sentence
    assert "12 s" in found.sentence


@pytest.mark.parametrize(
    ("number", "cause", "counts"),
    [
        (9, "killed", False),
        (11, "crash", True),
        (6, "crash", True),
        (15, "terminated", False),
        (2, "terminated", False),
        (64, "crash", True),
    ],
)
def test_signals_from_outside_do_not_count_and_faults_do(number: int, cause: str, counts: bool):
    found = classify_exit(Exited(None, number, 1.0, False, ()))
    assert (found.cause, found.counts) == (cause, counts)


def test_only_what_a_cache_can_bring_about_counts():
    counting = {
        classify_exit(Exited(code, None, 1, False, (line,))).cause
        for _, code, line in CASES
        if classify_exit(Exited(code, None, 1, False, (line,))).counts
    }
    assert counting == {"crash", "wrong_arch", "driver_too_old", "step_timeout"}


STALLED = Exited(1, None, 1210, False, ("ERROR [core.py:720] TimeoutError: RPC call to execute_model timed out.",))


def test_a_step_that_ran_out_of_time_while_kernels_were_compiled_is_a_compile_stall_that_passes():
    found = classify_exit(STALLED, compiled=lambda: True)
    assert (found.cause, found.counts, found.passing) == ("compile_stall", False, True)
    assert found.sentence.startswith("Compile stall:")
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" in found.sentence


def test_a_step_that_ran_out_of_time_without_compiling_counts_against_the_restored_cache():
    found = classify_exit(STALLED, compiled=lambda: False)
    assert (found.cause, found.counts, found.passing) == ("step_timeout", True, False)


def test_the_live_cache_is_not_looked_through_for_another_cause():
    def looked() -> bool:
        raise AssertionError

    assert (
        classify_exit(Exited(1, None, 1, False, ("torch.OutOfMemoryError: x",)), compiled=looked).cause
        == "out_of_memory"
    )


def test_the_worker_that_ran_out_of_memory_explains_the_one_that_waited_for_it():
    lines = (
        "ERROR torch.OutOfMemoryError: CUDA out of memory",
        "ERROR TimeoutError: RPC call to execute_model timed out.",
    )
    assert classify_exit(Exited(1, None, 1, False, lines), compiled=lambda: True).cause == "out_of_memory"


def test_an_end_that_was_asked_for_is_no_crash():
    lines = ("EngineDeadError: EngineCore encountered an issue",)
    assert classify_exit(Exited(1, None, 1, False, lines), terminating=True).cause == "terminated"
    assert classify_exit(Exited(1, None, 1, True, lines)).cause == "restart"


def test_the_root_cause_above_the_last_lines_is_found():
    root = "(EngineCore_DP0 pid=9) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    found = classify_exit(Exited(1, None, 1, False, (API_SERVER,)), fatal_lines=(root,))
    assert found.cause == "out_of_memory"
    assert "CUDA out of memory" in found.sentence


@pytest.mark.parametrize(
    ("code", "number", "cause"), [(0, None, "clean"), (None, 9, "killed"), (None, 11, "crash"), (1, None, "crash")]
)
def test_a_warning_of_an_engine_without_a_network_is_no_cause(code: int | None, number: int | None, cause: str):
    warning = (
        "(EngineCore pid=1299) WARNING 11-29 18:54:57 [flashinfer.py:369] Failed to connect to NVIDIA artifactory: "
        "HTTPSConnectionPool(host='edge.urm.nvidia.com', port=443): Max retries exceeded with url: /artifactory/"
    )
    assert classify_exit(Exited(code, number, 1, False, ("bye",)), fatal_lines=(warning,)).cause == cause


@pytest.mark.parametrize(
    "warning",
    [
        "[W1129 12:00:00.123456789 socket.cpp:755] [c10d] The client socket has failed to connect to [localhost]:29500 "
        "(errno: 99 - Cannot assign requested address).",
        "(EngineCore_DP0 pid=77) [W socket.cpp:464] [c10d] The client socket has failed to connect to [::1]:29500 "
        "(errno: 97 - Address family not supported by protocol).",
    ],
)
def test_an_address_at_which_a_peer_was_not_found_at_once_is_no_cause(warning: str):
    death = "RuntimeError: CUDA error: an illegal memory access was encountered"
    found = classify_exit(Exited(1, None, 9, False, (warning, death)))
    assert (found.cause, found.counts) == ("crash", True)


@pytest.mark.parametrize(
    ("code", "number", "line"),
    [
        (1, None, "RuntimeError: Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."),
        (None, 9, "INFO still loading"),
        (1, None, "ERROR TimeoutError: RPC call to execute_model timed out."),
    ],
)
def test_a_worker_that_the_kernel_ended_for_want_of_memory_says_nothing_against_a_cache(
    code: int | None, number: int | None, line: str
):
    found = classify_exit(Exited(code, number, 9, False, (line,), oom_kills=2), compiled=lambda: True)
    assert (found.cause, found.counts) == ("out_of_memory", False)
    assert "The kernel ended 2 of its container's processes: raise the memory limit." in found.sentence


def test_a_kernel_for_another_gpu_is_the_cause_whatever_else_ran_out_of_memory():
    line = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    assert classify_exit(Exited(1, None, 9, False, (line,), oom_kills=1)).cause == "wrong_arch"


def test_a_kernel_that_reads_where_it_may_not_is_no_want_of_memory():
    line = "RuntimeError: CUDA error: an illegal memory access was encountered"
    found = classify_exit(Exited(1, None, 9, False, (line,), oom_kills=1))
    assert (found.cause, found.counts) == ("crash", True)


@pytest.mark.parametrize(
    ("told", "kills"), [({}, 0), ({"oom_kills": 3}, 3), ({"oom_kills": "3"}, 0), ({"oom_kills": -1}, 0)]
)
def test_a_last_word_of_any_launcher_is_understood(told: dict[str, object], kills: int):
    found = Exited.parse({"code": 1, "signal": None, "seconds": 2, "restarting": False, "last_lines": [], **told})
    assert found is not None
    assert found.oom_kills == kills


def test_an_engine_that_never_ran_and_an_endless_line_make_a_sentence():
    assert "it never ran" in classify_exit(Exited(None, None, 0, False, ())).sentence
    sentence = classify_exit(Exited(1, None, 0, False, ("ValueError: " + "x" * 5000,))).sentence
    assert len(sentence) < 400
