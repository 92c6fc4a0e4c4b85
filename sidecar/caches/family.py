"""What one row of the table of cache families says.

The rows are in `family_table`, the questions they answer in `families`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Scope = Literal["exact", "toolchain", "never"]
Validity = Literal["none", "triton", "cubin", "ninja", "json"]

# Triton's kernels within a cache of torch.compile, a directory each, called by a digest in base 32 (Triton 3.8
# runtime/cache.py): Inductor puts its own there (torch _inductor/runtime/triton_heuristics.py:492), and vLLM up to 0.30 all.
TRITON_INSIDE = r"(.*/[A-Z2-7]{52})/"


@dataclass(frozen=True)
class Family:
    """One kind of live cache.

    `directory` is relative to the live cache; `variables` maps an engine variable to a template in which `{live}` is
    the live cache, and `links` a place that no variable moves (beginning with `~/` or `$TMPDIR/`) to one. `since` is
    the version of vLLM from which on it is known. `unit` is a pattern whose groups name the kernel entry a file belongs
    to: such entries are kept, dropped and replaced whole. A family without it is kept or left empty as a whole, and one in which
    only such entries may miss is `one_piece`: with any other of its files all of it goes.
    `restless` files are rewritten at each start with nothing in them that matters, such as timings; a change in them
    alone is no reason to publish. `per_rank` is a pattern of files of which each rank has one; its group `set` names
    those that belong together. `ours` marks what the sidecar itself writes there: no use of it tells about the engine.
    """

    name: str
    directory: str
    scope: Scope
    default_path: str
    variables: Mapping[str, str]
    note: str
    since: str
    links: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    kernels: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    leave_out_multi_rank: tuple[str, ...] = ()
    per_rank: str = ""
    restless: tuple[str, ...] = ()
    unit: str | None = None
    one_piece: bool = False
    validity: Validity = "none"
    ours: bool = False


@dataclass(frozen=True)
class NoFamily:
    """A cache that is neither moved nor carried, and why; `places` are what it looks like on disk.

    A place begins with `~/` or `$TMPDIR/` and may hold `*`; one that grows is not reported as an unknown cache.
    """

    name: str
    default_path: str
    why: str
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranks:
    """The ranks of an engine: how many there are in all, and whether every one of them runs in this pod."""

    total: int = 1
    all_here: bool = True
