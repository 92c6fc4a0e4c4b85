"""Is a kernel entry whole: what each compiler needs to find before it may be published or restored.

A digest proves that bytes are those that were stored; these checks are for entries that were broken before that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from sidecar.caches import elf
from sidecar.caches.families import Family, unit_of

JSON_LIMIT = 16 * 1024 * 1024
# The list of digests that FlashInfer's cubins are downloaded with, one `<sha256>  <name>` a line (flashinfer 0.7.2
# artifacts.py); names are relative to the list.
CHECKSUMS = "checksums.txt"
_CHECKSUM = re.compile(r"([0-9a-fA-F]{64})\s+\*?(\S.*)")
# Libraries of the toolkit whose version is CUDA's own; others, such as libcufft, count by themselves.
_CUDA_RUNTIME = re.compile(r"lib(?:cudart|nvrtc|nvJitLink|cublas|cublasLt)\.so\.(\d+)")
# A file of these kinds is never empty when its compiler has finished.
NEVER_EMPTY = (".so", ".cubin", ".hsaco", ".o", ".json", ".ptx", ".mlir")


def entry_of(family: Family, path: str) -> str:
    """Name what is kept or dropped together with a file: its kernel entry, else the file itself."""
    return unit_of(family, path) or path


def entries(family: Family, paths: Iterable[str]) -> dict[str, list[str]]:
    """Group paths of a family into entries."""
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(entry_of(family, path), []).append(path)
    return found


def broken(
    family: Family, sizes: Mapping[str, int], root: Path, live: Path, cuda_majors: Collection[str] = ()
) -> dict[str, str]:
    """Map each entry that can't be used to the reason, a word of `messages.REASONS`.

    `sizes` maps every file of the family to its bytes, `root` is where they lie now, and `live` where the engine will
    find them: Triton's group files must name their children there. Files that vanish meanwhile make an entry broken.
    `cuda_majors` are the CUDA versions of the engine's image (`fingerprint.cuda_majors`): a library linked against
    another CUDA runtime does not load, or loads and fails. Empty: not known, and not checked.
    """
    found: dict[str, str] = {}
    for name, paths in entries(family, sizes).items():
        reason = _reason(family, name, paths, sizes, root, live) or _other_cuda(paths, root, cuda_majors)
        if reason or _not_as_listed(paths, root):
            found[name] = reason or "checksum"
    return found


def _reason(family: Family, name: str, paths: list[str], sizes: Mapping[str, int], root: Path, live: Path) -> str:
    if any(sizes[path] == 0 and path.endswith(NEVER_EMPTY) for path in paths):
        return "empty"
    try:
        # A file that lies beside the entries is called as itself.
        if family.validity == "triton" and name != paths[0]:
            return _triton(paths, root, live)
        if family.validity == "ninja":
            return _ninja(paths, root, live) or _unread(paths, sizes, root)
        if family.validity == "json":
            return _unread(paths, sizes, root)
    except OSError:
        return "unreadable"
    if family.validity == "cubin" and unit_of(family, paths[0]) and not any(path.endswith(".cubin") for path in paths):
        return "incomplete"
    return ""


def _triton(paths: list[str], root: Path, live: Path) -> str:
    """Parse each JSON file; a group's children must be in the entry, under the path the engine will use.

    Source: Triton 3.8 runtime/cache.py:73-93, `child_paths` maps a file's name to its absolute path.
    """
    there, prefix = set(paths), f"{live}/"
    for path in paths:
        if not path.endswith(".json"):
            continue
        try:
            value = json.loads(_read(root, path))
        except (ValueError, RecursionError):
            return "json"
        if not os.path.basename(path).startswith("__grp__"):
            continue
        children = value.get("child_paths") if isinstance(value, dict) else None
        if not isinstance(children, dict):
            return "json"
        for child in children.values():
            if not isinstance(child, str) or not child.startswith(prefix):
                return "elsewhere"
            if child.removeprefix(prefix) not in there:
                return "incomplete"
    return ""


def _unread(paths: list[str], sizes: Mapping[str, int], root: Path) -> str:
    """Parse each JSON file, of those that a compiler writes: a larger one is nothing to be held in memory."""
    for path in paths:
        if path.endswith(".json") and sizes[path] <= JSON_LIMIT:
            try:
                json.loads(_read(root, path))
            except (ValueError, RecursionError):
                return "json"
    return ""


def _ninja(paths: list[str], root: Path, live: Path) -> str:
    """A module with a ninja file must have its library, and ninja must have written down that it finished it.

    Modules that were built together have one log beside their folders (FlashInfer 0.7.2 jit/core.py:853, `build_jit_specs`).
    It is asked where they lie as built: in a store it may be an older one, and ninja itself builds anew what is not in it.
    """
    names = {os.path.basename(path): path for path in paths}
    libraries = [name for name in names if name.endswith(".so")]
    if "build.ninja" in names and not libraries:
        return "incomplete"
    place = names.get(".ninja_log")
    if place is None and libraries and root == live:
        place = os.path.normpath(f"{os.path.dirname(names[libraries[0]])}/../.ninja_log")
        place = place if os.path.isfile(f"{root}/{place}") else None
    if place is None:
        return ""
    log = _read(root, place).decode("utf-8", "replace")
    finished = {line.split("\t")[3].rsplit("/", 1)[-1] for line in log.splitlines() if line.count("\t") >= 4}
    return "" if finished.issuperset(libraries) else "incomplete"


def _other_cuda(paths: list[str], root: Path, cuda_majors: Collection[str]) -> str:
    """Find libraries that need the CUDA runtime of another major version."""
    for path in paths if cuda_majors else ():
        if path.endswith(".so"):
            needed = [found[1] for name in elf.needed(f"{root}/{path}") if (found := _CUDA_RUNTIME.match(name))]
            if any(major not in cuda_majors for major in needed):
                return "cuda"
    return ""


def _not_as_listed(paths: list[str], root: Path) -> bool:
    """Say whether a downloaded cubin is not what its vendor's list says. Without a list that can be read: no."""
    for path in paths:
        if "cubins" not in path or "cubins" not in path.split("/") or path.endswith(CHECKSUMS):
            continue
        folder, _, name = path.rpartition("/")
        while folder:
            listed = _list_of(f"{root}/{folder}/{CHECKSUMS}").get(name)
            if listed is not None and _sha256(f"{root}/{path}") != listed:
                return True
            folder, _, last = folder.rpartition("/")
            name = f"{last}/{name}"
    return False


def _list_of(place: str) -> Mapping[str, str]:
    try:
        status = os.stat(place)
        return _parsed(place, status.st_mtime_ns, status.st_size)
    except OSError:
        return {}


# Entries are asked about one by one, and a list names thousands.
@lru_cache(maxsize=32)
def _parsed(place: str, _mtime_ns: int, _size: int) -> Mapping[str, str]:
    with open(place, "rb", buffering=0) as stream:
        lines = (stream.read(JSON_LIMIT) or b"").decode("utf-8", "replace").splitlines()
    found = (_CHECKSUM.fullmatch(line.strip()) for line in lines)
    return {match[2]: match[1].lower() for match in found if match}


def _sha256(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def _read(root: Path, path: str) -> bytes:
    descriptor = os.open(f"{root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # As much as there is: a buffer of the limit's size for each small file costs more than all else here.
        return os.read(descriptor, min(os.fstat(descriptor).st_size, JSON_LIMIT))
    finally:
        os.close(descriptor)
