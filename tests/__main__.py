"""Run all tests: `python -m tests`, in the environment that `pip install -e '.[test]'` made.

The stages are in `prepare/stages.py`; nothing is tested here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.prepare.outcome import Outcome, skipped
from tests.prepare.stages import SLOW, STAGES, Stage, groups, run_together
from tests.prepare.summary import exit_status, render


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen stages to the end, whatever fails, and give the exit status."""
    asked = _parse(arguments)
    outcomes: list[Outcome] = []
    for group in groups(SLOW if asked.slow else _chosen(asked.only)):
        asked_for = [stage for stage in group if stage.quick or not asked.quick]
        if asked_for:
            print(f"\n=== {asked_for[0].name}: {asked_for[0].does}", flush=True)
            outcomes += run_together(asked_for)
        outcomes += [skipped(stage.name, "--quick was given") for stage in group if stage not in asked_for]
    print(render(outcomes), flush=True)
    return exit_status(outcomes)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [stage.name for stage in STAGES]
    described = "\n".join(f"  {stage.name:<12} {stage.does}" for stage in STAGES)
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description="Prepare what the tests need, run every check, and say what was skipped and why.",
        epilog=f"stages:\n{described}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="leave out Debian packages and the real engine")
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="STAGE",
        help="run this stage alone; may be repeated",
    )
    parser.add_argument("--slow", action="store_true", help="run the slow tests and measurements instead")
    return parser.parse_args(arguments)


def _chosen(only: Sequence[str] | None) -> list[Stage]:
    return [stage for stage in STAGES if not only or stage.name in only]


if __name__ == "__main__":
    sys.exit(main())
