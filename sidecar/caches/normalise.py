"""Reduce an engine's arguments and environment to what may change the kernels it compiles.

What is harmless is listed here, once; everything that is not listed is kept, unknown `VLLM_*` variables included.
No key is computed here (`fingerprint`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sidecar.caches.families import FAMILIES, Ranks
from sidecar.caches.own_names import without_names, without_random_names
from sidecar.caches.privacy import is_connector, is_secret
from sidecar.caches.script import Command, command_of
from sidecar.caches.spelling import canonical, joined

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
        "tool-strict-level allowed-local-media-path "
        # SGLang's and TensorRT-LLM's: where peers and services are.
        "disaggregation-bootstrap-port dist-init-addr nccl-port log-level-http metadata-server-config-file"
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
        "trust-request-chat-template use-tqdm-on-load fail-on-environ-validation enable-metrics enable-cache-report"
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
# Parallel options as argparse takes them: one value each, and any beginning that no other one has.
PARALLEL_VALUES = frozenset(
    {
        *PARALLEL_SIZES,
        *(
            "--decode-context-parallel-size --data-parallel-size-local --data-parallel-rank --data-parallel-start-rank "
            "--data-parallel-backend --distributed-executor-backend --nnodes --node-rank"
        ).split(),
    }
)
PARALLEL_OPTIONS = PARALLEL_VALUES | ELSEWHERE | {"--data-parallel-address", "--data-parallel-rpc-port"}
# Other options that are often given by a variable and take one value, and the word before a model.
ONE_VALUE = frozenset(
    "serve --model --served-model-name --tokenizer --revision --dtype --max-model-len --gpu-memory-utilization --seed "
    "--max-num-seqs --max-num-batched-tokens --quantization --kv-cache-dtype --block-size --download-dir".split()
)
# SGLang's names.
OTHER_NAMES = {
    "--tp": "--tensor-parallel-size",
    "--tp-size": "--tensor-parallel-size",
    "--pp": "--pipeline-parallel-size",
    "--pp-size": "--pipeline-parallel-size",
    "--dp": "--data-parallel-size",
    "--dp-size": "--data-parallel-size",
}
# Variables that differ from pod to pod or say nothing about kernels. Patterns match the whole name. Those that vLLM
# puts into its own key although they are harmless (VLLM_USAGE_SOURCE, VLLM_ENGINE_READY_TIMEOUT_S) are not here:
# a hit of ours would be a miss of the engine's.
HARMLESS_VARIABLES = (
    r"VLLM_(HOST_IP|PORT|RPC_BASE_PATH|API_KEY|LOOPBACK_IP|SERVER_DEV_MODE|KEEP_ALIVE_ON_ENGINE_DEATH|DEBUG_LOG_.*)",
    r"VLLM_(NIXL|P2P|EC|MOONCAKE)_.*(HOST|PORT|IP)|MOONCAKE_REQUESTER_LOCAL_HOSTNAME|SGLANG_HOST_IP",
    # Dynamo's ports, names and services.
    r"(DYN|ETCD|NATS)_.*",
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
# Values that name what is computed, where four numbers are a version: nothing is taken out of them.
_KEPT_OPTION = re.compile(
    r"command|script|--model|--tokenizer|--hf-overrides|--.*(revision|version)|--.*-config(\..*)?"
)
_NAMES_MODEL = re.compile(r"command|--model|--tokenizer")
_KEPT_VARIABLE = re.compile(r".*(VERSION|REVISION|MODEL|TOKENIZER|CONFIG|PATH|DIR)")
# What may be an address with a port, where one is to be expected: behind a scheme, in brackets, alone in a word or a
# string. Whether it is one, `ipaddress` says.
_HOST = r"(?P<{0}>\d{{1,3}}(?:\.\d{{1,3}}){{3}}|[0-9A-Fa-f]{{0,4}}(?::[0-9A-Fa-f]{{0,4}}){{2,7}})"
_PORT = r"(?::\d{1,5})?"
_ADDRESS = re.compile(
    rf"(?<![\w.:])\[(?P<bracketed>[0-9A-Fa-f:.]{{2,45}})\]{_PORT}(?![\w.:])"
    rf"|(?<=://){_HOST.format('reached')}{_PORT}(?![\w.:])"
    rf"|(?:(?<=[\"'])|(?<![^\s,])){_HOST.format('alone')}{_PORT}(?=[\"'\s,]|$)"
)
_FOUR = re.compile(r"\d+(\.\d+){3}")
_FOR_ADDRESS = re.compile(r"addr|host|master|server|endpoint|url|[-_]ip\b")
# An IPv6 address outside brackets has so many groups at least: `a::b` may be anything.
_GROUPS = 3

_HARMLESS = re.compile("|".join(f"(?:{one})" for one in HARMLESS_VARIABLES))
# A short option this table does not know, such as -O3; numbers below zero are values.
_SHORT = re.compile(r"-[A-Za-z]")
_COMPILER = re.compile("|".join(f"(?:{one})" for one in COMPILER_VARIABLES))
_MOVED = frozenset(name for family in FAMILIES for name in family.variables)


def without_addresses(value: str, own: Sequence[str] = ()) -> str:
    """Replace network addresses and the pod's own names in a value: they differ from pod to pod."""
    return without_names(_ADDRESS.sub(_address, value), own)


def _address(found: re.Match[str]) -> str:
    host = found["bracketed"] or found["reached"] or found["alone"]
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return found[0]
    few = version == 6 and not found["bracketed"] and sum(map(bool, host.split(":"))) < _GROUPS
    return found[0] if few else "<address>"


def arguments(argv: Sequence[str], own: Sequence[str] = ()) -> dict[str, str]:
    """Map each relevant option to its value; the command and positional words come as `command`.

    Spelling (`--a=b`, underscores, short forms, JSON in one piece or by dotted options), order of options and harmless
    options make no difference. An option given twice keeps both values in order. What a shell is given by `-c` is looked
    into; its other commands are `script`.
    """
    return _arguments(command_of(argv), own)


def _arguments(command: Command, own: Sequence[str] = ()) -> dict[str, str]:
    found: dict[str, list[str]] = {"command": []}
    dotted: dict[str, list[tuple[str, str | None]]] = {}
    if command.around:
        found["script"] = list(command.around)
    option, room = "command", 1
    for word in _words(command.words):
        if word.startswith("--") or _SHORT.match(word):
            option, equals, value = word.partition("=")
            room = _values_taken(option) - len(equals)
            values = [value] if equals else []
            head, dot, path = option.partition(".")
            if dot:
                dotted.setdefault(head, []).append((path, value if equals else None))
        else:
            # A word beyond what a harmless option takes is a positional one, such as the model.
            option, room = (option, room - 1) if room > 0 else ("command", 1)
            values = [word]
            head, dot, path = option.partition(".")
            if dot:
                dotted[head][-1] = (path, word)
        if not (dot or _is_harmless(option)):
            found.setdefault(option, []).extend(values)
    _add_dotted(found, dotted)
    return {name: " ".join(_without_noise(name, value, own) for value in values) for name, values in found.items()}


def _add_dotted(found: dict[str, list[str]], dotted: Mapping[str, Sequence[tuple[str, str | None]]]) -> None:
    """Add dotted options as vLLM does: one JSON object for each option as it is spelt, behind its other values."""
    for head, given in dotted.items():
        option = SHORT_OPTIONS.get(head, head)
        if _is_harmless(option):
            continue
        pairs = [(path, value) for path, value in given if value is not None]
        # A secret is known by its whole name, which it would lose.
        secret = any(is_secret(f"{option}.{path}") for path, _ in given)
        whole = joined(pairs) if len(pairs) == len(given) and not secret else None
        if whole is not None:
            found.setdefault(option, []).append(whole)
            continue
        for path, value in given:
            found.setdefault(f"{head}.{path}", []).extend([] if value is None else [value])
        if len({path for path, _ in given}) > 1:
            found[f"{head} order"] = [path for path, _ in given]


def _without_noise(option: str, value: str, own: Sequence[str]) -> str:
    value = value if option in ("command", "script") else canonical(value)
    if _KEPT_OPTION.fullmatch(option) and not is_connector(option):
        return value if _NAMES_MODEL.fullmatch(option) else without_random_names(value, own)
    # Behind an option that is not one for an address, four numbers may be a model.
    if _FOUR.fullmatch(value) and not _FOR_ADDRESS.search(option):
        return value
    return without_addresses(value, own)


def _values_taken(option: str) -> int:
    if _is_harmless_flag(option):
        return 0
    one = option in HARMLESS_OPTIONS or option in PARALLEL_VALUES or option == "-O" or "." in option
    return 1 if one else 1_000_000


def _is_harmless(option: str) -> bool:
    return _is_harmless_flag(option) or option in HARMLESS_OPTIONS or option in HARMLESS_LISTS


def _is_harmless_flag(option: str) -> bool:
    return option in HARMLESS_FLAGS or (option.startswith("--no-") and f"--{option[5:]}" in HARMLESS_FLAGS)


def environment(given: Mapping[str, str], own: Sequence[str] = ()) -> dict[str, str]:
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
            kept_as_it_is = _KEPT_VARIABLE.fullmatch(name) and not is_connector(name)
            kept[name] = without_random_names(value, own) if kept_as_it_is else without_addresses(value, own)
    return kept


def compiler_environment(given: Mapping[str, str], own: Sequence[str] = ()) -> dict[str, str]:
    """Keep of the relevant variables those that the self-keyed compilers look at."""
    return {name: value for name, value in environment(given, own).items() if _COMPILER.fullmatch(name)}


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
    """Say how many ranks the engine has, and whether all of them run in this pod; in doubt they do not.

    Options that can't be seen (a file of arguments, a variable in a shell's script) may ask for more ranks.
    """
    command = command_of(words_of(facts.get("argv")))
    given = _arguments(command)
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
    unseen = (
        not command.clear
        or "--config" in given
        or any(name in given and not given[name].rsplit(" ", 1)[-1].isdecimal() for name in PARALLEL_SIZES)
        or (command.expands and _may_expand_to_options(command.words))
    )
    return Ranks(max(2, total), False) if unseen else Ranks(total, not elsewhere)


def _may_expand_to_options(words: Sequence[str]) -> bool:
    """Tell whether a shell's variable stands where it may become more than the value of an option.

    A word that ends in `$`, or has a backquote, was cut where a command's output is put in.
    """
    for before, word in pairwise(("", *words)):
        if word.endswith("$") or "`" in word:
            return True
        if "$" not in word or word.startswith(("{", "[")) or re.match(r"(--)?[A-Za-z]\w*(-\w+)*=", word):
            continue
        option = before.replace("_", "-")
        if not (option in HARMLESS_OPTIONS or option in ONE_VALUE) or re.match(r"\$[@*(]", word):
            return True
    return False


def _number(text: str, otherwise: int) -> int:
    word = text.rsplit(" ", 1)[-1]
    return max(1, int(word)) if word.isdecimal() and len(word) < 6 else otherwise


def _words(argv: Sequence[str]) -> list[str]:
    """Spell options alike: long names, dashes; the command by its last path component only."""
    words = []
    for position, word in enumerate(argv):
        if position == 0 and "=" not in word:
            words.append(word.rsplit("/", 1)[-1])
            continue
        # argparse takes the value of an option of one letter without a space.
        name, equals, value = re.sub(r"^(-[nrO])(?=\d)", r"\1=", word).partition("=")
        # vLLM keeps dotted options with a short name apart from those with the long one, and the last ones count.
        name = SHORT_OPTIONS.get(name, name)
        if name.startswith("--"):
            dotted = name.split(".", 1)
            name = ".".join([_whole(dotted[0].replace("_", "-")), *dotted[1:]])
        words.append(name + equals + value)
    return words


def _whole(option: str) -> str:
    """Complete the beginning of a parallel option, as argparse does where no other option begins like it."""
    option = OTHER_NAMES.get(option, option)
    if option in HARMLESS_OPTIONS or option in PARALLEL_OPTIONS or len(option) < len("--nno"):
        return option
    meant = [name for name in PARALLEL_OPTIONS if name.startswith(option)]
    return meant[0] if len(meant) == 1 else option
