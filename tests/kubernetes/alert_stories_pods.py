"""Stories of pods, as test_alerts.py plays them: starts, readiness, output.

Engines, machines and the store: alert_stories_machines.py.
"""

from __future__ import annotations

from tests.kubernetes.alert_story import Story

LATE = 'restore_outcome_total{outcome="late"}'
FAILED = 'restore_outcome_total{outcome="failed"}'
TRITON = '{family="triton"}'
AFTER = 'kernels_compiled_total{when="after_ready", family="triton"}'
WRONG = 'verify_total{outcome="wrong"}'
#: The output is far from the golden file, and two of its prompts are not what it has.
DRIFTED = {WRONG: "0x100 1x99", "golden_drift_ratio": "_x100 0.3x99", "golden_failed_prompts": "_x100 2x99"}
DEGENERATE = 'verify_total{outcome="degenerate"}'


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


PODS = (
    Story(
        "WarmupEngineNotReady",
        "a warm-up without end, and why",
        way("warming", "up"),
        fires=(66, 120),
        silent=(30, 59),
        summary="engine-0 was ready for 0% of the last hour; now it is warming, the engine up.",
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
        summary="engine-0 was ready for 0% of the last hour; now it is awaiting_engine, the engine busy.",
    ),
    Story(
        "WarmupEngineNotReady",
        "ready for a minute again and again",
        {**way("warming", "up"), "ready": "0x18 1 " * 12},
        fires=(130, 170),
        silent=(30, 60, 119),
        summary="engine-0 was ready for 5% of the last hour; now it is warming, the engine up.",
    ),
    Story(
        "WarmupEngineNotReady", "ready for four minutes of twenty", {"ready": "0x15 1x3 " * 12}, silent=(60, 130, 200)
    ),
    Story(
        "WarmupEngineNotReady",
        "a first boot that takes as long as it may, and is not judged by it afterwards",
        {"ready": "0x62 1x160"},
        silent=(30, 62, 66, 90, 121, 130),
    ),
    Story(
        "WarmupEngineNotReady",
        "woken after a long sleep",
        {"ready": "1x9 0x150 1x60", "engine_asleep": "0x9 1x140 0x70"},
        silent=(120, 153, 158, 165),
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
    Story("WarmupServingUnproven", "proven", {"flagged": "1x10 0x60", "ready": "0x10 1x60"}, silent=(8, 20, 50)),
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
        "WarmupGoldenDrift",
        "far from the recording, and let pass",
        {"golden_drift_ratio": "0.25x60", "golden_failed_prompts": "2x30 0x30"},
        fires=(45,),
        silent=(20, 30),
        value="25%",
    ),
    Story("WarmupGoldenDrift", "a check that failed", DRIFTED, silent=(20, 120, 170)),
    Story(
        "WarmupOutputCheckFailed",
        "not what the golden file has",
        DRIFTED,
        fires=(102,),
        silent=(90, 170),
    ),
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
)
