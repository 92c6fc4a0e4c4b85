"""Finds the file that holds more of an engine's arguments, and picks out of it the lines that may be shown.

YAML is not parsed here, since no image is sure to have a parser: whole entries of the top level are taken as they are
written, and the sidecar reads them. What is not named in FIELDS, or looks like a secret, and comments stay in the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from sidecar.launcher.privacy import is_connector, is_secret, shown_value
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
_KEYED = ["api_key: true"]
_NO_KEY = ('""', "''", "null", "~", "[]")
#: Characters of a line that is looked through for names; nobody writes a limit on a longer one.
LINE_LIMIT = 4096
_TOP = re.compile(r"""["']?([A-Za-z][\w-]*)["']?\s*:(\s|$)""")
_KEY = re.compile(r"""(?<![\w.-])([\w.-]+)["']?\s*:|\?\s+["']?([\w.-]+)""")
_KEY_FIRST = re.compile(r"""\s*(?:-[ \t]+)*["']?[\w.-]+["']?[ \t]*:""")
#: A name that is written so can't be told from any other.
_ESCAPED = re.compile(r"\\[uUx]")
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
            return None if _of_shell(argv, path) else {"path": path, "problem": "it is not there, or no file"}
        with open(path, "rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        return {"path": path, "problem": str(error.strerror)}
    if len(data) > FILE_LIMIT:
        return {"path": path, "problem": f"it is larger than {FILE_LIMIT} bytes"}
    text = data.decode("utf-8", "replace")
    lines = _of_json(text) or _of_yaml(text)
    if lines is None:
        return {"path": path, "problem": f"what is of interest in it is larger than {SHOWN_LIMIT} characters"}
    transfer = _transfer(text)
    return {"path": path, "text": lines, **({"kv_transfer": transfer} if transfer is not None else {})}


def _of_shell(argv: list[str], path: str) -> bool:
    """Tell whether only the shell that starts the engine knows the path: by a variable, or where it goes by `cd`."""
    return engine_words(argv) != argv and ("$" in path or "`" in path or not os.path.isabs(path))


def _of_json(text: str) -> str | None:
    """Take a file that is a JSON object; empty for any other."""
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    return _of_yaml("".join(f"{json.dumps(name)}: {json.dumps(value)}\n" for name, value in content.items()))


def _of_yaml(text: str) -> str | None:
    """Take the entries of FIELDS; None where they are larger than SHOWN_LIMIT."""
    entries: list[list[str]] = []
    taking = False
    size = 0
    for line in text.splitlines():
        if line[:1] not in ("", " ", "\t", "#", "-", "}", "]"):
            top = _TOP.match(line)
            name = top[1].replace("-", "_") if top else ""
            taking = name in FIELDS and name != "api_key"
            if name == "api_key" and line.partition(":")[2].strip() not in _NO_KEY:
                entries.append(_KEYED)
            elif taking:
                entries.append([])
        if taking:
            entries[-1].append(line)
            size += len(line) + 1 if len(line) <= LINE_LIMIT else 1
            if size > SHOWN_LIMIT:
                return None
    return "".join(f"{line}\n" for entry in entries for line in (entry if entry == _KEYED else _without_secrets(entry)))


def _without_secrets(entry: list[str]) -> list[str]:
    """Leave out comments and what is named like a secret, with the lines that belong to it; all where that is uncertain."""
    kept: list[str] = []
    hidden = -1
    lines = [_without_comment(line) for line in entry]
    if any("{" in line for line in lines) and any(map(is_secret, _keys("\n".join(lines)))):
        return []
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if not line.strip() or (hidden >= 0 and (indent > hidden or line[indent : indent + 1] == "-")):
            continue
        hidden = -1
        if len(line) > LINE_LIMIT:
            hidden = indent
            continue
        if _ESCAPED.search(line):
            return []
        secrets = [is_secret(key) for key in _keys(line)]
        if not any(secrets):
            kept.append(shown_value("line", line))
        elif secrets[0] and _KEY_FIRST.match(line):
            hidden = indent
        else:
            return []
    return kept


def _keys(text: str) -> list[str]:
    return [found[1] or found[2] for found in _KEY.finditer(text)]


def _without_comment(line: str) -> str:
    before, mark, _ = f" {line}".partition(" #")
    return before[1:] if mark and not before.count('"') % 2 and not before.count("'") % 2 else line


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
