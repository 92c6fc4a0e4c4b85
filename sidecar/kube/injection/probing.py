"""The engine's own probes and its end: budgets that cover launcher wait, restore and cold compile.

A probe that nobody wrote is added only where another one would end the engine too early.
"""

from __future__ import annotations

import copy
from typing import Any

from sidecar.kube.injection import budgets
from sidecar.kube.injection.shape import Shape

Json = dict[str, Any]


def raise_budgets(engine: Json, shape: Shape, cold_start_s: float) -> None:
    """Make the engine's startup budget long enough.

    An engine with neither startup nor liveness probe is ended by nobody, and stays so.
    """
    waits = (shape.number("restore_timeout_s"), shape.number("single_flight_s"))
    needed = budgets.engine_start_s(*waits, cold_start_s)
    startup, liveness = engine.get("startupProbe"), engine.get("livenessProbe")
    if isinstance(startup, dict):
        before = budgets.allowed_s(startup)
    elif isinstance(liveness, dict):
        before = budgets.allowed_s(liveness)
        # It takes over what made the liveness probe wait, and asks often: until it has passed, the pod can't be ready.
        startup = {**copy.deepcopy(liveness), "successThreshold": 1}
        startup["periodSeconds"] = min(startup.get("periodSeconds", 10), budgets.ENGINE_PROBE_PERIOD_S)
        startup.pop("terminationGracePeriodSeconds", None)
    else:
        return
    after = max(needed, before + budgets.launcher_wait_s(*waits))
    period = float(startup.get("periodSeconds") or 10)
    delay = float(startup.get("initialDelaySeconds") or 0)
    startup["failureThreshold"] = budgets.attempts(after, period, delay)
    engine["startupProbe"] = startup


def hold_termination(engine: Json) -> None:
    """Delay SIGTERM where no launcher holds it: nobody knows there when the last request has ended."""
    hooks = engine.setdefault("lifecycle", {})
    hooks.setdefault("preStop", {"exec": {"command": ["sh", "-c", f"sleep {budgets.BESIDE_DRAIN_S}"]}})


def grace_s(engine: Json, shape: Shape) -> int:
    """Give the grace period that the pod needs, in seconds: a preStop hook's sleep, drain, and two ends."""
    hook = (engine.get("lifecycle") or {}).get("preStop") or {}
    pause = (hook.get("sleep") or {}).get("seconds", 0)
    command = " ".join(str(word) for word in (hook.get("exec") or {}).get("command") or [])
    for word, number in zip(command.split(), command.split()[1:], strict=False):
        if word == "sleep" and number.isascii() and number.rstrip("s").isdigit():
            pause = max(pause, int(number.rstrip("s")))
    return budgets.grace_period_s(shape.number("drain_s") if shape.launcher else 0, pause)
