"""YAML with the line and column of every value, so that a wrong profile can be mended where it is wrong.

Knows nothing of profiles: it reads a file and finds places in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sidecar.errors import ProfileError


@dataclass(frozen=True)
class MarkedYaml:
    """A parsed file: its plain value, and the tree of nodes that know where they stand."""

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
        return f"{self.path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else f"{self.path}"


def _step(node: yaml.Node | None, part: int | str) -> tuple[yaml.Node | None, yaml.Node | None]:
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            if key.value == str(part):
                return key, child
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return None, node.value[part]
    return None, None


def read(path: Path, limit: int = 1024 * 1024) -> MarkedYaml:
    """Read one YAML document of at most `limit` bytes. Raises ProfileError with the place."""
    try:
        if path.stat().st_size > limit:
            raise ProfileError(f"{path} is larger than {limit} bytes, which no profile is; check the path.")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ProfileError(f"{path} can't be read ({error.strerror or error}); check the path.") from error
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8.") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_repeated_keys(path, root)
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(path)
        raise ProfileError(f"{place}: this is not YAML: {error.problem}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path} is not YAML: {error}") from error
    return MarkedYaml(path, value, root)


def _refuse_repeated_keys(path: Path, root: yaml.Node | None) -> None:
    """Raise for a key given twice: YAML keeps the last without a word."""
    for node in _nodes(root):
        if not isinstance(node, yaml.MappingNode):
            continue
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                mark = key.start_mark
                raise ProfileError(
                    f"{path}:{mark.line + 1}:{mark.column + 1}: `{key.value}` is given twice; keep one of the two."
                )
            seen.add(str(key.value))


def _nodes(root: yaml.Node | None) -> Iterator[yaml.Node]:
    """Walk all nodes once; anchors can make the tree a graph, even one with cycles."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.MappingNode):
            waiting += [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
