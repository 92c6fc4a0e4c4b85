"""Every alert is played through by promtool: sequences of a pod's metrics as scrapes see them, firing and not firing.

That the rules are accepted and have a section in the README: test_manifests.py. Names: tests/contract/test_dashboard.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.rendered import K8S
from tests.prepare import debian

RULES = yaml.safe_load((K8S / "components" / "monitoring" / "prometheusrule.yaml").read_text(encoding="utf-8"))["spec"]
BY_NAME = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
POD = {"namespace": "inference", "pod": "engine-0"}
GPU = {"gpu": "5", "uuid": "GPU-5"}


@dataclass(frozen=True)
class Story:
    """What a pod's metrics do, one value a minute (promtool's notation), and in which minutes the alert fires or doesn't.

    `labels` are the alert's besides the pod's; `value` is what its summary makes of the value; `summary` the whole
    sentence where it says more.
    """

    alert: str
    name: str
    series: Mapping[str, str]
    fires: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    value: str = ""
    summary: str = ""


def way(phase: str, state: str) -> dict[str, str]:
    """A pod that stays in a phase, with its engine in a state, for three hours."""
    others = {"warming", "suspended", "draining", "ready"} - {phase}
    return {
        "ready": "0x180",
        f'phase{{phase="{phase}"}}': "1x180",
        **{f'phase{{phase="{each}"}}': "0x180" for each in others},
        f'engine_state{{state="{state}"}}': "1x180",
        'engine_state{state="stalled"}': "0x180",
    }


LATE = 'restore_outcome_total{outcome="late"}'
FAILED = 'restore_outcome_total{outcome="failed"}'
TRITON = '{family="triton"}'
AFTER = 'kernels_compiled_total{when="after_ready", family="triton"}'
WRONG = 'verify_total{outcome="wrong"}'
DEGENERATE = 'verify_total{outcome="degenerate"}'
KV = 'engine_kv_cache_usage_ratio{phase="serving"}'
HEAT = 'gpu_throttled{gpu="5", uuid="GPU-5", reason="hw_thermal_slowdown"}'
POWER_CAP = 'gpu_throttled{gpu="5", uuid="GPU-5", reason="sw_power_cap"}'
LOST = 'gpu_lost{gpu="5", uuid="GPU-5"}'
STORE = 'source_missing{source="store"}'
CRASHED = 'engine_restarts_total{cause="exited"}'
ASKED = 'engine_restarts_total{cause="asked"}'
STALLED = 'engine_state{state="stalled"}'


def disk(name: str, free: str) -> dict[str, str]:
    return {f'disk_free_bytes{{disk="{name}"}}': free, f'disk_size_bytes{{disk="{name}"}}': "100x60"}


STORIES = (
    Story(
        "WarmupEngineNotReady",
        "a warm-up without end, and why",
        way("warming", "up"),
        fires=(61, 120),
        silent=(30, 59),
        summary="engine-0 has not been ready for an hour; now it is warming, the engine up.",
    ),
    Story("WarmupEngineNotReady", "a first boot of half an hour", {"ready": "0x35 1x60"}, silent=(30, 60, 90)),
    Story(
        "WarmupEngineNotReady",
        "phases that change while it isn't ready",
        {
            "ready": "0x180",
            'phase{phase="warming"}': "0x19 1x19 0x19 1x19 0x19 1x80",
            'phase{phase="awaiting_engine"}': "1x19 0x19 1x19 0x19 1x19 0x80",
            'engine_state{state="busy"}': "1x180",
        },
        fires=(90,),
        summary="engine-0 has not been ready for an hour; now it is awaiting_engine, the engine busy.",
    ),
    Story(
        "WarmupEngineNotReady",
        "asleep on purpose",
        {**way("suspended", "asleep"), "engine_asleep": "1x180"},
        silent=(120,),
    ),
    Story("WarmupEngineNotReady", "draining", way("draining", "up"), silent=(120,)),
    Story(
        "WarmupNoProgress",
        "a lock that nobody gives back",
        {"no_progress_seconds": "0x5 120+60x30"},
        fires=(20,),
        silent=(10,),
        value="16m 0s",
    ),
    Story(
        "WarmupNoProgress",
        "a kernel that takes five minutes",
        {"no_progress_seconds": "0x5 120+60x3 0x30"},
        silent=(8, 10, 30),
    ),
    Story(
        "WarmupColdStart",
        "a restore that was late before the first scrape",
        {LATE: "_x10 1x200", FAILED: "_x10 0x200"},
        fires=(11, 60),
        silent=(5, 75, 150),
    ),
    Story(
        "WarmupColdStart",
        "a cold start of a pod that has long been there",
        {LATE: "0x200", FAILED: "0x99 1x99"},
        fires=(101, 150),
        silent=(90, 170),
    ),
    Story(
        "WarmupColdStart",
        "a gap of scrapes long after it",
        {LATE: "1x80 _x10 1x100", FAILED: "0x80 _x10 0x100"},
        fires=(30,),
        silent=(75, 100, 145, 155),
    ),
    Story(
        "WarmupColdStart",
        "a key that nobody has published yet",
        {FAILED: "_x5 0x60", LATE: "_x5 0x60", 'restore_outcome_total{outcome="miss"}': "_x5 1x60"},
        silent=(6, 30),
    ),
    Story(
        "WarmupKernelsLost",
        "kernels compiled again",
        {f"warmup_kernels_lost_total{TRITON}": "0x5 12x100"},
        fires=(7, 40),
        silent=(4, 80),
    ),
    Story(
        "WarmupKernelsLost",
        "a start that used everything",
        {f"warmup_kernels_lost_total{TRITON}": "0x100"},
        silent=(30,),
    ),
    Story(
        "WarmupKernelsCompiledAfterReady",
        "a user's request that compiled",
        {AFTER: "0x30 1x60"},
        fires=(32, 44),
        silent=(29, 50),
        labels={"when": "after_ready"},
    ),
    Story(
        "WarmupKernelsCompiledAfterReady",
        "warm-up alone",
        {AFTER: "0x60", 'kernels_compiled_total{when="before_ready", family="triton"}': "0+5x60"},
        silent=(10, 40),
    ),
    Story(
        "WarmupServingUnproven",
        "served when the budget ended",
        {"flagged": "1x60", "ready": "0x10 1x60"},
        fires=(20,),
        silent=(8, 13),
    ),
    Story(
        "WarmupServingUnproven",
        "with a fallback, which has an alert of its own",
        {"flagged": "1x60", "ready": "1x60", "fallback_active": "1x60"},
        silent=(20, 50),
    ),
    Story(
        "WarmupFallbackActive",
        "good with the second fallback, until it is lifted and the pod replaced",
        {"fallback_active": "0x5 1x5 2x60 0x40", "ready": "0x15 1x95"},
        fires=(25, 60),
        silent=(12, 18, 90),
        value="2",
    ),
    Story("WarmupFallbackActive", "as it was asked to", {"fallback_active": "0x60", "ready": "1x60"}, silent=(30,)),
    Story(
        "WarmupGoldenDrift",
        "an engine that drifts after a wake-up",
        {"golden_drift_ratio": "_x5 0.01x30 0.0625x60"},
        fires=(45, 80),
        silent=(4, 30),
        value="6.25%",
    ),
    Story("WarmupGoldenDrift", "near the recording", {"golden_drift_ratio": "0.02x60"}, silent=(30,)),
    Story(
        "WarmupOutputCheckFailed",
        "not what the golden file has",
        {WRONG: "0x100 1x99"},
        fires=(102,),
        silent=(90, 170),
    ),
    Story("WarmupServingUnproven", "proven", {"flagged": "1x10 0x60", "ready": "0x10 1x60"}, silent=(8, 20, 50)),
    Story(
        "WarmupOutputCheckFailed",
        "degenerate at the first check",
        {DEGENERATE: "_x5 1x150"},
        fires=(6, 50),
        silent=(3, 80),
    ),
    Story(
        "WarmupOutputCheckFailed",
        "degenerate after a wake-up",
        {DEGENERATE: "0x100 1x99"},
        fires=(102,),
        silent=(90, 170),
    ),
    Story(
        "WarmupOutputCheckFailed",
        "passed, and skipped",
        {
            'verify_total{outcome="passed"}': "_x5 1x60",
            'verify_total{outcome="skipped"}': "_x5 1x60",
            DEGENERATE: "_x5 0x60",
        },
        silent=(6, 30),
    ),
    Story(
        "WarmupQuarantine",
        "two deaths on a generation",
        {"quarantines_total": "0x10 1x120"},
        fires=(12, 60),
        silent=(9, 80),
    ),
    Story("WarmupQuarantine", "none", {"quarantines_total": "0x60"}, silent=(30,)),
    Story(
        "WarmupKvCacheNearFull",
        "full for long",
        {KV: "0.5x5 0.98x40"},
        fires=(18,),
        silent=(4, 14),
        labels={"phase": "serving"},
        value="98%",
    ),
    Story(
        "WarmupKvCacheNearFull",
        "full for a moment again and again",
        {KV: "0.98x5 0.7x2 0.98x5 0.7x2 0.98x5"},
        silent=(4, 12, 18),
    ),
    Story(
        "WarmupKvCacheNearFull",
        "full by warm-up",
        {'engine_kv_cache_usage_ratio{phase="warmup"}': "1x60"},
        silent=(30,),
    ),
    Story(
        "WarmupEngineStalled",
        "a hang",
        {STALLED: "0x10 1x20 0x20"},
        fires=(12, 30),
        silent=(9, 11, 32),
        labels={"state": "stalled"},
    ),
    Story("WarmupEngineStalled", "busy", {STALLED: "0x60", 'engine_state{state="busy"}': "1x60"}, silent=(30,)),
    Story(
        "WarmupEngineRestarts",
        "a crash loop",
        {CRASHED: "0x5 1x5 2x5 3x5 4x60", ASKED: "0x80"},
        fires=(30,),
        silent=(10,),
        value="4",
    ),
    Story(
        "WarmupEngineRestarts",
        "restarts that were asked for, and one crash",
        {CRASHED: "0x20 1x60", ASKED: "0+1x80"},
        silent=(30, 70),
    ),
    Story(
        "WarmupGpuLost",
        "off the bus, and back",
        {LOST: "0x10 1x10 0x30"},
        fires=(12, 19),
        silent=(9, 11, 25),
        labels=GPU,
    ),
    Story("WarmupGpuLost", "never", {LOST: "0x60"}, silent=(30,)),
    Story(
        "WarmupGpuThrottled",
        "heat that comes and goes",
        {HEAT: "0x10 " + "1 1 1 0 0 " * 8},
        fires=(36, 45),
        silent=(15,),
        labels={**GPU, "reason": "hw_thermal_slowdown"},
    ),
    Story("WarmupGpuThrottled", "a moment of heat", {HEAT: "0x10 1x3 0x40"}, silent=(13, 20, 30)),
    Story("WarmupGpuThrottled", "a busy GPU at its power limit", {POWER_CAP: "1x60", HEAT: "0x60"}, silent=(40,)),
    Story(
        "WarmupSidecarDegraded",
        "a setting that can't be used",
        {"degraded": "2x60"},
        fires=(12,),
        silent=(8,),
        value="2",
    ),
    Story("WarmupSidecarDegraded", "a store that is back in time", {"degraded": "0x5 1x5 0x60"}, silent=(9, 14, 30)),
    Story(
        "WarmupStoreUnreachable",
        "a server that is away",
        {STORE: "0x10 1x20 0x20"},
        fires=(16, 30),
        silent=(9, 14, 32),
        labels={"source": "store"},
    ),
    Story("WarmupStoreUnreachable", "a start, before the store was looked at", {STORE: "1x1 0x60"}, silent=(1, 3, 30)),
    Story(
        "WarmupDiskNearFull",
        "a store that fills",
        disk("store", "50-2x24 2x60"),
        fires=(45,),
        silent=(10, 35),
        labels={"disk": "store"},
        value="2%",
    ),
    Story("WarmupDiskNearFull", "a live cache with room", disk("live_cache", "20x60"), silent=(40,)),
    Story(
        "WarmupPublishFails",
        "every publish",
        {'publish_outcome_total{outcome="failed"}': "0+1x20 20x60"},
        fires=(15,),
        silent=(1,),
    ),
    Story(
        "WarmupPublishFails",
        "one that failed between others",
        {
            'publish_outcome_total{outcome="failed"}': "0x10 1x60",
            'publish_outcome_total{outcome="published"}': "0+1x60",
        },
        silent=(12, 50),
    ),
)


def named(series: str) -> str:
    """Give a series its whole name and the pod's labels."""
    name, _, labels = series.partition("{")
    pod = ", ".join(f'{label}="{value}"' for label, value in POD.items())
    return f"warmup_sidecar_{name}{{{pod}{', ' + labels if labels else '}'}"


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
            {"eval_time": f"{minute}m", "alertname": story.alert, "exp_alerts": expected}
            for minute, expected in sorted(moments, key=lambda moment: moment[0])
        ],
    }


def play(stories: list[Story], rules: Any, folder: Path) -> str:
    """Let promtool play the stories; give what it found wrong. Skips without promtool."""
    promtool = shutil.which("promtool", path=debian.search_path())
    if promtool is None:
        pytest.skip("no promtool (Debian: package prometheus); `python -m tests --only packages` says why")
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [as_test(each) for each in stories]}
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
