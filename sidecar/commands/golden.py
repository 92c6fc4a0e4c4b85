"""`golden`: record what a trusted engine answers, check any engine against it, show recordings and prompts.

How engines are asked and judged is in `sidecar/golden/`; how results look at a terminal, in `golden_view.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sidecar import config
from sidecar.commands import golden_life
from sidecar.commands.engine_port import connected, settings_for
from sidecar.commands.numbers import Number
from sidecar.commands.settings_flags import settings_options
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, GoldenError, UsageError

if TYPE_CHECKING:
    from sidecar.golden import GoldenResult, GoldenSet, PromptSet

#: Cap of a check; of a recording twice that, since it checks itself. Seconds.
DEADLINE_S = 600.0


@click.group()
def command() -> None:
    """Record what a trusted engine answers, and check whether another one still says so.

    Answers are compared with tolerance: their first tokens, how likely the recorded text is to the engine, and whether
    they are degenerate; sent alone, together behind a cached prefix, and in a batch.

    \b
    Examples:
      warmup-sidecar golden record --url http://127.0.0.1:8000 --out golden.yaml --label "BF16 KV cache"
      warmup-sidecar golden check --url http://127.0.0.1:8000 --golden golden.yaml
    """


def _engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option(
        "--timeout", "deadline_s", type=Number(min=1), default=DEADLINE_S, show_default=True, metavar="SECONDS",
        help="Cap of all requests together.",
    )(settings_options("api_key_file", "model")(function))  # fmt: skip
    default = config.Settings.model_fields["engine_url"].default
    return click.option(
        "--url", metavar="URL", default=None, help=f"Where the engine answers. [WARMUP_ENGINE_URL; default: {default}]"
    )(function)


@command.command("record")
@_engine_options
@click.option("--out", required=True, metavar="FILE", help="The golden file to write; one that is there is replaced.")
@click.option(
    "--prompts", metavar="FILE", help="Prompts to record, or a golden file to record again. [default: starter set]"
)
@click.option("--label", default="", metavar="TEXT", help="What to call the recorded configuration.")
def record_(url: str | None, deadline_s: float, out: str, prompts: str | None, label: str, **arguments: Any) -> int:
    """Record what the engine at --url answers; use a configuration that is trusted, such as one with a BF16 KV cache.

    The engine is asked once more at the end, in other ways; limits are widened where it varies by itself, and nothing is
    written when it differs from itself.

    \b
    Example:
      warmup-sidecar golden record --url http://127.0.0.1:8000 --out golden.yaml --label "BF16 KV cache"
    """
    from sidecar.commands.golden_view import Counter, show_recording
    from sidecar.golden import load_prompts, save, starter_prompts

    path = Path(out)
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"--out {out} can't be written; name a file in a folder that is there.")
    chosen = load_prompts(Path(prompts)) if prompts else starter_prompts()
    settings = settings_for(url, arguments).settings
    with Counter("Recording") as counter:
        found = asyncio.run(_record(settings, chosen, deadline_s, label, counter))
    save(found, path)
    show_recording(dataclasses.replace(found, path=path))
    return EXIT_OK


async def _record(
    settings: config.Settings, prompts: PromptSet, deadline_s: float, label: str, counter: Any
) -> GoldenSet:
    from sidecar.golden import record

    async with connected(settings) as target:
        return await record(
            target.engine,
            target.facts,
            prompts,
            salt=_salt(),
            deadline_s=deadline_s,
            recorded_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            label=label,
            progress=counter,
        )


@command.command("check")
@_engine_options
@click.option(
    "--golden", "golden", metavar="PATH", default=None, help="Golden file, or a directory of such. [WARMUP_GOLDEN]"
)
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON, too; - is standard output alone.")
@click.option(
    "--fail-drift", type=Number(min=0.001, max=99.999), metavar="PERCENT",
    help="Drift that is allowed instead of the one in the file: on average, and by as much the recorded text may become less "
    "likely. What must be the same whatever drifts stays: first tokens, expressions, nothing degenerate.",
)  # fmt: skip
def check_(
    url: str | None, deadline_s: float, golden: str | None, json_file: str | None, fail_drift: float | None,
    **arguments: Any,
) -> int:  # fmt: skip
    """Ask the engine at --url the recorded prompts and compare.

    Exit code 0 when it passed; 3 when it failed, or could not be judged; 2 for wrong use and files that can't be used.

    \b
    Examples:
      warmup-sidecar golden check --url http://127.0.0.1:8000 --golden golden.yaml
      warmup-sidecar golden check --golden golden.yaml --fail-drift 3 --json result.json
    """
    from sidecar.commands.golden_view import Counter, show_result
    from sidecar.golden import load

    settings = settings_for(url, arguments).settings
    chosen = golden or settings.golden
    if not chosen:
        raise UsageError("Name the recording with --golden FILE; `warmup-sidecar golden record` makes one.")
    found = load(Path(chosen))
    if fail_drift is not None:
        found = _allowing(found, fail_drift)
    with Counter("Checking") as counter:
        result = asyncio.run(_check(settings, found, deadline_s, counter))
    text = json.dumps(result.to_json(), indent=2, ensure_ascii=False)
    if json_file == "-":
        click.echo(text)
    else:
        show_result(result)
        if json_file:
            _write(Path(json_file), text + "\n")
    return EXIT_OK if result.outcome == "passed" else EXIT_NOT_SO


async def _check(settings: config.Settings, golden: GoldenSet, deadline_s: float, counter: Any) -> GoldenResult:
    from sidecar.golden import check

    async with connected(settings) as target:
        return await check(
            target.engine, target.facts, golden,
            salt=_salt(), deadline_s=deadline_s, progress=counter, asleep=target.asleep,
        )  # fmt: skip


def _allowing(golden: GoldenSet, percent: float) -> GoldenSet:
    changed = tuple(file.model_copy(update={"limits": file.limits.allowing(percent)}) for file in golden.files)
    return dataclasses.replace(golden, files=changed)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json {path} can't be written ({error.strerror}); name another file.") from error


def _salt() -> str:
    return f"golden-{secrets.token_hex(8)}"


@command.command("show")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show_(file: str, as_json: bool) -> None:
    """Show a golden file, or those of a directory: from which engine, what is allowed, and its prompts with answers.

    \b
    Example:
      warmup-sidecar golden show golden.yaml
    """
    from sidecar.commands.golden_view import show_recording
    from sidecar.golden import load

    if not Path(file).exists():
        raise GoldenError(f"There is no {file}; `warmup-sidecar golden record` makes one.")
    found = load(Path(file))
    if as_json:
        click.echo(json.dumps([each.model_dump(mode="json") for each in found.files], indent=2, ensure_ascii=False))
    else:
        show_recording(found, prompts=True)


@command.command("prompts")
@click.option("--schema", is_flag=True, help="Print the JSON schema of golden files instead, for editors.")
def prompts_(schema: bool) -> None:
    """Print the starter set of prompts, to be changed and given to `golden record --prompts`.

    \b
    Example:
      warmup-sidecar golden prompts > prompts.yaml
    """
    from sidecar.golden.files import STARTER
    from sidecar.golden.schema import schema_text

    click.echo(schema_text() if schema else STARTER.read_text(encoding="utf-8"), nl=False)


command.add_command(golden_life.run)
command.add_command(golden_life.lift)
