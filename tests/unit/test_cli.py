"""The command line as a whole: exit codes, sentences instead of tracebacks, imports, `run`'s flags."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from sidecar import __version__, config
from sidecar.cli import COMMANDS
from sidecar.commands.run import split
from sidecar.commands.settings_flags import flag
from tests.unit.commands import end_of, sidecar, start

#: Prints the modules of one name that a command line has imported.
_IMPORTED = """
import sys
from sidecar.cli import main
code = main(sys.argv[2:])
heavy = sorted(name for name in sys.modules if name.split(".")[0] in sys.argv[1].split(","))
sys.stderr.write(" ".join(heavy))
sys.exit(code)
"""


async def test_the_version_is_told():
    ended = await sidecar("--version")
    assert ended.code == 0
    assert __version__ in ended.out


async def test_help_lists_every_command_without_importing_any():
    ended = await sidecar("sidecar.commands,rich,aiohttp,pydantic", "--help", code=_IMPORTED)
    assert ended.code == 0
    assert all(f"  {name} " in ended.out for name in COMMANDS)
    assert not [
        name for name in ended.err.split() if name.startswith(("sidecar.commands", "rich", "aiohttp", "pydantic"))
    ]


@pytest.mark.parametrize("name", list(COMMANDS))
async def test_every_command_has_help_with_an_example(name):
    ended = await sidecar(name, "--help")
    assert ended.code == 0
    assert f"warmup-sidecar {name}" in ended.out.partition("Example")[2]


async def test_run_imports_neither_tables_nor_http_nor_the_api_server_client_to_read_its_flags():
    ended = await sidecar("rich,aiohttp,kubernetes,zstandard,cryptography,pynvml", "run", "--help", code=_IMPORTED)
    assert ended.code == 0
    assert ended.err == ""


async def test_an_unknown_command_is_wrong_use():
    ended = await sidecar("statsu")
    assert ended.code == 2
    assert "No such command" in ended.err


async def test_a_bug_of_ours_is_a_sentence_and_70():
    broken = (
        "import sys; sys.modules['sidecar.commands.status'] = None\n"
        "from sidecar.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    ended = await sidecar("status", code=broken)
    assert ended.code == 70
    assert "bug of ours" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("words", "variables"), [(["--debug", "status"], {}), (["status"], {"WARMUP_LOG_LEVEL": "debug"})]
)
async def test_a_bug_of_ours_shows_its_traceback_when_debugging(words, variables):
    broken = (
        "import sys; sys.modules['sidecar.commands.status'] = None\n"
        "from sidecar.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    ended = await sidecar(*words, variables=variables, code=broken)
    assert ended.code == 70
    assert "Traceback" in ended.err


async def test_ctrl_c_ends_a_command_with_130_and_no_traceback():
    process = await start("wait", "--url", "http://127.0.0.1:9")
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert b"No sidecar answers" in await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    ended = await end_of(process)
    assert ended.code == 130
    assert "Traceback" not in ended.err


async def test_a_reader_that_goes_away_costs_no_traceback():
    process = await start("docs", "metrics")
    assert process.stdout is not None
    process.stdout._transport.close()  # type: ignore[attr-defined]
    ended = await end_of(process)
    assert ended.code == 141
    assert ended.err == ""


async def test_every_setting_is_a_flag_of_run_with_meaning_variable_and_default():
    ended = await sidecar("run", "--help")
    text = " ".join(ended.out.split())
    for name in config.Settings.model_fields:
        assert f"{flag(name)} " in text or f"{flag(name)}/" in text or f"{flag(name)}," in text
        assert config.variable(name) in text


async def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("engine_url: http://127.0.0.1:1\nmodel: from-file\nstall_s: 7\n")
    ended = await sidecar(
        "check",
        "--offline",
        "--json",
        "--config",
        str(file),
        "--engine-url",
        "http://127.0.0.1:3",
        variables={"WARMUP_ENGINE_URL": "http://127.0.0.1:2", "WARMUP_MODEL": "from-variable"},
    )
    found = json.loads(ended.out)["settings"]
    assert found["engine_url"] == {"value": "http://127.0.0.1:3", "source": "--engine-url"}
    assert found["model"] == {"value": "from-variable", "source": "WARMUP_MODEL"}
    assert found["stall_s"] == {"value": 7.0, "source": str(file)}
    assert found["engine"] == {"value": "auto", "source": "default"}


@pytest.mark.parametrize(
    ("words", "flags", "command", "unknown"),
    [
        ([], (), (), 0),
        (["--", "vllm", "serve", "m", "--model", "x"], (), ("vllm", "serve", "m", "--model", "x"), 0),
        (["--store", "/s", "--no-launcher", "--", "e"], ("--store", "/s", "--no-launcher"), ("e",), 0),
        (
            ["--store=/s", "vllm", "serve", "--store", "x"],
            ("--store=/s",),
            (),
            1,
        ),
        (["--stoer", "/s", "--model", "m"], ("--model", "m"), (), 1),
        (["--stoer=/s", "--", "e"], (), ("e",), 1),
        (["--store"], (), (), 1),
        (["--store", "--", "e"], (), ("e",), 1),
        (["--launcher=yes"], ("--launcher",), (), 0),
        (["--launcher", "false"], ("--no-launcher",), (), 0),
        (["--no-launcher=false"], ("--launcher",), (), 0),
        (["--store", "--store-mode", "read-only"], ("--store-mode", "read-only"), (), 1),
        (["chekc"], (), (), 1),
        (["--", "e", "--", "f"], (), ("e", "--", "f"), 0),
    ],
)
def test_run_parts_its_flags_from_the_engines_command_and_never_refuses(words, flags, command, unknown):
    found = split(words)
    assert (found.flags, found.command, len(found.unknown)) == (flags, command, unknown)


@pytest.mark.parametrize(("shell", "sign"), [("zsh", "compdef"), ("fish", "complete"), ("bash", "complete")])
async def test_the_completion_script_names_the_command(shell, sign):
    ended = await sidecar("completion", shell)
    assert ended.code == 0
    assert sign in ended.out
    assert "_WARMUP_SIDECAR_COMPLETE" in ended.out


async def test_a_shell_completes_commands_and_flags():
    variables = {
        "_WARMUP_SIDECAR_COMPLETE": "bash_complete",
        "COMP_WORDS": "warmup-sidecar sta",
        "COMP_CWORD": "1",
    }
    ended = await sidecar(variables=variables)
    assert ended.code == 0
    assert "status" in ended.out
    variables |= {"COMP_WORDS": "warmup-sidecar run --sto", "COMP_CWORD": "2"}
    assert "--store-mode" in (await sidecar(variables=variables)).out
