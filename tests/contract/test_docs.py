"""The README agrees with the code: its tables, its commands, its pod example, its numbers."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from sidecar import config
from sidecar.cli import COMMANDS, cli
from sidecar.commands.reference import BY_NAME, EXIT_CODES, REFERENCES
from sidecar.lifecycle import Phase
from tests.unit.commands import CHECKOUT, sidecar

README = CHECKOUT / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """List the warmup-sidecar commands of all shell blocks and of inline code."""
    lines = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines()]
    parts = [part for line in lines for part in re.split(r"&&|\|", line)]
    parts += re.findall(r"`(warmup-sidecar [^`]+)`", TEXT)
    words = [shlex.split(part, comments=True) for part in parts]
    return sorted({shlex.join(word[1:]) for word in words if word and word[0].endswith("warmup-sidecar")})


async def test_the_tables_are_those_of_the_code():
    ended = await sidecar("docs", "--check", "--readme", str(README))
    assert ended.code == 0, ended.err


async def test_a_table_that_differs_is_named_and_mended(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(TEXT.replace("`WARMUP_STALL_S`", "`WARMUP_STAL_S`"))
    ended = await sidecar("docs", "--check", "--readme", str(copy))
    assert ended.code == 3
    assert "settings (differs)" in ended.err
    assert "metrics" not in ended.err
    await sidecar("docs", "--write", "settings", "--readme", str(copy))
    assert (await sidecar("docs", "--check", "settings", "--readme", str(copy))).code == 0


async def test_a_table_without_markers_is_missing(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(TEXT.replace("<!-- generated: phases -->", ""))
    ended = await sidecar("docs", "--check", "--json", "--readme", str(copy))
    assert ended.code == 3
    assert json.loads(ended.out)["tables"] == {"phases": "missing"}


async def test_an_unknown_table_is_wrong_use():
    assert (await sidecar("docs", "colours")).code == 2


def test_every_table_has_rows_as_wide_as_its_headings():
    with click.Context(cli, info_name="warmup-sidecar"):
        for reference in REFERENCES:
            rows = reference.rows()
            assert rows, reference.name
            assert all(len(row) == len(reference.headings) for row in rows), reference.name


def test_every_command_phase_and_setting_has_its_row():
    with click.Context(cli, info_name="warmup-sidecar"):
        assert len(BY_NAME["commands"].rows()) == len(COMMANDS)
    assert len(BY_NAME["phases"].rows()) == len(Phase)
    assert len(BY_NAME["settings"].rows()) == len(config.Settings.model_fields)


def test_the_exit_codes_of_the_contract_are_documented():
    assert {0, 2, 3, 70} <= {code for code, _ in EXIT_CODES}


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_readme_is_accepted(line):
    words = shlex.split(line)
    context = cli.make_context("warmup-sidecar", list(words), resilient_parsing=False)
    name, command, rest = cli.resolve_command(context, [*context._protected_args, *context.args])
    assert name is not None
    assert command is not None
    with context:
        command.make_context(name, rest, parent=context)


def test_the_pod_example_is_valid_and_uses_what_there_is():
    [example] = [yaml.safe_load(block) for language, block in BLOCKS if language == "yaml"]
    [daemon] = example["spec"]["initContainers"]
    [engine] = example["spec"]["containers"]
    assert daemon["restartPolicy"] == "Always"
    paths = {daemon[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"/startupz", "/readyz", "/livez"}
    control = str(config.Settings.model_fields["control_dir"].default)
    assert f"{control}/launcher.py" in engine["command"]
    volumes = {volume["name"] for volume in example["spec"]["volumes"]}
    for container in (daemon, engine):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    settings = config.Settings()
    live = {mount["mountPath"] for mount in engine["volumeMounts"] if mount["name"] == "live-cache"}
    assert live == {str(settings.live_cache)}
    assert example["spec"]["terminationGracePeriodSeconds"] > settings.drain_s + settings.settle_s


def test_the_pod_example_says_what_k8s_base_says():
    [example] = [yaml.safe_load(block)["spec"] for language, block in BLOCKS if language == "yaml"]
    base = yaml.safe_load((CHECKOUT / "k8s" / "base" / "deployment.yaml").read_text(encoding="utf-8"))
    full = base["spec"]["template"]["spec"]
    assert example["terminationGracePeriodSeconds"] == full["terminationGracePeriodSeconds"]
    assert example["securityContext"]["fsGroup"] == full["securityContext"]["fsGroup"]
    assert {each["name"] for each in example["volumes"]} <= {each["name"] for each in full["volumes"]}
    for ours, theirs in (
        (example["initContainers"][0], full["initContainers"][0]),
        (example["containers"][0], full["containers"][0]),
    ):
        mounts = [{(each["name"], each["mountPath"]) for each in one["volumeMounts"]} for one in (ours, theirs)]
        assert mounts[0] <= mounts[1]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in ours:
                assert ours[probe].pop("httpGet")["path"] == theirs[probe].pop("httpGet")["path"]
                assert ours[probe].items() <= theirs[probe].items(), probe
    assert example["containers"][0]["command"][:3] == full["containers"][0]["command"]


def test_the_first_two_commands_are_one_line_each_and_the_second_is_that_of_ci():
    lines = [block.strip() for language, block in BLOCKS if language == "sh" and "venv" in block]
    assert [line.count("\n") for line in lines] == [0, 0]
    assert lines[0].endswith("warmup-sidecar demo")
    assert lines[1] in Path(CHECKOUT, ".ci", "run").read_text(encoding="utf-8")


def test_links_within_the_readme_lead_somewhere():
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings


def test_every_measured_number_has_its_command_machine_and_date():
    section = TEXT.partition("## Measured")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    if rows:
        assert re.search(r"`[^`]*(warmup-sidecar|python)[^`]*`", section)
        assert re.search(r"20\d\d-\d\d-\d\d", section)
        assert re.search(r"\bcores\b|H200", section)
