"""Reduce an engine's arguments and environment to what may change the kernels it compiles.

What is harmless is listed here, once; everything that is not listed is kept, unknown `VLLM_*` variables included.
No key is computed here (`fingerprint`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.caches.families import FAMILIES, Ranks

# Options of `vllm serve` (the lists of 0.32 and 0.33, and names of older versions) with one value that can't change a
# kernel: addresses, logs, credentials, and what only the API server in front of the engine looks at.
HARMLESS_OPTIONS = frozenset(
    f"--{name}"
    for name in (
        "host port uds root-path grpc-port log-level log-config-file logging-config uvicorn-log-level max-log-len "
        "disable-access-log-for-endpoints allowed-origins allowed-methods allowed-headers ssl-keyfile ssl-certfile "
        "ssl-ca-certs ssl-cert-reqs ssl-ciphers otlp-traces-endpoint hf-token data-parallel-address "
        "data-parallel-rpc-port data-parallel-supervisor-port dp-supervisor-probe-failure-threshold "
        "dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s master-addr master-port shutdown-timeout "
        "h11-max-incomplete-event-size h11-max-header-count sse-keep-alive-interval show-hidden-metrics-for-version "
        "custom-histogram-buckets fingerprint-mode fingerprint-value jit-monitor-mode chat-template "
        "chat-template-content-format default-chat-template-kwargs response-role tool-call-parser tool-server "
        "tool-strict-level allowed-local-media-path"
    ).split()
)
# The same with any number of values, all up to the next option.
HARMLESS_LISTS = frozenset({"--served-model-name", "--api-key", "--allowed-media-domains"})
# The same without a value; each may also be spelt `--no-…`.
HARMLESS_FLAGS = frozenset(
    f"--{name}"
    for name in (
        "disable-log-requests enable-log-requests disable-log-stats enable-log-outputs enable-log-deltas "
        "log-error-stack aggregate-engine-logging enable-logging-iteration-details jit-monitor-verbose "
        "disable-uvicorn-access-log allow-credentials enable-ssl-refresh enable-request-id-headers "
        "enable-server-load-tracking disable-fastapi-docs enable-offline-docs enable-tokenizer-info-endpoint "
        "enable-auto-tool-choice exclude-tools-when-tool-choice-none enable-force-include-usage "
        "enable-prompt-tokens-details enable-per-request-metrics return-tokens-as-token-ids "
        "trust-request-chat-template use-tqdm-on-load fail-on-environ-validation"
    ).split()
)
# Short forms as `vllm serve --help=all` of 0.32 lists them.
SHORT_OPTIONS = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-ep": "--enable-expert-parallel",
    "-asc": "--api-server-count",
    "-ac": "--attention-config",
    "-cc": "--compilation-config",
    "-dc": "--diffusion-config",
    "-sc": "--speculative-config",
    "-q": "--quantization",
    "-n": "--nnodes",
    "-r": "--node-rank",
}
PARALLEL_SIZES = (
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--prefill-context-parallel-size",
    "--data-parallel-size",
)
# Options that are given only where other pods run ranks of the same engine.
ELSEWHERE = frozenset(
    "--headless --node-rank --data-parallel-rank --data-parallel-start-rank --data-parallel-external-lb "
    "--data-parallel-hybrid-lb --data-parallel-multi-port-external-lb".split()
)
# Variables that differ from pod to pod or say nothing about kernels. Patterns match the whole name. Those that vLLM
# puts into its own key although they are harmless (VLLM_USAGE_SOURCE, VLLM_ENGINE_READY_TIMEOUT_S) are not here:
# a hit of ours would be a miss of the engine's.
HARMLESS_VARIABLES = (
    r"VLLM_(HOST_IP|PORT|RPC_BASE_PATH|API_KEY|LOOPBACK_IP|SERVER_DEV_MODE|KEEP_ALIVE_ON_ENGINE_DEATH|DEBUG_LOG_.*)",
    r"VLLM_(NIXL|P2P|EC|MOONCAKE)_.*(HOST|PORT|IP)",
    r"VLLM_(LOGGING_.*|CONFIGURE_LOGGING|TRACE_FUNCTION|NO_USAGE_STATS|USAGE_STATS_SERVER)",
    r"VLLM_(DO_NOT_TRACK|ASSETS_CACHE|MEDIA_CACHE|LOG_STATS_INTERVAL|RINGBUFFER_WARNING_INTERVAL|FORCE_AOT_LOAD)",
    # How long to wait and how many at once; vLLM leaves them out of its own key too (0.32 envs.py).
    r"VLLM_(HTTP_TIMEOUT_KEEP_ALIVE|EXECUTE_MODEL_TIMEOUT_SECONDS|WORKER_SHUTDOWN_TIMEOUT_SECONDS)",
    r"VLLM_((IMAGE|VIDEO|AUDIO)_FETCH_TIMEOUT|TRITON_JIT_WARMUP_NUM_THREADS)|MAX_JOBS",
    r"VLLM_DP_(MASTER_IP|MASTER_PORT)",
    # Service links that Kubernetes adds for a Service named like the prefix: VLLM_SERVICE_HOST, VLLM_PORT_8000_TCP.
    r".*_SERVICE_(HOST|PORT|PORT_.*)",
    r".*_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?",
    # Which devices this pod was given; their names and number are facts of their own.
    r"NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|REQUIRE_CUDA|PRODUCT_NAME)",
    r"(NCCL|TORCH_NCCL)_(DEBUG|DEBUG_.*|SOCKET_IFNAME|HOSTID|ASYNC_ERROR_HANDLING|DUMP_.*|TRACE_.*)",
    r"(TORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON)_(LOGS|LOGS_.*|LOGS_OUT|VERBOSE|TRACE)",
    r"(CUDA|TORCH)_(LOG_FILE|CPP_LOG_LEVEL|SHOW_CPP_STACKTRACES)",
)
# What self-keyed compilers look at; the rest of the environment is the model's and the engine's business.
COMPILER_VARIABLES = (
    r"(CC|CXX|CUDAHOSTCXX|NVCC|NVCC_.*|CFLAGS|CXXFLAGS|LDFLAGS)",
    r"(CUDA_HOME|CUDA_PATH|CUDA_INC_PATH|TORCH_CUDA_ARCH_LIST)",
    r"(TRITON|FLASHINFER|DG|TILELANG|TVM|CUTE_DSL|QUACK|HUMMING|B12X|FLASH_ATTENTION)_.*",
)
# What may be an address with a port; whether it is one, `ipaddress` says.
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\[(?P<bracketed>[0-9A-Fa-f:.]{2,45})\]|(?P<four>\d{1,3}(?:\.\d{1,3}){3})|(?P<six>[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}))"
    r"(?(six)|(?::\d{1,5})?)(?![\w.:])"
)

_HARMLESS = re.compile("|".join(f"(?:{one})" for one in HARMLESS_VARIABLES))
# A short option this table does not know, such as -O3; numbers below zero are values.
_SHORT = re.compile(r"-[A-Za-z]")
_COMPILER = re.compile("|".join(f"(?:{one})" for one in COMPILER_VARIABLES))
_MOVED = frozenset(name for family in FAMILIES for name in family.variables)


def without_addresses(value: str, own_name: str = "") -> str:
    """Replace network addresses and the pod's own name in a value: they differ from pod to pod.

    A name is believed to be a pod's when it has a dash and a digit, such as `engine-0` or `engine-7d9f8b6c5-x2x9z`;
    others may be a word of a path or of a model's name.
    """
    value = _ADDRESS.sub(_address, value)
    if "-" in own_name and any(character.isdigit() for character in own_name):
        value = re.sub(rf"(?<![\w-]){re.escape(own_name)}(?![\w-])", "<own name>", value)
    return value


def _address(found: re.Match[str]) -> str:
    try:
        ipaddress.ip_address(found["bracketed"] or found["four"] or found["six"])
    except ValueError:
        return found[0]
    return "<address>"


def arguments(argv: Sequence[str], own_name: str = "") -> dict[str, str]:
    """Map each relevant option to its value; the command and positional words come as `command`.

    Spelling (`--a=b`, underscores, short forms), order of options and harmless options make no difference. An option
    given twice keeps both values in order.
    """
    found: dict[str, list[str]] = {"command": []}
    option, room = "command", 1
    for word in _words(argv):
        if word.startswith("--") or _SHORT.match(word):
            option, equals, value = word.partition("=")
            room = _values_taken(option) - len(equals)
            values = [value] if equals else []
        else:
            # A word beyond what a harmless option takes is a positional one, such as the model.
            option, room = (option, room - 1) if room > 0 else ("command", 1)
            values = [word]
        if not _is_harmless(option):
            found.setdefault(option, []).extend(values)
    return {name: without_addresses(" ".join(values), own_name) for name, values in found.items()}


def _values_taken(option: str) -> int:
    if _is_harmless_flag(option):
        return 0
    return 1 if option in HARMLESS_OPTIONS else 1_000_000


def _is_harmless(option: str) -> bool:
    return _is_harmless_flag(option) or option in HARMLESS_OPTIONS or option in HARMLESS_LISTS


def _is_harmless_flag(option: str) -> bool:
    return option in HARMLESS_FLAGS or (option.startswith("--no-") and f"--{option[5:]}" in HARMLESS_FLAGS)


def environment(given: Mapping[str, str], own_name: str = "") -> dict[str, str]:
    """Keep the variables that may change a kernel, with addresses and our own name replaced and device lists counted.

    Variables that put a cache family somewhere are left out: the live cache's path is a fact of its own.
    """
    kept = {}
    for name, value in given.items():
        if name in _MOVED or _HARMLESS.fullmatch(name):
            continue
        if name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            kept[name] = f"{len([one for one in value.split(',') if one.strip()])} devices"
        else:
            # A version of four numbers looks like an address.
            kept[name] = value if name.endswith("VERSION") else without_addresses(value, own_name)
    return kept


def compiler_environment(given: Mapping[str, str], own_name: str = "") -> dict[str, str]:
    """Keep of the relevant variables those that the self-keyed compilers look at."""
    return {name: value for name, value in environment(given, own_name).items() if _COMPILER.fullmatch(name)}


def words_of(value: object) -> list[str]:
    """Take a list of words as it came in facts; anything else is no words."""
    return [str(word) for word in value] if isinstance(value, list) else []


def world_size(argv: object) -> int:
    """Multiply the engine's parallel sizes; 1 when they are not given or make no sense.

    Source: vLLM 0.32 config/parallel.py:945, `world_size_across_dp`.
    """
    given = arguments(words_of(argv))
    size = 1
    for name in PARALLEL_SIZES:
        size *= _number(given.get(name, ""), 1)
    return size


def ranks(facts: Mapping[str, Any]) -> Ranks:
    """Say how many ranks the engine has, and whether all of them run in this pod; in doubt they do not."""
    given = arguments(words_of(facts.get("argv")))
    found = facts.get("world")
    world = {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}
    total = max(world_size(facts.get("argv")), _number(world.get("WORLD_SIZE", ""), 1))
    data_parallel = _number(given.get("--data-parallel-size", ""), 1)
    nodes = [given.get("--nnodes", ""), world.get("LWS_GROUP_SIZE", ""), world.get("SLURM_NNODES", "")]
    elsewhere = (
        any(_number(word, 1) > 1 for word in nodes)
        or not ELSEWHERE.isdisjoint(given)
        or _number(given.get("--data-parallel-size-local", ""), data_parallel) < data_parallel
        or any(name.startswith("VLLM_DP_RANK") for name in world)
        or given.get("--distributed-executor-backend", "").endswith("ray")
    )
    return Ranks(total, not elsewhere)


def _number(text: str, otherwise: int) -> int:
    word = text.rsplit(" ", 1)[-1]
    return max(1, int(word)) if word.isdecimal() and len(word) < 6 else otherwise


def _words(argv: Sequence[str]) -> list[str]:
    """Spell options alike: long names, dashes; the command by its last path component only."""
    words = []
    for position, word in enumerate(argv):
        if position == 0:
            words.append(word.rsplit("/", 1)[-1])
            continue
        name, equals, value = word.partition("=")
        short, dot, rest = name.partition(".")
        name = SHORT_OPTIONS.get(short, short) + dot + rest
        if name.startswith("--"):
            dotted = name.split(".", 1)
            name = ".".join([dotted[0].replace("_", "-"), *dotted[1:]])
        words.append(name + equals + value)
    return words
