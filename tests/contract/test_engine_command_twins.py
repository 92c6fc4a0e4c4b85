"""The engine's own command is found by three readers, and in an ordinary script they find the same one.

The launcher has its own because it imports nothing; cache keys have theirs because they are digests of exactly these words, and
other words are another key; the third takes redirections and arguments as a shell does, to read flags.
"""

from __future__ import annotations

import pytest

from sidecar.caches.script import command_of
from sidecar.config.routers import ENGINE_COMMAND
from sidecar.engines.own_command import own_command
from sidecar.launcher import script as launchers_script

ORDINARY = (
    (("vllm", "serve", "m", "--port", "8000"), "vllm serve m --port 8000"),
    (("sh", "-c", "vllm serve m --port 8000"), "vllm serve m --port 8000"),
    (("bash", "-lc", "export A=1; exec vllm serve m"), "vllm serve m"),
    (("sh", "-c", "exec bash -c 'vllm serve m'"), "vllm serve m"),
    (("sh", "-c", "vllm serve m &\nwait"), "vllm serve m"),
    (("sh", "-c", "# vllm serve a\nvllm serve m \\\n  --port 1"), "vllm serve m --port 1"),
    (("tini", "--", "sh", "-c", "mkdir -p /x && trtllm-serve m; echo done"), "trtllm-serve m"),
    (("sh", "-c", "python3 -m sglang.launch_server --model m; echo done"), "python3 -m sglang.launch_server --model m"),
    (("sh", "-c", "cd /opt/vllm && vllm serve m --port 1"), "vllm serve m --port 1"),
    (("sh", "-c", "cp /x/vllm.yaml /tmp; sglang serve m; echo done"), "sglang serve m"),
    (
        ("sh", "-c", "pip install vllm && python3 -u -m vllm.entrypoints.openai.api_server"),
        "python3 -u -m vllm.entrypoints.openai.api_server",
    ),
    (
        ("sh", "-c", "python3 -m dynamo.frontend & python3 -m dynamo.vllm --model m; echo done"),
        "python3 -m dynamo.vllm --model m",
    ),
    (("python3", "-m", "vllm.entrypoints.openai.api_server"), "python3 -m vllm.entrypoints.openai.api_server"),
)
#: What only the launcher and the keys have to agree on: where both are wrong, a fallback changes what the key speaks of.
ODD = (
    ("sh", "-c", "echo 'oops"),
    ("sh", "-c", "vllm serve $MODEL --x $(nproc)"),
    ("sh", "-c", 'vllm serve "$@"', "--", "m"),
    ("sh", "-c", "vllm serve a & vllm serve b"),
    ("sh", "-c", "vllm serve m 2>&1 | tee /log"),
    ("sh", "-c", 'cd /opt; exec vllm "$@"', "--", "serve", "m"),
    ("sh", "-c", "exec /start.sh"),
    ("/start.sh",),
    ("sh", "-c", ""),
    ("sh",),
)


def without_exec(words: list[str]) -> list[str]:
    return words[1:] if words[:1] == ["exec"] else words


@pytest.mark.parametrize(("argv", "command"), ORDINARY)
def test_all_readers_find_the_same_command_in_an_ordinary_script(argv: tuple[str, ...], command: str) -> None:
    read = own_command(argv, lambda words: ENGINE_COMMAND.search(" ".join(words)) is not None)
    assert (" ".join(without_exec(read.words)), read.mixed) == (command, False)
    assert " ".join(command_of(argv).words) == command
    assert " ".join(without_exec(launchers_script.engine_words(list(argv)))) == command


@pytest.mark.parametrize("argv", ODD)
def test_launcher_and_keys_take_the_same_words_for_the_engines_even_where_a_script_is_odd(
    argv: tuple[str, ...],
) -> None:
    assert without_exec(launchers_script.engine_words(list(argv))) == list(command_of(argv).words)
