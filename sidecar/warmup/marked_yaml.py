"""YAML with the file, line and column of every value, so that a wrong profile can be mended where it is wrong.

Knows nothing of profiles: it reads a file and finds places in it.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sidecar.errors import YAML_VALUE_ERRORS, ProfileError

#: No profile is larger, in bytes.
SIZE_LIMIT = 1024 * 1024
#: Values of a file with all its anchors followed. A few lines of anchors can stand for billions of values.
VALUE_LIMIT = 100_000


#: libyaml is ten times as fast, and a pod that chooses among all profiles reads them while it answers probes.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Named(io.BytesIO):
    """Bytes with a name, which YAML's marks carry."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


@dataclass(frozen=True)
class MarkedYaml:
    """A parsed file: its plain value, and the tree of nodes that know where they stand, in which file."""

    path: Path
    value: Any
    root: yaml.Node | None

    def place(self, location: Sequence[int | str]) -> str:
        """Give `file:line:column` of a value; parts of the location that the file lacks are skipped."""
        node = self.root
        mark = node.start_mark if node is not None else None
        for part in location:
            key, child = _step(node, part)
            if child is None:
                continue
            node = child
            mark = (key or child).start_mark
        return place_of(mark) if mark is not None else f"{self.path}"


def place_of(mark: yaml.Mark) -> str:
    """Give `file:line:column`, counted from 1."""
    return f"{mark.name}:{mark.line + 1}:{mark.column + 1}"


def _step(node: yaml.Node | None, part: int | str) -> tuple[yaml.Node | None, yaml.Node | None]:
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            if key.value == str(part):
                return key, child
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return None, node.value[part]
    return None, None


def read(path: Path, limit: int = SIZE_LIMIT, noun: str = "profile") -> MarkedYaml:
    """Read one YAML document of at most `limit` bytes, a `noun`. Raises ProfileError with the place."""
    root = compose(path, limit, noun)
    return MarkedYaml(path, construct(path, root), root)


def compose(path: Path, limit: int = SIZE_LIMIT, noun: str = "profile") -> yaml.Node | None:
    """Read the nodes of one document, whose marks carry the path. Raises ProfileError with the place.

    Nobody changes nodes, so that one reading of a file serves all that extend it.
    """
    try:
        text = _bytes_of(path, limit, noun).decode("utf-8")
    except OSError as error:
        raise ProfileError(f"{path} can't be read ({error.strerror or error}); check the path.") from error
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8.") from error
    try:
        loader = _LOADER(_Named(text.encode(), str(path)))
        root: yaml.Node | None = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise ProfileError(f"{_error_place(path, error, text)}: this is not YAML: {error.problem}.") from error
    except (yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
        raise ProfileError(f"{path} is not YAML: {error}") from error
    _refuse_repeated_keys(root)
    if _values(root, noun) > VALUE_LIMIT:
        raise ProfileError(f"{path} stands for more than {VALUE_LIMIT} values with its anchors followed; use fewer.")
    return root


def _error_place(path: Path, error: yaml.MarkedYAMLError, text: str) -> str:
    """Give where a fault is; where something that began earlier misses its end, where it began."""
    mark = error.problem_mark
    if error.context_mark is not None and (mark is None or mark.line >= len(text.splitlines())):
        mark = error.context_mark
    return place_of(mark) if mark is not None else str(path)


def construct(path: Path, root: yaml.Node | None) -> Any:
    """Give the plain value of nodes. Raises ProfileError with the place."""
    if root is None:
        return None
    try:
        return yaml.SafeLoader("").construct_document(root)
    except yaml.MarkedYAMLError as error:
        place = place_of(error.problem_mark) if error.problem_mark is not None else str(path)
        raise ProfileError(f"{place}: this is not YAML: {error.problem}.") from error
    except (yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
        raise ProfileError(f"{path} is not YAML: {error}") from error


def _bytes_of(path: Path, limit: int, noun: str) -> bytes:
    """Read a plain file. A device under this name has no end, and a pipe would hold the reader for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", closefd=True) as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ProfileError(f"{path} is not a plain file; a {noun} is one.")
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise ProfileError(f"{path} is larger than {limit} bytes, which no {noun} is; check the path.")
    return data


def _values(root: yaml.Node | None, noun: str) -> int:
    """Count values with anchors followed, up to a little more than VALUE_LIMIT. Raises ProfileError for a circle."""
    counted: dict[int, int] = {}
    inside: set[int] = set()
    waiting: list[tuple[yaml.Node, bool]] = [(root, False)] if root is not None else []
    while waiting:
        node, left = waiting.pop()
        if left:
            inside.discard(id(node))
            total = 1 + sum(counted[id(child)] for child in _children(node))
            counted[id(node)] = min(total, VALUE_LIMIT + 1)
        elif id(node) in inside:
            raise ProfileError(f"{place_of(node.start_mark)}: this holds itself; no {noun} does.")
        elif id(node) not in counted:
            inside.add(id(node))
            waiting.append((node, True))
            waiting += [(child, False) for child in _children(node)]
    return counted[id(root)] if root is not None else 0


def _refuse_repeated_keys(root: yaml.Node | None) -> None:
    """Raise for a key given twice: YAML keeps the last without a word."""
    for node in _nodes(root):
        if not isinstance(node, yaml.MappingNode):
            continue
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise ProfileError(f"{place_of(key.start_mark)}: `{key.value}` is given twice; keep one of the two.")
            seen.add(str(key.value))


def _nodes(root: yaml.Node | None) -> Iterator[yaml.Node]:
    """Walk all nodes once; anchors can make the tree a graph, even one with circles."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting += _children(node)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
