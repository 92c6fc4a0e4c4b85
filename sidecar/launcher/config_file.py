"""Finds the file that holds more of an engine's arguments, and picks out of it the lines that may be shown.

YAML is not parsed here, since no image is sure to have a parser: whole entries of the top level are taken as they are
written, and the sidecar reads them. What is not named in FIELDS, or looks like a secret, stays in the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from sidecar.launcher.privacy import is_connector, is_secret
from sidecar.launcher.script import engine_words
from sidecar.launcher.transfer import kv_transfer

#: vLLM and SGLang have --config, trtllm-serve has both for one thing (their documentation of the command line).
FLAGS = ("--config", "--extra-llm-api-options")
#: Entries that tell limits, formats and where the engine answers: vLLM and SGLang call them as their flags, TensorRT-LLM as
#: the fields of its LlmArgs. An API key is told as being there.
FIELDS = frozenset(
    "model served_model_name model_path host port uds headless ssl_keyfile ssl_certfile api_key max_model_len max_num_seqs "
    "max_num_batched_tokens block_size kv_cache_dtype quantization tensor_parallel_size pipeline_parallel_size "
    "data_parallel_size enable_lora enforce_eager attention_backend context_length max_running_requests chunked_prefill_size "
    "page_size max_total_tokens tp_size pp_size dp_size disaggregation_mode is_embedding task runner "
    "max_batch_size max_num_tokens max_seq_len kv_cache_config cuda_graph_config quant_config speculative_config "
    "attn_backend enable_autotuner".split()
)
#: A file that is larger is none that somebody wrote; what is shown of one goes through a small file. Bytes.
FILE_LIMIT, SHOWN_LIMIT = 1 << 20, 16 << 10
#: Characters of a line that is looked through for names; nobody writes a limit on a longer one.
LINE_LIMIT = 4096
_TOP = re.compile(r"""["']?([A-Za-z][\w-]*)["']?\s*:(\s|$)""")
_KEY = re.compile(r"""["']?([A-Za-z][\w.-]*)["']?\s*:(?:\s|$)""")
_TRANSFER = re.compile(r"""\b(kv_role|kv_connector)["']?\s*:\s*["']?(\w+)""")


def named_files(argv: list[str]) -> Iterator[tuple[str, str]]:
    """Give flag and path of the files that the engine's words name."""
    words = engine_words(argv)
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=")
        path = value if equals else "".join(words[index + 1 : index + 2])
        flag = flag.replace("_", "-")
        if flag in FLAGS and path:
            yield flag, path


def digests(argv: list[str]) -> dict[str, str]:
    """Give digests of these files, which may change under the same name."""
    found: dict[str, str] = {}
    for flag, path in named_files(argv):
        try:
            # A pipe would never end.
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as stream:
                found[flag] = hashlib.sha256(stream.read(FILE_LIMIT)).hexdigest()[:16]
        except OSError:
            continue
    return found


def shown(argv: list[str]) -> dict[str, Any] | None:
    """Give `path` and the `text` that may be shown of the last such file, or the `problem` with it; None without one."""
    path = next((path for _, path in reversed(list(named_files(argv)))), "")
    if not path:
        return None
    try:
        if not os.path.isfile(path):
            return {"path": path, "problem": "it is not there, or no file"}
        with open(path, "rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        return {"path": path, "problem": str(error.strerror)}
    if len(data) > FILE_LIMIT:
        return {"path": path, "problem": f"it is larger than {FILE_LIMIT} bytes"}
    text = data.decode("utf-8", "replace")
    lines = _of_json(text) or _of_yaml(text)
    if len(lines) > SHOWN_LIMIT:
        return {"path": path, "problem": f"what is of interest in it is larger than {SHOWN_LIMIT} characters"}
    transfer = _transfer(text)
    return {"path": path, "text": lines, **({"kv_transfer": transfer} if transfer is not None else {})}


def _of_json(text: str) -> str:
    """Take a file that is a JSON object; empty for any other."""
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    return "".join(_of_yaml(f"{json.dumps(name)}: {json.dumps(value)}\n") for name, value in content.items())


def _of_yaml(text: str) -> str:
    kept: list[str] = []
    taking = False
    for line in text.splitlines():
        if line[:1] not in ("", " ", "\t", "#", "-", "}", "]"):
            top = _TOP.match(line)
            name = top[1].replace("-", "_") if top else ""
            taking = name in FIELDS and name != "api_key"
            if name == "api_key":
                kept.append("api_key: true")
        if taking and len(line) <= LINE_LIMIT and not any(is_secret(key) for key in _KEY.findall(line)):
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def _transfer(text: str) -> dict[str, Any] | None:
    """Give role and connectors of an entry like --kv-transfer-config, and nothing else of it; None without one."""
    inside: list[str] = []
    taking = seen = False
    for line in text.splitlines():
        if line[:1] not in ("", " ", "\t", "#", "-", "}", "]"):
            top = _TOP.match(line)
            taking = top is not None and is_connector(top[1]) and "transfer" in top[1]
            seen = seen or taking
        inside += [line] if taking else []
    if not seen:
        return None
    rest = inside[0].partition(":")[2]
    whole = kv_transfer([f"--kv-transfer-config={rest.strip().strip(chr(39))}"])
    return whole or dict(_TRANSFER.findall("\n".join(inside)))
