"""`profiles from-aiconfigurator` as people run it, and the files it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.commands.made_files import write_new
from sidecar.errors import UsageError
from sidecar.warmup.profiles import load_file
from tests.unit.commands import sidecar

RESULTS = Path(__file__).resolve().parents[1] / "fakes" / "aiconfigurator"


async def test_a_result_becomes_a_profile_that_passes_check_and_targets_for_bench(tmp_path: Path) -> None:
    words = (
        "--experiment",
        "agg",
        "--output",
        str(tmp_path / "mine.yaml"),
        "--targets",
        str(tmp_path / "targets.yaml"),
    )
    ended = await sidecar("profiles", "from-aiconfigurator", str(RESULTS / "vllm"), *words)
    assert (ended.code, ended.out) == (0, ""), ended.err
    assert "planned decodes" in {step.title for step in load_file(tmp_path / "mine.yaml").steps}
    assert (tmp_path / "targets.yaml").read_text().count("ttft_ms: ") == 2
    again = await sidecar("profiles", "from-aiconfigurator", str(RESULTS / "vllm"), *words)
    assert again.code == 2
    assert "there already; add --force" in again.err


def test_nothing_is_written_where_one_of_two_files_is_there(tmp_path: Path) -> None:
    (tmp_path / "second").write_text("mine")
    texts = [(str(tmp_path / "first"), "1"), (str(tmp_path / "second"), "2")]
    with pytest.raises(UsageError, match="second is there already"):
        write_new(texts, force=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["second"]
    write_new(texts, force=True)
    assert (tmp_path / "second").read_text() == "2"


def test_a_file_in_no_folder_and_one_name_twice_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        write_new([(str(tmp_path / "none" / "a"), "1")], force=False)
    with pytest.raises(UsageError, match="it is a folder"):
        write_new([(str(tmp_path), "1")], force=True)
    with pytest.raises(UsageError, match="Two files of the same name"):
        write_new([(str(tmp_path / "a"), "1"), (str(tmp_path / "a"), "2")], force=False)


def test_without_a_file_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    write_new([(None, "one\n"), ("-", "two\n")], force=False)
    assert capsys.readouterr().out == "one\ntwo\n"
