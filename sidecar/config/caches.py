"""Settings about live caches and their store: places, families, restore and publish.

Nothing about traffic lives here.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from sidecar.config.engine import absolute
from sidecar.config.group import Group

#: Suffixes of Kubernetes' quantities (documentation: Reference, Common Definitions, Quantity); smaller ones make no sense here.
QUANTITIES = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}  # fmt: skip
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([kMGTP]i?|Ki)")


def whole_bytes(given: object) -> object:
    """Turn a quantity such as `20Gi` or `1.5G` into bytes; everything else is left to the field's own check."""
    found = _QUANTITY.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None or found[2] not in QUANTITIES:
        return given
    return int(Decimal(found[1]) * QUANTITIES[found[2]])


class CacheSettings(Group):
    """The live cache, the store, and when something moves between them."""

    live_cache: Path = Field(
        Path("/var/cache/engine"),
        description="Root of the engine's live caches: local disk, private to the pod, the same path in every pod.",
    )
    live_cache_limit_bytes: Annotated[int, pydantic.BeforeValidator(whole_bytes)] = Field(
        0,
        ge=0,
        description="Size limit of the live cache's volume (an emptyDir's `sizeLimit`, written the same way, such as `20Gi`), "
        "which no filesystem tells: a restore leaves out the largest families rather than exceed it, since the kubelet would "
        "end the pod. 0: none.",
    )
    store: str = Field("", description="Directory of the shared store; empty: nothing is restored or published.")
    store_mode: Literal["read-write", "read-only"] = Field(
        "read-write", description="`read-only`: restore only, for pods that must not publish."
    )
    restore_timeout_s: float = Field(
        60,
        gt=0,
        le=3600,
        description="Cap of a restore, counted from the arrival of the facts; past it the start is cold.",
    )
    single_flight_s: float = Field(
        0,
        ge=0,
        le=7200,
        description="How long a pod waits for the first generation of its key while another pod starts cold to make it; "
        "0: it starts cold at once. The engine's startup probe must allow for it.",
    )
    exclude_families: str = Field(
        "",
        description="Cache families, separated by commas, that are neither restored nor published, such as "
        "`flashinfer_autotune`.",
    )
    extra_roots: str = Field(
        "",
        description="Absolute directories, separated by colons, that are watched for growth besides HOME and TMPDIR: "
        "what compiles there is reported as an unknown cache.",
    )
    unmanaged_interval_s: float = Field(
        60, gt=0, le=3600, description="Time between two looks for directories that grow and belong to no family."
    )
    publish_quiet_s: float = Field(
        5, ge=0, le=3600, description="The live cache must have been unchanged for this long before it is published."
    )
    publish_interval_s: float = Field(
        300, gt=0, le=86400, description="Least time between two publishes while serving."
    )
    publish_timeout_s: float = Field(900, gt=0, le=86400, description="Cap of one publish.")

    @pydantic.field_validator("live_cache")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return absolute(value)

    @pydantic.field_validator("extra_roots")
    @classmethod
    def _absolute_roots(cls, value: str) -> str:
        roots = [root.rstrip("/") for root in value.split(":") if root.strip()]
        for root in roots:
            if not Path(root).is_absolute():
                raise ValueError(f"'{root}' must be an absolute path, and not the root directory")
        return ":".join(roots)

    @pydantic.field_validator("store")
    @classmethod
    def _directory_store(cls, value: str) -> str:
        if "://" in value:
            raise ValueError("buckets are not supported by this version; give a directory on a shared volume")
        if value and not Path(value).is_absolute():
            raise ValueError("must be an absolute path")
        return value

    @property
    def watched_roots(self) -> tuple[str, ...]:
        """Give the directories of `extra_roots`."""
        return tuple(root for root in self.extra_roots.split(":") if root)

    @property
    def excluded_families(self) -> tuple[str, ...]:
        """Give the names of `exclude_families`; whether there are such families is known to the caches."""
        return tuple(name for word in self.exclude_families.split(",") if (name := word.strip()))
