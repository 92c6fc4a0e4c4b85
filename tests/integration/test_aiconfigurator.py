"""The real AIConfigurator plans a deployment, and what it leaves becomes a profile and targets."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sidecar.bench.targets import Targets
from sidecar.warmup.aiconfigurator import read_plan
from sidecar.warmup.marked_yaml import read
from sidecar.warmup.planned_profile import profile_text, targets_text
from sidecar.warmup.profiles import load_file

#: Its command line; the package brings 850 MB, and pins much of what this environment has in other versions.
PROGRAM = os.environ.get("AICONFIGURATOR") or shutil.which("aiconfigurator")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PROGRAM is None,
        reason="AIConfigurator is missing: install aiconfigurator==0.12.0 in an environment of its own and name its program "
        "in AICONFIGURATOR",
    ),
]


@pytest.mark.parametrize("backend", ["vllm", "trtllm", "sglang"])
def test_what_it_leaves_is_a_profile_that_can_be_used_and_targets(tmp_path: Path, backend: str) -> None:
    words = {
        "--model-path": "Qwen/Qwen3-8B", "--system": "h200_sxm", "--backend": backend, "--total-gpus": "2", "--top-n": "1",
        "--isl": "1000", "--osl": "100", "--ttft": "500", "--tpot": "20", "--save-dir": str(tmp_path / "results"),
    }  # fmt: skip
    command = [str(PROGRAM), "cli", "default", *(word for pair in words.items() for word in pair)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    for experiment, role in (("agg", ""), ("disagg", "prefill"), ("disagg", "decode")):
        plan = read_plan(tmp_path / "results", experiment, 1, role)
        assert (plan.backend, plan.sm, plan.prompt_tokens, plan.output_tokens) == (backend, "sm90", 1000, 100)
        assert plan.targets == {"ttft_ms": 500, "tpot_ms": 20}
        assert plan.limits["max_num_seqs"].value >= 1
        path = tmp_path / f"{experiment}{role}.yaml"
        path.write_text(profile_text(plan), encoding="utf-8")
        assert any(step.title.startswith("planned") for step in load_file(path).steps)
        path.write_text(targets_text(plan), encoding="utf-8")
        assert Targets.model_validate(read(path).value).concurrency == plan.concurrency
