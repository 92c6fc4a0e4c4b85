"""`docs`: print the reference tables, write them between the README's markers, or check those that are there.

What the tables say is made in `reference.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import click

from sidecar.commands.reference import BY_NAME, REFERENCES, Reference, markdown
from sidecar.errors import EXIT_NOT_SO, EXIT_OK, UsageError

_BLOCK = re.compile(r"(<!-- generated: (?P<name>[^>]*?) -->\n)(?P<table>.*?)(<!-- end -->)", re.DOTALL)


@click.command()
@click.option(
    "--check",
    "checking",
    is_flag=True,
    help="Compare with the README; exit code 3 when a table differs or is missing.",
)
@click.option("--write", "writing", is_flag=True, help="Write the tables into the README.")
@click.option(
    "--readme",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=Path("README.md"),
    show_default=True,
    help="The file with the markers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object: the tables, or with --check what differs.")
@click.argument("names", metavar="[TABLE]...", nargs=-1)
def command(checking: bool, writing: bool, readme: Path, as_json: bool, names: tuple[str, ...]) -> int:
    """Print the reference tables made from the code, all of them or those that are named.

    In the README a table stands between `<!-- generated: settings -->` and `<!-- end -->`.

    \b
    Examples:
      warmup-sidecar docs settings
      warmup-sidecar docs --write
      warmup-sidecar docs --check
    """
    chosen = _chosen(names)
    if checking or writing:
        text = _read(readme)
        return _check(text, chosen, readme, as_json) if checking else _write(text, chosen, readme)
    if as_json:
        tables = {each.name: [dict(zip(each.headings, row, strict=True)) for row in each.rows()] for each in chosen}
        click.echo(json.dumps(tables, indent=2))
        return EXIT_OK
    click.echo("\n".join(f"## {each.name}\n\n{markdown(each)}" for each in chosen), nl=False)
    return EXIT_OK


def _chosen(names: Sequence[str]) -> tuple[Reference, ...]:
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise UsageError(f"There is no table '{unknown[0]}'; there are {', '.join(BY_NAME)}.")
    return tuple(BY_NAME[name] for name in names) or REFERENCES


def _read(readme: Path) -> str:
    try:
        return readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{readme} can't be read ({error}); name the file with --readme.") from error


def _check(text: str, chosen: Sequence[Reference], readme: Path, as_json: bool) -> int:
    there = {found["name"]: found["table"] for found in _BLOCK.finditer(text)}
    wrong = {each.name: "missing" for each in chosen if each.name not in there}
    wrong |= {
        each.name: "differs"
        for each in chosen
        if each.name in there and there[each.name].strip() != markdown(each).strip()
    }
    wrong |= {name: "unknown" for name in there if name not in BY_NAME}
    if as_json:
        click.echo(json.dumps({"ok": not wrong, "tables": wrong}))
    elif wrong:
        listed = ", ".join(f"{name} ({what})" for name, what in wrong.items())
        click.echo(
            f"{readme} and the code disagree: {listed}. "
            "`warmup-sidecar docs --write` mends what differs; a missing table needs its markers first.",
            err=True,
        )
    return EXIT_NOT_SO if wrong else EXIT_OK


def _write(text: str, chosen: Sequence[Reference], readme: Path) -> int:
    tables = {each.name: markdown(each) for each in chosen}

    def put(found: re.Match[str]) -> str:
        table = tables.get(found["name"])
        return found[0] if table is None else f"{found[1]}\n{table}\n{found[4]}"

    changed = _BLOCK.sub(put, text)
    if changed != text:
        readme.write_text(changed, encoding="utf-8")
    written = sum(found["name"] in tables for found in _BLOCK.finditer(changed))
    click.echo(f"{written} tables in {readme} are up to date.")
    return EXIT_OK
