"""Generations as an image of kernel caches, as GKM's MCV makes and KServe mounts them, which also holds them as a store.

One layer has two parts. Below `io.warmup-sidecar.store/` lies what an export holds: a store, from which generations are
imported, or restored where the image is mounted. Below `io.vllm.cache/` lie the same files unpacked, for those who mount them
without a sidecar; labels say where. How an image is kept in a folder is in `oci_layout`.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sidecar import __version__
from sidecar.caches import archive_file, oci_layout, travelling
from sidecar.caches.archive_file import Brought, OnProgress
from sidecar.caches.families import BY_NAME, Family
from sidecar.caches.file_table import StoredFile
from sidecar.caches.manifest import Manifest
from sidecar.caches.packs import PackReader
from sidecar.caches.store import Store
from sidecar.caches.tar_members import next_member, open_stream
from sidecar.caches.travelling import Place
from sidecar.errors import NotSo, StoreDamaged

STORE_PREFIX = "io.warmup-sidecar.store/"
# GKM mcv/docs/spec-compat.md (280f160), mcv/pkg/cacheplan: prefix of the payload, and of what describes it.
PAYLOAD = "io.vllm.cache"
DESCRIPTION = "io.vllm.manifest/manifest.json"
ROOT_VARIABLE, ROOT = "VLLM_CACHE_ROOT", "vllm"
COMPILED = "torch_compile_cache"
FACTORS = "cache_key_factors.json"
FACTORS_LIMIT = 1 << 20
_ENTRY = re.compile(r"(?:(?P<aot>torch_aot_compile)/)?(?P<hash>[^/]+)/(?:(?P<rank>rank_\d+_\d+)/)?(?:(?P<prefix>[^/]+)/)?")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass
class Payload:
    """What is known of the unpacked files: their bytes, the extra trees, and vLLM's compiled entries by hash."""

    bytes: int = 0
    is_vllm: bool = False
    trees: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, set[str]] = field(default_factory=dict)
    parts: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    factors: dict[tuple[str, str, str], Mapping[str, Any]] = field(default_factory=dict)


def chosen(store: Store, prefixes: Sequence[str]) -> list[Place]:
    """Name the generation of one engine: of its exact key, and of the toolchain key of the same facts. Raises NotSo."""
    places = travelling.chosen(store, prefixes, every=False)
    exact = [place for place in places if place[0] == "exact"]
    named = [place for place in places if place[0] == "toolchain"]
    if not exact:
        return _only(named)
    facts = _facts(store, *_only(exact))
    beside = named or [place for place in travelling.chosen(store, (), every=False) if place[0] == "toolchain"]
    fitting = [place for place in beside if _is_of(facts, _facts(store, place))]
    return [*exact, *(_only(fitting) if fitting else ())]


def export(store: Store, places: Sequence[Place], folder: Path, tag: str, on_progress: OnProgress) -> tuple[str, int]:
    """Write an image into a folder that is not there yet; give its manifest's digest and the bytes of its payload.

    Raises StoreDamaged for what is not what its manifest says, FileExistsError, and OSError.
    """
    manifests = [travelling.read_manifest(store, place) for place in places]
    facts = _facts(store, places[0])
    seen = Payload()

    def fill(tar: tarfile.TarFile) -> oci_layout.Image:
        archive_file.export_into(tar, store, places, on_progress, STORE_PREFIX)
        for manifest in manifests:
            _add_unpacked(tar, store, manifest, seen)
        archive_file.add(tar, DESCRIPTION, json.dumps({"vllm": list(_described(seen))}, indent=1).encode())
        created = datetime.fromtimestamp(max(one.created_unix_s for one in manifests), UTC)
        return oci_layout.Image(
            tag=tag,
            labels=labels(facts, seen),
            annotations={"cache.vllm.image/variant": "compat"},
            architecture=_ARCHITECTURES.get(facts.get("cpu_arch", ""), facts.get("cpu_arch", "") or "amd64"),
            created=created.isoformat(timespec="seconds").replace("+00:00", "Z"),
            made_by=f"warmup-sidecar {__version__}",
        )

    return oci_layout.write(folder, fill), seen.bytes


def bring(store: Store, folder: Path, on_progress: OnProgress, *, boots: bool = True) -> list[Brought]:
    """Take what the images of a folder hold into a store, as `archive_file.bring` does with a file. Raises as that does.

    The digests of all images are looked at before anything is made of the first; one with several tags is taken once.
    """
    found: list[Brought] = []
    for layer in {layer.path: layer for layer in oci_layout.layers(folder)}.values():
        with layer.opened() as stream:
            _refuse_foreign(stream)
        with layer.opened() as stream:
            found += archive_file.bring(store, stream, on_progress, boots=boots, prefix=STORE_PREFIX)
    return found


def labels(facts: Mapping[str, str], seen: Payload) -> dict[str, str]:
    """Say in labels for whom the payload is and where it belongs (GKM mcv/docs/spec-compat.md, "Image config labels")."""
    live = facts.get("live_cache", "")
    known = (name for name in ("vllm", "sglang", "tensorrt_llm") if f"packages.{name}" in facts)
    engine = next(known, "vllm" if seen.is_vllm else "")
    kinds = facts.get("gpu_kinds", "")
    sm = re.fullmatch(r"SM (\d+)\.?(\d+)", kinds)
    target: dict[str, Any] = {"backend": "cuda", "warp_size": 32} if kinds else {"backend": "cpu"}
    if sm:
        target["arch"] = f"sm_{sm[1]}{sm[2]}"
    mounts = [
        # Without a variable that names just this tree there is none.
        {"subPath": tree, "absPath": f"{live}/{tree}", "requiresWritable": True} | ({"env": variable} if variable else {})
        for tree, variable in sorted(seen.trees.items() if live else ())
    ]
    found = {
        "org.opencontainers.image.title": "kernel caches",
        "io.kserve.km/framework": engine,
        "io.kserve.km/cache-type": "torch-compile" if seen.hashes else "",
        "io.kserve.km/cache-hash": ",".join(sorted(seen.hashes)),
        "io.kserve.km/cache-mount-subpath": COMPILED if seen.hashes else "",
        "io.kserve.km/cache-root-env": f"{ROOT_VARIABLE}={live}/{ROOT}" if seen.is_vllm and live else "",
        "io.kserve.km/cache-mounts": json.dumps(mounts, separators=(",", ":")) if mounts else "",
        "cache.vllm.image/entry-count": str(len(seen.hashes)),
        "cache.vllm.image/cache-size-bytes": str(seen.bytes),
        "cache.vllm.image/format": ",".join(sorted(set().union(*seen.hashes.values()))),
        "cache.vllm.image/summary": json.dumps({"targets": [target]}),
    }
    return {name: value for name, value in found.items() if value}


def payload_folder(family: Family) -> str:
    """Give the folder of a family below the payload: vLLM's own is the payload itself, each other tree lies beside it."""
    return family.directory.removeprefix(f"{ROOT}/")


def _only(places: list[Place]) -> list[Place]:
    if len(places) > 1:
        keys = ", ".join(place[1][:12] for place in places)
        raise NotSo(
            f"An image holds the kernels of one engine, and there are {places[0][0]} keys {keys}: name one with --key."
        )
    return places


def _is_of(exact: Mapping[str, str], toolchain: Mapping[str, str]) -> bool:
    """Say whether all that both keys are made of agrees."""
    major = exact.get("driver", "").partition(".")[0]
    return all(exact[name] == value for name, value in toolchain.items() if name in exact) and (
        toolchain.get("driver_major", "") == major
    )


def _refuse_foreign(stream: Any) -> None:
    try:
        with open_stream(stream) as tar:
            first = next_member(tar)
    except tarfile.TarError as error:
        raise StoreDamaged(f"The image's layer is no tar ({error}).") from error
    if first is None or not first.name.startswith(STORE_PREFIX):
        raise StoreDamaged(
            "The image does not begin with what `warmup-sidecar store export --oci` writes: another tool made it, or put it "
            "together anew. Kernels without the facts that they were built from can't be trusted; export them again."
        )


def _facts(store: Store, place: Place) -> dict[str, str]:
    scope, key, _ = place
    found = (store.read_note(scope, key, ("facts.json",)) or {}).get("facts")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _add_unpacked(tar: tarfile.TarFile, store: Store, manifest: Manifest, seen: Payload) -> None:
    wanted: dict[str, list[StoredFile]] = {}
    for file in manifest.files:
        family = BY_NAME.get(file.family)
        if family is None or family.ours:
            continue
        tree = payload_folder(family).partition("/")[0]
        if family.directory.startswith(f"{ROOT}/"):
            seen.is_vllm = True
        else:
            target = "{live}/" + tree
            seen.trees[tree] = next((name for name, value in family.variables.items() if value == target), "")
        if file.link:
            link = tarfile.TarInfo(f"{PAYLOAD}/{payload_folder(family)}/{file.path}")
            link.type, link.linkname = tarfile.SYMTYPE, file.link
            tar.addfile(link)
        else:
            wanted.setdefault(file.pack, []).append(file)
    for pack, files in wanted.items():
        with closing(store.open_pack(pack)) as stream:
            reader = PackReader(stream)
            for file in sorted(files, key=lambda one: one.offset):
                _add_file(tar, file, _Unpacked(reader.pieces(file.offset, file.size), file), seen)


def _add_file(tar: tarfile.TarFile, file: StoredFile, content: _Unpacked, seen: Payload) -> None:
    family = BY_NAME[file.family]
    info = archive_file.info_of(f"{PAYLOAD}/{payload_folder(family)}/{file.path}", file.size)
    info.mode, info.mtime = file.mode & 0o755 | 0o444, file.mtime_ns // 1_000_000_000
    # Some compilers compare times to the nanosecond.
    info.pax_headers = {"mtime": f"{info.mtime}.{file.mtime_ns % 1_000_000_000:09d}"}
    source: Any = content
    if payload_folder(family) == COMPILED and (entry := _ENTRY.match(file.path)):
        seen.hashes.setdefault(entry["hash"], set()).add("aot_compile" if entry["aot"] else "binary")
        if entry["rank"] and entry["prefix"] and not entry["aot"]:
            part = (entry["hash"], entry["rank"], entry["prefix"])
            name = file.path.rpartition("/")[2]
            seen.parts.setdefault(part, []).append(name)
            if name == FACTORS and file.size <= FACTORS_LIMIT:
                data = content.read()
                seen.factors[part] = _object(data)
                source = io.BytesIO(data)
    tar.addfile(info, source)
    content.finish()
    seen.bytes += file.size


def _described(seen: Payload) -> Iterator[dict[str, Any]]:
    """Describe vLLM's compiled entries (GKM mcv/docs/vllm-binary-cache.md, "Manifest Structure")."""
    for each in sorted(seen.hashes):
        parts = []
        for (_, rank, prefix), names in sorted(item for item in seen.parts.items() if item[0][0] == each):
            known = seen.factors.get((each, rank, prefix), {})
            environment = known.get("env")
            variables = environment if isinstance(environment, dict) else {}
            artifacts = sorted(name for name in names if name.startswith("artifact_compile_range_"))
            parts.append(
                {
                    "rank": rank,
                    "prefix": prefix,
                    "artifact_count": len(artifacts),
                    "artifact_names": artifacts,
                    **{name: known[name] for name in ("code_hash", "config_hash", "compiler_hash") if name in known},
                    "cache_save_format": "binary",
                    "target_device": variables.get("VLLM_TARGET_DEVICE", ""),
                    "env": variables,
                }
            )
        yield {"vllmHash": each, "cacheFormat": "binary", "binary": parts}


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class _Unpacked:
    """A file of an archive that is digested while it is read."""

    def __init__(self, pieces: Iterable[memoryview], file: StoredFile) -> None:
        self._pieces = iter(pieces)
        self._file = file
        self._digest = hashlib.sha256()
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """Read as many bytes as asked for, fewer only at the end."""
        parts, wanted = [self._rest], (self._file.size if size < 0 else size) - len(self._rest)
        self._rest = b""
        while wanted > 0 and (piece := next(self._pieces, None)) is not None:
            self._digest.update(piece)
            parts.append(bytes(piece))
            wanted -= len(piece)
        data = b"".join(parts)
        if wanted < 0:
            data, self._rest = data[:wanted], data[wanted:]
        return data

    def finish(self) -> None:
        """Make sure that what was read is the file of the manifest. Raises StoreDamaged."""
        if self._digest.hexdigest() != self._file.sha256:
            raise StoreDamaged(f"{self._file.family}/{self._file.path} is not what its manifest says.")
