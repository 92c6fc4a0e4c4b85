"""Sentences of warm-up that people judge by."""

from __future__ import annotations

import pytest

from sidecar.warmup.sentences import Proof, converged


@pytest.mark.parametrize(
    ("draws", "said"),
    [(1, "at most 100 %"), (20, "at most 15 %"), (60, "at most 5 %"), (150, "at most 2 %"), (79, "3.8 %")],
)
def test_the_residual_risk_is_written_as_a_plain_percentage(draws: int, said: str):
    assert f"{said} of the traffic mix" in converged("done", Proof(draws=draws), (), empty=False)
