"""Arguments that make one key are one to vLLM's own parser: what the normaliser merges, the engine merges, too."""

from __future__ import annotations

import json
import random
import subprocess

import pytest

from sidecar.caches import normalise
from sidecar.demo.engine_setup import EnginePaths

#: Reads one list of words per line, parses it as `vllm serve` does, and prints what came out with its types.
PARSER = """
import contextlib, json, os, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
for line in sys.stdin:
    parser = FlexibleArgumentParser(prog="vllm serve")
    parser.add_argument("subcommand")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--compilation-config", "-cc", type=json.loads)
    parser.add_argument("--hf-overrides", type=json.loads)
    found = None
    with contextlib.suppress(SystemExit, Exception), contextlib.redirect_stderr(open(os.devnull, "w")):
        found = parser.parse_args(json.loads(line))
    print("=" + json.dumps(found and [found.model, found.compilation_config, found.hf_overrides], sort_keys=True))
"""
OPTIONS = ("-cc", "--compilation-config", "--compilation_config", "--hf-overrides")
PATHS = ("a", "b", "c.x", "c.y", "c", "a+", "b+")
SCALARS = ("1", "1.0", '"1"', "true", "null", "FULL", '"FULL"', "1k", '"1k"', "1000", "[1]", "[1, 2]", '{"q":1}',
           '{"q": 1,"r":2}', '{"r":2,"q":1}', "NaN", "", '"a b"', "+7", "7", "1_000", "a,b")  # fmt: skip
MEMBERS = ("1", "1.0", '"1"', "true", "null", '"FULL"', "1000", '"1k"', "[1,2]", '["a","b"]', '{"y": 1, "x":2}')
DRAWN = 2000


def drawn(lot: random.Random) -> list[str]:
    words = ["serve", "m"]
    for _ in range(lot.randint(1, 3)):
        option, equals = lot.choice(OPTIONS), lot.random() < 0.5
        if lot.random() < 0.35:
            names = lot.sample(["a", "b", "c"], lot.randint(0, 3))
            members = (
                f'"{name}"{lot.choice(["", " "])}:{lot.choice(["", " "])}{lot.choice(MEMBERS)}' for name in names
            )
            name, value = option, "{" + lot.choice([",", " , "]).join(members) + "}"
        else:
            name, value = f"{option}.{lot.choice(PATHS)}", lot.choice(SCALARS)
        words += [f"{name}={value}"] if equals and name.startswith("--") else [name, value]
    return words


@pytest.fixture(scope="module")
def parsed(engine_paths: EnginePaths) -> list[tuple[list[str], str]]:
    lot = random.Random(20261130)
    asked = [drawn(lot) for _ in range(DRAWN)]
    ended = subprocess.run(
        [str(engine_paths.python), "-c", PARSER],
        input="\n".join(map(json.dumps, asked)),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    answers = [line[1:] for line in ended.stdout.splitlines() if line.startswith("=")]
    assert len(answers) == len(asked), ended.stderr[-2000:]
    return [(words, answer) for words, answer in zip(asked, answers, strict=True) if answer != "null"]


def test_words_that_make_one_key_are_one_to_vllms_parser(parsed: list[tuple[list[str], str]]) -> None:
    assert len(parsed) > DRAWN * 0.9
    meant: dict[str, tuple[list[str], str]] = {}
    for words, answer in parsed:
        key = json.dumps(normalise.arguments(["vllm", *words]), sort_keys=True)
        first, known = meant.setdefault(key, (words, answer))
        assert known == answer, f"{first} and {words} share a key"
    # The other way round there are fewer promises; but spelling alone must not be what keys are made of.
    assert len(meant) < len(parsed)
