"""Every setting, declared once: name, meaning, unit, default, and how the sources are merged.

No behaviour hangs on a setting here; the daemon hands each part the values it needs. A new setting is a field of the
group it belongs to: `engine.py`, `caches.py` (live caches, store, restore, publish), `warmup.py` (warm-up, golden
check), `serving.py` (probes, log, GPU, stall, drain) or `kubernetes.py`. Its validators and properties go below the
fields of the same file, and its name leaves `NOT_YET` in `names.py`. Flags, `check --list` and the README's table
follow by themselves.
"""

from __future__ import annotations

from sidecar.config.names import CAREFUL, FILE_VARIABLE, NOT_YET, PREFIX, variable
from sidecar.config.settings import Settings
from sidecar.config.sources import Loaded, Problem, load
from sidecar.config.warmup import GoldenPolicy

__all__ = [
    "Settings",
    "load",
    "Loaded",
    "Problem",
    "variable",
    "GoldenPolicy",
    "NOT_YET",
    "CAREFUL",
    "PREFIX",
    "FILE_VARIABLE",
]
