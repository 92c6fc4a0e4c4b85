"""A folder in the form of an OCI image layout that holds one image of one layer: written whole, and checked when it is read.

What lies in the layer is not known here (`kernel_image`). Registries are left to the tools that copy such folders to them.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from sidecar.caches.packs import WINDOW_LIMIT, Counted
from sidecar.errors import FileUnreadable, StoreDamaged
from sidecar.files import json_object, temporary_name

MARKER = "oci-layout"
INDEX = "index.json"
# OCI image specification 1.1: image-layout.md, media-types.md; the second form of each is Docker's.
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MANIFESTS = (MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
#: Indexes within indexes: one is what builders and `docker save` write around an image.
NESTED = 2
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
# What copies of an image may be packed with: tools squeeze and unpack layers as registries and settings ask for it.
LAYERS = {
    LAYER: "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "zstd",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": "zstd",
    "application/vnd.oci.image.layer.v1.tar": "",
    "application/vnd.docker.image.rootfs.diff.tar": "",
}
# BuildKit's mark of a manifest that tells of an image and is none (docs/attestations/attestation-storage.md).
ABOUT = "vnd.docker.reference.type"
CONFIG = "application/vnd.oci.image.config.v1+json"
REFERENCE = "org.opencontainers.image.ref.name"
SMALL_LIMIT = 4 << 20
CHUNK = 1 << 20
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
# OCI distribution specification 1.1, "Pulling manifests": what registries take as a tag.
TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")


@dataclass(frozen=True, kw_only=True)
class Image:
    """What an image says of itself: its tag, labels, annotations, architecture, and when it was made (RFC 3339)."""

    tag: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    architecture: str
    created: str
    made_by: str


@dataclass(frozen=True)
class Layer:
    """The only layer of an image in a folder: a checked file, the image's labels, and its tag, empty when it has none.

    `packing` is gzip, zstd or empty.
    """

    path: Path
    labels: Mapping[str, str]
    tag: str
    packing: str

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Read the layer's tar. Raises StoreDamaged where it can't be unpacked, and OSError."""
        with ExitStack() as opened:
            try:
                stream: Any = opened.enter_context(open(self.path, "rb"))
                if self.packing == "gzip":
                    stream = opened.enter_context(gzip.GzipFile(fileobj=stream))
                elif self.packing == "zstd":
                    squeezed = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT)
                    stream = opened.enter_context(squeezed.stream_reader(stream, read_across_frames=True))
                yield stream
            except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
                raise StoreDamaged(f"The image's layer can't be unpacked ({error}).") from error


def write(folder: Path, fill: Callable[[tarfile.TarFile], Image]) -> str:
    """Write an image whose layer `fill` makes, and give the digest of its manifest; the folder comes into sight whole.

    Raises FileExistsError when it is there already and not empty, and OSError of the disk, also for a mount point.
    """
    folder = Path(os.path.realpath(folder))
    if os.path.ismount(folder):
        raise OSError(errno.EBUSY, "a volume is mounted there, which can't be replaced: name a folder in it")
    with suppress(FileNotFoundError):
        if any(folder.iterdir()):
            raise FileExistsError(errno.EEXIST, "it is there already, and not empty")
    temporary = temporary_name(folder)
    try:
        blobs = temporary / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        image, layer, difference = _layer(blobs, fill)
        config = _blob(blobs, _config(image, difference), CONFIG)
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]}
        found = _blob(blobs, {**manifest, "annotations": dict(image.annotations)}, MANIFEST)
        found["annotations"] = {REFERENCE: image.tag}
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [found]}
        (temporary / INDEX).write_text(json.dumps(index, indent=1))
        (temporary / MARKER).write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
        with suppress(FileNotFoundError):
            folder.rmdir()
        os.rename(temporary, folder)
        return str(found["digest"])
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_layout(folder: Path) -> bool:
    """Say whether a folder has the form of an image layout."""
    return (folder / MARKER).is_file()


def layers(folder: Path) -> Iterator[Layer]:
    """Give the layer of each image in a folder; the bytes are what their digests say. Raises StoreDamaged and OSError."""
    with open(folder / INDEX, "rb") as stream:
        index = _json(stream.read(SMALL_LIMIT + 1), INDEX)
    images = list(_images(folder, index, NESTED, set()))
    if not images:
        raise StoreDamaged(f"{folder} lists no image in its index.json.")
    for entry in images:
        manifest = _json(_checked(folder, entry, SMALL_LIMIT).read_bytes(), "the image's manifest")
        found = manifest.get("layers")
        if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], dict):
            raise StoreDamaged("The image has not exactly one layer, as an image of kernel caches has.")
        packing = LAYERS.get(str(found[0].get("mediaType")))
        if packing is None:
            raise StoreDamaged(f"The image's layer is {found[0].get('mediaType')!r:.80}, and a tar is expected.")
        config = _json(_checked(folder, manifest.get("config"), SMALL_LIMIT).read_bytes(), "the image's config")
        inner = config.get("config")
        labels = inner.get("Labels") if isinstance(inner, dict) else None
        notes = entry.get("annotations")
        yield Layer(
            _checked(folder, found[0]),
            {str(name): str(value) for name, value in labels.items()} if isinstance(labels, dict) else {},
            str(notes.get(REFERENCE, "")) if isinstance(notes, dict) else "",
            packing,
        )


def _images(folder: Path, index: Mapping[str, Any], depth: int, seen: set[str]) -> Iterator[dict[str, Any]]:
    """Give the descriptors of the images in an index, and in those within it; what is listed again is `seen` and looked at once."""
    entries = index.get("manifests")
    for entry in entries if isinstance(entries, list) else ():
        kind = entry.get("mediaType") if isinstance(entry, dict) else entry
        if kind not in MANIFESTS and not (kind in INDEXES and depth):
            raise StoreDamaged(
                f"{folder} holds {kind!r:.80}, which is no image; copy the one that you want to a folder of its own."
            )
        notes, digest = entry.get("annotations"), str(entry.get("digest"))
        if digest in seen or (isinstance(notes, dict) and ABOUT in notes):
            continue
        seen.add(digest)
        if kind in INDEXES:
            inner = _json(_checked(folder, entry, SMALL_LIMIT).read_bytes(), "an index")
            yield from _images(folder, inner, depth - 1, seen)
        else:
            yield entry


def _layer(blobs: Path, fill: Callable[[tarfile.TarFile], Image]) -> tuple[Image, dict[str, Any], str]:
    written = blobs / "layer"
    with open(written, "xb") as file:
        packed = Counted(file)
        # Without the time, so that the same kernels make the same image.
        # Level 9 made 0.5 % less of 30 MiB of libraries, and took two thirds longer.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=cast(BinaryIO, packed), mtime=0) as zipped:
            plain = Counted(cast(BinaryIO, zipped))
            with tarfile.open(fileobj=cast(BinaryIO, plain), mode="w|", format=tarfile.PAX_FORMAT) as tar:
                image = fill(tar)
        file.flush()
        os.fsync(file.fileno())
    os.rename(written, blobs / packed.digest.hexdigest())
    return image, _descriptor(LAYER, packed.digest.hexdigest(), packed.size), f"sha256:{plain.digest.hexdigest()}"


def _config(image: Image, difference: str) -> dict[str, Any]:
    return {
        "created": image.created,
        "architecture": image.architecture,
        "os": "linux",
        "config": {"Labels": dict(image.labels)},
        "rootfs": {"type": "layers", "diff_ids": [difference]},
        "history": [{"created": image.created, "created_by": image.made_by}],
    }


def _blob(blobs: Path, value: Mapping[str, Any], kind: str) -> dict[str, Any]:
    data = json.dumps(value, indent=1, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return _descriptor(kind, digest, len(data))


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def _checked(folder: Path, descriptor: Any, limit: int | None = None) -> Path:
    """Find what a descriptor names and compare its bytes with the digest, before anything is made of them."""
    named = descriptor.get("digest") if isinstance(descriptor, dict) else None
    found = _DIGEST.fullmatch(named) if isinstance(named, str) else None
    if found is None:
        raise StoreDamaged(f"The image names {named!r:.80}, which is no SHA-256 digest.")
    path = folder / "blobs" / "sha256" / found[1]
    try:
        status = path.stat()
        size = status.st_size
        if size != descriptor.get("size") or (limit is not None and size > limit):
            raise StoreDamaged(f"The image's part {found[1][:12]} has {size} bytes, which is not what the image says.")
        if not stat.S_ISREG(status.st_mode):
            raise StoreDamaged(f"The image's part {found[1][:12]} is no file.")
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise StoreDamaged(f"The image lacks its part {found[1][:12]}; it was copied in part.") from error
    if digest != found[1]:
        raise StoreDamaged(f"The image's part {found[1][:12]} is not what its name says; copy the image again.")
    return path


def _json(data: bytes, what: str) -> dict[str, Any]:
    if len(data) > SMALL_LIMIT:
        raise StoreDamaged(f"The image can't be read: {what} is not valid JSON (it has more than {SMALL_LIMIT} bytes).")
    try:
        return json_object(data, f"The image can't be read: {what}")
    except FileUnreadable as error:
        raise StoreDamaged(str(error)) from error
