"""Golden check: stored prompts with the output that a trusted configuration gave, asked again and compared.

What follows from a failure is decided by the supervisor; nothing here changes an engine, a store or a gate.
"""

from __future__ import annotations

from sidecar.golden.checking import check
from sidecar.golden.files import GoldenFile, GoldenSet, PromptSet, load, load_prompts, save, starter_prompts
from sidecar.golden.recording import record
from sidecar.golden.report import FailedPrompt, GoldenOutcome, GoldenProgress, GoldenResult

__all__ = [
    "FailedPrompt",
    "GoldenFile",
    "GoldenOutcome",
    "GoldenProgress",
    "GoldenResult",
    "GoldenSet",
    "PromptSet",
    "check",
    "load",
    "load_prompts",
    "record",
    "save",
    "starter_prompts",
]
