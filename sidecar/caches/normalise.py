"""Reduce an engine's arguments and environment to what may change the kernels it compiles.

What is harmless is listed here, once; everything that is not listed is kept, unknown `VLLM_*` variables included.
No key is computed here (`fingerprint`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sidecar.caches.families import FAMILIES

# Options of `vllm serve` 0.33 with one value that can't change a kernel: addresses, logs, credentials.
HARMLESS_OPTIONS = frozenset(
    f"--{name}"
    for name in (
        "host port uds root-path log-config-file uvicorn-log-level max-log-len "
        "disable-access-log-for-endpoints allowed-origins allowed-methods allowed-headers ssl-keyfile ssl-certfile "
        "ssl-ca-certs ssl-cert-reqs ssl-ciphers otlp-traces-endpoint hf-token data-parallel-address "
        "data-parallel-rpc-port master-addr master-port h11-max-incomplete-event-size h11-max-header-count"
    ).split()
)
# The same with any number of values, all up to the next option.
HARMLESS_LISTS = frozenset({"--served-model-name", "--api-key"})
# The same without a value.
HARMLESS_FLAGS = frozenset(
    f"--{name}"
    for name in (
        "disable-log-requests enable-log-requests no-enable-log-requests disable-log-stats enable-log-outputs "
        "no-enable-log-outputs disable-uvicorn-access-log allow-credentials enable-ssl-refresh enable-request-id-headers "
        "enable-server-load-tracking disable-fastapi-docs enable-tokenizer-info-endpoint"
    ).split()
)
SHORT_OPTIONS = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpr": "--data-parallel-rank",
    "-dpl": "--data-parallel-size-local",
    "-ep": "--enable-expert-parallel",
    "-cc": "--compilation-config",
    "-q": "--quantization",
    "-n": "--nnodes",
    "-r": "--node-rank",
}
# Variables that differ from pod to pod or say nothing about kernels. Patterns match the whole name. Those that vLLM
# puts into its own key although they are harmless (VLLM_USAGE_SOURCE, VLLM_ENGINE_READY_TIMEOUT_S) are not here:
# a hit of ours would be a miss of the engine's.
HARMLESS_VARIABLES = (
    r"VLLM_(HOST_IP|PORT|RPC_BASE_PATH|API_KEY|LOOPBACK_IP|SERVER_DEV_MODE|KEEP_ALIVE_ON_ENGINE_DEATH|DEBUG_LOG_.*)",
    r"VLLM_(NIXL|P2P|EC|MOONCAKE)_.*(HOST|PORT|IP)",
    r"VLLM_(LOGGING_.*|CONFIGURE_LOGGING|TRACE_FUNCTION|NO_USAGE_STATS|USAGE_STATS_SERVER)",
    r"VLLM_(DO_NOT_TRACK|ASSETS_CACHE|MEDIA_CACHE)",
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
NODE_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?")

_HARMLESS = re.compile("|".join(f"(?:{one})" for one in HARMLESS_VARIABLES))
_COMPILER = re.compile("|".join(f"(?:{one})" for one in COMPILER_VARIABLES))
_MOVED = frozenset(name for family in FAMILIES for name in family.variables)


def arguments(argv: Sequence[str]) -> dict[str, str]:
    """Map each relevant option to its value; the command and positional words come as `command`.

    Spelling (`--a=b`, underscores, short forms), order of options and harmless options make no difference. An option
    given twice keeps both values in order.
    """
    found: dict[str, list[str]] = {"command": []}
    option, room = "command", 1
    for word in _words(argv):
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            room = _values_taken(option) - len(equals)
            values = [value] if equals else []
        else:
            # A word beyond what a harmless option takes is a positional one, such as the model.
            option, room = (option, room - 1) if room > 0 else ("command", 1)
            values = [word]
        if not _is_harmless(option):
            found.setdefault(option, []).extend(values)
    return {name: NODE_ADDRESS.sub("<address>", " ".join(values)) for name, values in found.items()}


def _values_taken(option: str) -> int:
    if option in HARMLESS_FLAGS:
        return 0
    return 1 if option in HARMLESS_OPTIONS else 1_000_000


def _is_harmless(option: str) -> bool:
    return option in HARMLESS_FLAGS or option in HARMLESS_OPTIONS or option in HARMLESS_LISTS


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Keep the variables that may change a kernel, with addresses replaced and device lists counted.

    Variables that put a cache family somewhere are left out: the live cache's path is a fact of its own.
    """
    kept = {}
    for name, value in given.items():
        if name in _MOVED or _HARMLESS.fullmatch(name):
            continue
        if name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            kept[name] = f"{len([one for one in value.split(',') if one.strip()])} devices"
        else:
            kept[name] = NODE_ADDRESS.sub("<address>", value)
    return kept


def compiler_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Keep of the relevant variables those that the self-keyed compilers look at."""
    return {name: value for name, value in environment(given).items() if _COMPILER.fullmatch(name)}


def words_of(value: object) -> list[str]:
    """Take a list of words as it came in facts; anything else is no words."""
    return [str(word) for word in value] if isinstance(value, list) else []


def world_size(argv: object) -> int:
    """Multiply the engine's parallel sizes; 1 when they are not given or make no sense."""
    given = arguments(words_of(argv))
    size = 1
    for name in ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"):
        word = given.get(name, "1").rsplit(" ", 1)[-1]
        size *= max(1, int(word)) if word.isdecimal() and len(word) < 6 else 1
    return size


def _words(argv: Sequence[str]) -> list[str]:
    """Spell options alike: long names, dashes; the command by its last path component only."""
    words = []
    for position, word in enumerate(argv):
        if position == 0:
            words.append(word.rsplit("/", 1)[-1])
            continue
        name, equals, value = word.partition("=")
        if name in SHORT_OPTIONS:
            name = SHORT_OPTIONS[name]
        if name.startswith("--"):
            dotted = name.split(".", 1)
            name = ".".join([dotted[0].replace("_", "-"), *dotted[1:]])
        words.append(name + equals + value)
    return words
