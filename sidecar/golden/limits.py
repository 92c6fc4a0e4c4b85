"""How far an engine's answers may be from the recorded ones; stored in each golden file, so that it can be changed there.

Only numbers and where they come from; what is compared with them is in `judging.py`.
"""

from __future__ import annotations

import math

from pydantic import Field

from sidecar.warmup.steps import Strict


class Limits(Strict):
    """What is allowed of a check. Changes of likelihood are in nats per token: 0.1 makes a token 10 % less likely.

    An answer may leave the recorded one at a near tie: where the two likeliest tokens were within `tie` of each other when
    recorded, and are now. That flips with the batch a request happens to be in. Leaving it anywhere else makes the prompt
    fail. Where an engine doesn't tell how likely tokens are, `first_tokens` must be those recorded, of at least the share
    `agreeing` of the answers of each way of sending.

    `drift_percent`: by how much the probability of a recorded token may change on average, up or down;
    `same_drift_percent`, where engine and configuration are those that were recorded. `change`: by
    how much the mean log-likelihood may fall. `worst_prompt`: by how much the tokens of one prompt may change on average.
    `failing`: share of the prompts that may fail. `solo`: how many prompts are sent alone; 0 is all of them. `batch`: how
    many are sent at once at most.

    Defaults: 132 clean checks drifted by 0.35 % at most and had two near ties at most; the mildest of 50 damages drifted by
    2.9 % and had near ties only, so `same_drift_percent` lies between (`tests/bench/bench_golden.py`, vLLM on CPU, 2026-11-30).
    """

    first_tokens: int = Field(8, ge=1, le=1000)
    agreeing: float = Field(0.6, ge=0, le=1)
    tie: float = Field(0.7, ge=0, le=20)
    drift_percent: float = Field(10.0, gt=0, lt=100)
    same_drift_percent: float = Field(2.0, gt=0, lt=100)
    change: float = Field(0.06, gt=0, le=20)
    worst_prompt: float = Field(0.5, gt=0, le=20)
    failing: float = Field(0.0, ge=0, le=1)
    solo: int = Field(4, ge=0, le=10_000)
    batch: int = Field(32, ge=2, le=1024)

    def allowing(self, percent: float) -> Limits:
        """Give limits under which a drift of so many percent is allowed, whatever else is said of likelihood here.

        The mean may fall by as much, and where that is more than before, single prompts may change by more in proportion.
        """
        allowed, before = _nats(percent), _nats(self.drift_percent)
        return self.model_copy(
            update={
                "drift_percent": percent,
                "same_drift_percent": percent,
                "change": allowed,
                "worst_prompt": min(20.0, self.worst_prompt * max(1.0, allowed / before)),
            }
        )


def _nats(percent: float) -> float:
    return -math.log1p(-percent / 100.0)
