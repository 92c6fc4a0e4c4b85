"""The sums behind every probe and deadline of a pod: who waits for whom, for how long at most.

No manifest is made here. Seconds throughout.
"""

from __future__ import annotations

import math

#: A node that pulls images with all its processors may start the sidecar's process late; the daemon itself answers within 1 s.
SIDECAR_START_S = 60
#: How long the launcher looks for a sidecar that said nothing yet (`grace_s` of launcher/messages.py).
LAUNCHER_GRACE_S = 5
#: Facts (3 s) and what an earlier engine left behind (3 s), rounded up: launcher/facts.py and launcher/process.py.
LAUNCHER_OWN_S = 10
#: How much longer than the restore's cap a launcher waits for the decision (daemon/assembly.py).
DECISION_S = 15
#: How much longer than the restore's cap /startupz stays closed without a launcher (daemon/process.py).
BESIDE_S = 30
#: From the engine's process to /health 200 with every cache empty. Measured on an H200 with vLLM 0.25.1 and an 8B model
#: with dummy weights: over 560 s (DESIGN §1). Three times that leaves room for weights that come over the network.
ENGINE_COLD_START_S = 1800
#: A wrong probe budget kills an engine, a long one only delays the end of one that hangs. Asked so often, because the
#: container, and with it the pod, is not ready before its startup probe has passed.
ENGINE_PROBE_PERIOD_S = 5
#: The engine's image (10 to 20 GB) and the scheduling of the pod, before anything of ours can run.
PULL_S = 900
#: How long the launcher lets an engine take after SIGTERM (`kill_s` of launcher/messages.py).
ENGINE_END_S = 30
#: A sidecar ends within this after its SIGTERM (DESIGN §3).
SIDECAR_END_S = 2
#: Where no launcher holds SIGTERM, the engine gets it so much later: endpoints are updated and short answers end meanwhile.
BESIDE_DRAIN_S = 15
#: How long a launcher without native sidecars looks for the sidecar's container, which starts beside the engine's.
PLAIN_GRACE_S = 60


def launcher_wait_s(restore_timeout_s: float, single_flight_s: float) -> float:
    """Give the longest time from the engine container's start to the start of the engine in it."""
    return LAUNCHER_GRACE_S + LAUNCHER_OWN_S + restore_timeout_s + single_flight_s + DECISION_S


def engine_start_s(restore_timeout_s: float, single_flight_s: float, cold_start_s: float) -> float:
    """Give the longest time from the engine container's start to its first answer: wait, restore, cold compile."""
    return launcher_wait_s(restore_timeout_s, single_flight_s) + cold_start_s


def sidecar_start_s(launcher: bool, restore_timeout_s: float) -> float:
    """Give the longest time until /startupz answers 200; without a launcher it stays closed until restore has settled."""
    return SIDECAR_START_S if launcher else SIDECAR_START_S + restore_timeout_s + BESIDE_S


def grace_period_s(drain_s: float, pre_stop_s: float = 0) -> int:
    """Give the pod's grace period: drain, end of the engine, end of the sidecar, up to the next ten seconds."""
    return math.ceil((pre_stop_s + drain_s + ENGINE_END_S + SIDECAR_END_S) / 10) * 10


def ready_s(engine_s: float, warm_budget_s: float, request_timeout_s: float) -> float:
    """Give the longest time from the creation of a pod to ready on an empty store.

    Images, sidecar, engine, warm-up, and one last request of the output check.
    """
    return PULL_S + SIDECAR_START_S + engine_s + warm_budget_s + request_timeout_s


def attempts(budget_s: float, period_s: float, delay_s: float = 0) -> int:
    """Give the failureThreshold with which a probe allows this budget."""
    return max(1, math.ceil((budget_s - delay_s) / period_s))


def allowed_s(probe: dict[str, object]) -> float:
    """Give how long a probe lets a container be before it acts; Kubernetes' defaults where it says nothing."""
    period, threshold = _number(probe, "periodSeconds", 10), _number(probe, "failureThreshold", 3)
    return _number(probe, "initialDelaySeconds", 0) + period * threshold


def _number(probe: dict[str, object], name: str, default: float) -> float:
    value = probe.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
