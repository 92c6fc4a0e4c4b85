"""Stories of engines, GPUs, disks and the store, as test_alerts.py plays them.

Starts, readiness and output of pods: alert_stories_pods.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.kubernetes.alert_story import Story

GPU = {"gpu": "5", "uuid": "GPU-5"}
KV = 'engine_kv_cache_usage_ratio{phase="serving"}'
HEAT = 'gpu_throttled{gpu="5", uuid="GPU-5", reason="hw_thermal_slowdown"}'
POWER_CAP = 'gpu_throttled{gpu="5", uuid="GPU-5", reason="sw_power_cap"}'
LOST = 'gpu_lost{gpu="5", uuid="GPU-5"}'
STORE = 'source_missing{source="store"}'
CRASHED = 'engine_restarts_total{cause="exited"}'
ASKED = 'engine_restarts_total{cause="asked"}'
STALLED = 'engine_state{state="stalled"}'
WITHHELD = 'engine_state{state="gpu_lost"}'
HANGS = 'suspensions_total{cause="stalled"}'
ASLEEP = "0x9 1x9 2x9 3x9 4x9 5x9 6x9 7x9 8x9"
DAMAGED = 'restore_files_rejected_total{reason="digest"}'
NO_PACK = 'restore_files_rejected_total{reason="pack"}'
UNSIGNED = 'restore_files_rejected_total{reason="unsigned"}'
FOREIGN = 'restore_files_rejected_total{reason="untrusted"}'
REPLAYED = 'restore_files_rejected_total{reason="rolled_back"}'
SCRAPE = {"container": "warmup-sidecar", "endpoint": "warmup", "job": "inference/warm-engine"}
INJECTOR = {"container": "injector", "endpoint": "probes", "job": "warmup-system/warmup-injector"}


def up(labels: Mapping[str, str]) -> str:
    named = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    return f"up{{{named}}}"


def disk(name: str, free: str) -> dict[str, str]:
    return {f'disk_free_bytes{{disk="{name}"}}': free, f'disk_size_bytes{{disk="{name}"}}': "100x60"}


MACHINES = (
    Story(
        "WarmupKvCacheNearFull",
        "full for long",
        {KV: "0.5x5 0.98x40"},
        fires=(21,),
        silent=(4, 14),
        labels={"phase": "serving"},
        value="98%",
    ),
    Story(
        "WarmupKvCacheNearFull",
        "full but for moments",
        {KV: "0.99 0.99 0.99 0.99 0.89 " * 10},
        fires=(20, 45),
        silent=(4,),
        labels={"phase": "serving"},
        value="97%",
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
        "WarmupFlapping",
        "three hangs, each too short for an alert of its own",
        {HANGS: "0x10 1x9 2x9 3x120"},
        fires=(32, 60),
        silent=(9, 25, 75),
        value="3",
    ),
    Story(
        "WarmupFlapping",
        "of several causes",
        {HANGS: "0x10 1x120", 'suspensions_total{cause="degenerate"}': "0x15 1x4 2x120"},
        fires=(22, 60),
        silent=(18, 85),
        value="3",
    ),
    Story("WarmupFlapping", "two hangs", {HANGS: "0x10 1x9 2x120"}, silent=(12, 22, 40, 69, 100)),
    Story(
        "WarmupFlapping",
        "put to sleep every ten minutes",
        {'suspensions_total{cause="asleep"}': ASLEEP, HANGS: "0x90"},
        silent=(30, 60, 85),
    ),
    Story(
        "WarmupEngineRestarts",
        "a crash loop",
        {CRASHED: "0x5 1x5 2x5 3x5 4x60", ASKED: "0x80"},
        fires=(30,),
        silent=(10,),
        value="4",
    ),
    Story("WarmupEngineRestarts", "two crashes", {CRASHED: "0x10 1x9 2x120"}, silent=(12, 22, 40, 69, 100)),
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
        summary="engine-0 has lost GPU 5 (GPU-5); traffic was withdrawn.",
    ),
    Story(
        "WarmupGpuLost",
        "off the bus, until no reading succeeds any more",
        {LOST: "0x10 1x5 stale _x40", WITHHELD: "0x10 1x30 0x20"},
        fires=(17, 40),
        silent=(9, 43),
        summary="engine-0 has lost a GPU; traffic was withdrawn.",
    ),
    Story("WarmupGpuLost", "never", {LOST: "0x60", WITHHELD: "0x60"}, silent=(30,)),
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
    Story(
        "WarmupPublishFails",
        "two that failed",
        {'publish_outcome_total{outcome="failed"}': "0x10 1x9 2x150"},
        silent=(12, 25, 60, 100, 128),
    ),
    Story(
        "WarmupStoreDamaged",
        "a restore before the first scrape that found bad bytes and a pack missing",
        {DAMAGED: "_x5 3x150", NO_PACK: "_x5 12x150"},
        fires=(6, 50),
        silent=(3, 80),
    ),
    Story(
        "WarmupStoreDamaged",
        "at a restart of the engine",
        {DAMAGED: "0x100 2x99", NO_PACK: "0x199"},
        fires=(102, 150),
        silent=(90, 170),
    ),
    Story(
        "WarmupStoreDamaged",
        "files that are whole and left out",
        {
            'restore_files_rejected_total{reason="elsewhere"}': "_x5 4x60",
            'restore_files_rejected_total{reason="quarantined"}': "_x5 1x60",
            'restore_files_rejected_total{reason="left_out"}': "_x5 9x60",
            DAMAGED: "_x5 0x60",
        },
        silent=(6, 30),
    ),
    Story(
        "WarmupStoreUntrusted",
        "a first restore that met a generation of nobody and one of another key",
        {UNSIGNED: "_x5 1x150", FOREIGN: "_x5 1x150", REPLAYED: "_x5 0x150"},
        fires=(6, 50),
        silent=(3, 80),
    ),
    Story(
        "WarmupStoreUntrusted",
        "at a restart of the engine",
        {UNSIGNED: "0x199", FOREIGN: "0x100 1x99"},
        fires=(102, 150),
        silent=(90, 170),
    ),
    Story(
        "WarmupStoreUntrusted",
        "refused for what it is, not for who made it",
        {
            UNSIGNED: "_x5 0x60",
            FOREIGN: "_x5 0x60",
            REPLAYED: "_x5 2x60",
            DAMAGED: "_x5 3x60",
            'restore_files_rejected_total{reason="quarantined"}': "_x5 1x60",
        },
        silent=(6, 30),
    ),
    Story(
        "WarmupStoreRolledBack",
        "an old store at a restart of the engine",
        {REPLAYED: "0x100 2x99"},
        fires=(102, 150),
        silent=(90, 170),
        labels={"reason": "rolled_back"},
    ),
    Story(
        "WarmupStoreRolledBack",
        "known to a daemon that started anew, before the first scrape",
        {REPLAYED: "_x5 2x150"},
        fires=(6, 50),
        silent=(3, 80),
        labels={"reason": "rolled_back"},
    ),
    Story(
        "WarmupStoreRolledBack",
        "generations that nobody vouches for, and none that is gone",
        {REPLAYED: "_x5 0x60", UNSIGNED: "_x5 1x60", FOREIGN: "_x5 1x60"},
        silent=(6, 30),
    ),
    Story(
        "WarmupNotScraped",
        "a pod behind a wall",
        {up(SCRAPE): "1x10 0x40"},
        fires=(22, 45),
        silent=(9, 19),
        labels=SCRAPE,
    ),
    Story(
        "WarmupNotScraped", "the injector", {up(INJECTOR): "1x10 0x40"}, fires=(22,), silent=(9, 19), labels=INJECTOR
    ),
    Story("WarmupNotScraped", "a pod whose image is fetched", {up(SCRAPE): "0x6 1x60"}, silent=(5, 12, 30)),
    Story(
        "WarmupNotScraped",
        "somebody else's injector",
        {up({**INJECTOR, "endpoint": "http"}): "0x60"},
        silent=(30,),
    ),
)
