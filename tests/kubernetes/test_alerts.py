"""Every alert is played through by promtool: sequences of a pod's metrics as scrapes see them, firing and not firing.

That the rules are accepted and have a section in the README: test_manifests.py. Names: tests/contract/test_dashboard.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.metrics import PREFIX
from tests.kubernetes.alert_stories_machines import MACHINES
from tests.kubernetes.alert_stories_pods import PODS
from tests.kubernetes.alert_story import Story
from tests.kubernetes.rendered import K8S
from tests.prepare import debian

RULES = yaml.safe_load((K8S / "components" / "monitoring" / "prometheusrule.yaml").read_text(encoding="utf-8"))["spec"]
BY_NAME = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
POD = {"namespace": "inference", "pod": "engine-0"}
STORIES = (*PODS, *MACHINES)


def named(series: str) -> str:
    """Give a series its whole name and the pod's labels; `up` is Prometheus' own."""
    name, _, labels = series.partition("{")
    pod = ", ".join(f'{label}="{value}"' for label, value in POD.items())
    return f"{'' if name == 'up' else PREFIX}{name}{{{pod}{', ' + labels if labels else '}'}"


def annotations(story: Story, labels: Mapping[str, str]) -> dict[str, str]:
    """Say what a person is told: the rule's sentences with labels and value put in."""
    found = {}
    for kind, sentence in BY_NAME[story.alert]["annotations"].items():
        said = story.summary if kind == "summary" and story.summary else sentence
        for label, value in labels.items():
            said = said.replace(f"{{{{ $labels.{label} }}}}", value)
        found[kind] = re.sub(r"{{ \$value[^}]*}}", story.value or "no value given", said)
    return found


def as_test(story: Story) -> dict[str, Any]:
    labels = {**POD, **story.labels}
    told = {
        "exp_labels": {**labels, "severity": BY_NAME[story.alert]["labels"]["severity"]},
        "exp_annotations": annotations(story, labels),
    }
    moments = [(minute, []) for minute in story.silent] + [(minute, [told]) for minute in story.fires]
    return {
        "interval": "1m",
        "input_series": [{"series": named(name), "values": values} for name, values in story.series.items()],
        "alert_rule_test": [
            # Between two scrapes, as nearly always: there `increase` reckons with what it did not see.
            {"eval_time": f"{minute}m30s", "alertname": story.alert, "exp_alerts": expected}
            for minute, expected in sorted(moments, key=lambda moment: moment[0])
        ],
    }


def play(stories: list[Story], rules: Any, folder: Path) -> str:
    """Let promtool play the stories; give what it found wrong. Skips without promtool."""
    promtool = shutil.which("promtool", path=debian.search_path())
    if promtool is None:
        pytest.skip("no promtool (Debian: package prometheus); `python -m tests --only packages` says why")
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [as_test(each) for each in stories]}
    (folder / "stories.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    done = subprocess.run(
        [promtool, "test", "rules", "stories.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("alert", BY_NAME)
def test_an_alert_fires_when_it_should_and_not_otherwise(alert: str, tmp_path: Path):
    assert play([story for story in STORIES if story.alert == alert], RULES, tmp_path) == ""


@pytest.mark.parametrize("alert", BY_NAME)
def test_every_alert_has_a_story_in_which_it_fires_and_one_in_which_it_never_does(alert: str):
    stories = [story for story in STORIES if story.alert == alert]
    assert any(story.fires for story in stories)
    assert any(not story.fires for story in stories)
