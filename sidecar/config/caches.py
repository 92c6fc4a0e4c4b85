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
from sidecar.files import BUCKETS

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
    store: str = Field(
        "",
        description="Directory of the shared store, or the URL of a bucket (`s3://BUCKET/PREFIX`, `gs://`, `az://`); empty: "
        "nothing is restored or published. Directories before it, separated by commas, are only asked for archives first.",
    )
    store_mode: Literal["read-write", "read-only"] = Field(
        "read-write", description="`read-only`: restore only, for pods that must not publish."
    )
    trusted_keys_file: Path | None = Field(
        None,
        description="File with the public keys whose generations are believed, a line each as `ssh-keygen -t ed25519` and "
        "`warmup-sidecar store keygen` write them; set: a generation that is not signed, signed by another key, or signed for "
        "another place is refused, and the next older one is tried.",
    )
    signing_key_file: Path | None = Field(
        None,
        description="File with the private key that publishes are signed with: for the Job that fills the store, not for pods "
        "that serve. Without `trusted_keys_file` it also means that only what this key signed is believed.",
    )
    pack_cache: Path | None = Field(
        None,
        description="Directory of the node, such as a hostPath, in which its pods share archives of the store: a restore looks "
        "there first, and leaves there what it had to fetch. Every byte is checked.",
    )
    pack_cache_limit_bytes: Annotated[int, pydantic.BeforeValidator(whole_bytes)] = Field(
        20 * 2**30,
        ge=0,
        description="What that directory may take, such as `20Gi`; past it, or with less than 1 GiB left on its disk, what was "
        "used least lately goes.",
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
    store_keep_count: int = Field(
        0, ge=0, le=10_000, description="Generations of a key that are kept in the store, the newest ones; 0: all."
    )
    store_keep_age_s: float = Field(
        0, ge=0, description="Age past which a generation that is not its key's newest is not kept; 0: none is too old."
    )
    store_keep_unused_s: float = Field(
        0,
        ge=0,
        description="A key of which nothing was published and no boot recorded for this long goes as a whole, its proven "
        "generation too; 0: never. Pods that use the store read-only leave no trace there of their use.",
    )
    store_limit_bytes: Annotated[int, pydantic.BeforeValidator(whole_bytes)] = Field(
        0,
        ge=0,
        description="What the archives in the store may take, such as `200Gi`; past it the generations of the keys that "
        "were used least recently go, the oldest first, but never the last one of a key. 0: no limit.",
    )
    store_grace_s: float = Field(
        7200,
        ge=600,
        le=30 * 86400,
        description="Nothing younger than this is removed from the store, and no archive within this time of being "
        "found out of use: a restore or a publish may be at it. Longer than both may take.",
    )
    store_gc_interval_s: float = Field(
        0,
        ge=0,
        le=30 * 86400,
        description="How often, at most, publishers clean the store up by these limits, all of them together; 0: only "
        "`warmup-sidecar store gc` does.",
    )

    @pydantic.field_validator("live_cache")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return absolute(value)

    @pydantic.field_validator("trusted_keys_file", "signing_key_file")
    @classmethod
    def _absolute_keys(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError("must be an absolute path")
        return value

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
    def _places(cls, value: str) -> str:
        *fronts, last = (place.strip().rstrip("/") or place.strip() for place in value.split(","))
        for place in (*fronts, last):
            if "://" in place and (place in fronts or not place.startswith(BUCKETS)):
                raise ValueError(f"'{place}' must be a directory, or as the last or only one s3://, gs:// or az://")
            if "://" in place and not place.partition("://")[2]:
                raise ValueError(f"'{place}' must name a bucket, such as s3://BUCKET/PREFIX")
            if "://" not in place and (place or fronts) and not Path(place).is_absolute():
                raise ValueError("must be an absolute path, or the URL of a bucket")
        return ",".join((*fronts, last))

    @pydantic.field_validator("pack_cache")
    @classmethod
    def _absolute_cache(cls, value: Path | None) -> Path | None:
        return cls._absolute_keys(value)

    @property
    def watched_roots(self) -> tuple[str, ...]:
        """Give the directories of `extra_roots`."""
        return tuple(root for root in self.extra_roots.split(":") if root)

    @property
    def excluded_families(self) -> tuple[str, ...]:
        """Give the names of `exclude_families`; whether there are such families is known to the caches."""
        return tuple(name for word in self.exclude_families.split(",") if (name := word.strip()))
