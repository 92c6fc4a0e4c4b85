"""The end of a test run: a table of stages, every reason for a skip, and the counts on the last line.

Nothing is decided here but the exit status.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.prepare.outcome import Outcome


def verdict(outcome: Outcome) -> str:
    """Give the word for one stage."""
    if outcome.failed:
        return "FAILED"
    return "passed" if outcome.passed else "skipped"


def render(outcomes: Sequence[Outcome]) -> str:
    """Give the whole summary; its last line is `N passed, N failed, N skipped`."""
    lines = ["", f"{'stage':<14}{'verdict':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>10}  note"]
    for outcome in outcomes:
        lines.append(
            f"{outcome.stage:<14}{verdict(outcome):<10}{outcome.passed:>8}{outcome.failed:>8}"
            f"{outcome.skipped:>9}{outcome.seconds:>10.1f}  {outcome.note}".rstrip()
        )
    skips = [(outcome.stage, reason, count) for outcome in outcomes for reason, count in outcome.skips.items()]
    if skips:
        lines += ["", "Skipped, and why:"]
        lines += [f"  {stage}, {count}: {reason}" for stage, reason, count in skips]
    counts = [sum(getattr(one, what) for one in outcomes) for what in ("passed", "failed", "skipped")]
    lines += ["", f"{counts[0]} passed, {counts[1]} failed, {counts[2]} skipped"]
    return "\n".join(lines)


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """Give 1 when anything failed or nothing at all passed, else 0."""
    nothing_passed = not any(outcome.passed for outcome in outcomes)
    return 1 if nothing_passed or any(outcome.failed for outcome in outcomes) else 0
