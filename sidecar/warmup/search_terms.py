"""How far a warm-up searches beyond its steps: the `search:` section of a profile, as a frozen model.

What is searched and when it is enough is decided in `search.py`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sidecar.warmup.steps import Strict


class Search(Strict):
    """How the sizes between those of the steps are searched for kernels.

    `gap`: the widest stretch of sizes that may stay unvisited although nothing points to it, as a share of the
    traffic mix (0.0025 of a mix from 8 to 8192 tokens: stretches of 1.7 %). `bound`: a stretch between two sizes
    of which one compiled, or both something else, is split until it is this small. `budget_share` and
    `max_requests` cap the whole search; what is open then is said, and the next pod goes on there. `rounds`: so
    often the surroundings of what compiled are tried. `replay_draws`: random draws after a replay without
    evidence; they count together with those of the pods before. `mix`: with `auto` random draws follow the traffic that
    earlier pods recorded, where there is a record, with `profile` always the profile's.
    """

    enabled: bool = True
    gap: float = Field(0.0025, gt=0, le=1)
    bound: float = Field(0.0005, gt=0, le=1)
    budget_share: float = Field(0.5, gt=0, le=1)
    max_requests: int = Field(20_000, ge=1, le=1_000_000)
    rounds: int = Field(6, ge=0, le=100)
    replay_draws: int = Field(20, ge=0, le=100_000)
    mix: Literal["auto", "profile"] = "auto"
