"""What `extends` means: the nodes of a profile laid over those of another, so that places stay true.

Knows sections and steps as nodes; whether they make sense is checked in `profiles.py`, on the whole.

- A section, such as `match` or `budget`, is merged key by key; a key's value is taken whole, never merged.
- `steps` are merged by name: a step of the same name is merged key by key over the other one, in its place, and
  needs no `kind` then; any other step is added at the end. `without` leaves steps of the parent out.
- `name`, `description` and `only_extended` are never inherited.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import yaml

from sidecar.errors import ProfileError
from sidecar.warmup import marked_yaml
from sidecar.warmup.marked_yaml import MarkedYaml, place_of

EXTENDS, WITHOUT, STEPS = "extends", "without", "steps"
#: What a profile says of itself alone.
OWN = ("name", "description", "only_extended", EXTENDS, WITHOUT)
#: A chain this long is no family of profiles any more.
DEPTH_LIMIT = 8


#: What was read already, by path: many profiles of a directory extend the same few.
Seen = dict[Path, yaml.Node | None]


def read_merged(path: Path, shipped: Path, seen: Seen | None = None) -> MarkedYaml:
    """Read a profile with all that it extends, looked for beside it and then in `shipped`.

    `extends` and `without` are gone from the result. `seen` is kept by whoever reads many profiles at once. Raises
    ProfileError with the place.
    """
    root = _merged(path, shipped, (), {} if seen is None else seen)
    return MarkedYaml(path, marked_yaml.construct(path, root), root)


def _merged(path: Path, shipped: Path, before: tuple[Path, ...], seen: Seen) -> yaml.Node | None:
    if path not in seen:
        seen[path] = marked_yaml.compose(path)
    root = seen[path]
    if not isinstance(root, yaml.MappingNode):
        return root
    named, without = _get(root, EXTENDS), _get(root, WITHOUT)
    if named is None:
        if without is not None:
            raise ProfileError(f"{place_of(without.start_mark)}: `without` needs `extends`: it leaves out its steps.")
        return root
    parent_path = _parent(named, path, shipped)
    _refuse_circle(named, (*before, path), parent_path)
    parent = _merged(parent_path, shipped, (*before, path), seen)
    if not isinstance(parent, yaml.MappingNode):
        raise ProfileError(f"{place_of(named.start_mark)}: {parent_path} is no profile that can be extended.")
    return _overlaid(parent, root, _left_out(without, parent), parent_path.stem)


def _parent(named: yaml.Node, path: Path, shipped: Path) -> Path:
    """Find the file that `extends` names: a path, relative to the file, or the name of a sibling or shipped profile."""
    place = place_of(named.start_mark)
    if not isinstance(named, yaml.ScalarNode) or not named.value:
        raise ProfileError(f"{place}: `extends` names one profile, such as sm90, or a path such as ./mine.yaml.")
    name = str(named.value)
    if "/" in name or name.endswith((".yaml", ".yml")):
        return path.parent / name
    for folder in (path.parent, shipped):
        candidate = folder / f"{name}.yaml"
        # A profile that extends the shipped one of its own name means that one, not itself.
        if candidate.is_file() and not _same(candidate, path):
            return candidate
    known = sorted({each.stem for folder in (path.parent, shipped) for each in folder.glob("*.yaml")} - {path.stem})
    close = difflib.get_close_matches(name, known, n=1)
    if name == path.stem:
        raise ProfileError(f"{place}: {name} extends itself.")
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known) or 'none'}."
    raise ProfileError(f"{place}: there is no profile '{name}' beside {path.name} or among the shipped ones; {hint}")


def _refuse_circle(named: yaml.Node, chain: Sequence[Path], parent: Path) -> None:
    if any(_same(parent, each) for each in chain):
        way = " → ".join(each.stem for each in (*chain, parent))
        raise ProfileError(f"{place_of(named.start_mark)}: these profiles extend each other in a circle: {way}.")
    if len(chain) >= DEPTH_LIMIT:
        raise ProfileError(f"{place_of(named.start_mark)}: more than {DEPTH_LIMIT} profiles extend one another.")


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _left_out(without: yaml.Node | None, parent: yaml.MappingNode) -> set[str]:
    """Give the names of `without`. Raises ProfileError for one that the parent lacks."""
    if without is None:
        return set()
    if not isinstance(without, yaml.SequenceNode):
        raise ProfileError(f"{place_of(without.start_mark)}: `without` is a list of names of steps.")
    known = [_title(step) for step in _steps(parent)]
    for each in without.value:
        if each.value not in known:
            raise ProfileError(
                f"{place_of(each.start_mark)}: without: there is no step '{each.value}' to leave out; "
                + _suggest(str(each.value), known)
            )
    return {str(each.value) for each in without.value}


def _overlaid(parent: yaml.MappingNode, child: yaml.MappingNode, left_out: set[str], name: str) -> yaml.MappingNode:
    """Lay a profile over the one it extends, whose name is given."""
    pairs = {str(key.value): (key, value) for key, value in parent.value if key.value not in OWN}
    if STEPS in pairs:
        key, steps = pairs[STEPS]
        if isinstance(steps, yaml.SequenceNode):
            kept = [step for step in steps.value if _title(step) not in left_out]
            pairs[STEPS] = key, _sequence(kept, steps)
    for key, value in child.value:
        known = pairs.get(str(key.value))
        if key.value in (EXTENDS, WITHOUT):
            continue
        if known is not None and key.value == STEPS:
            value = _merged_steps(known[1], value, name)
        elif known is not None and isinstance(known[1], yaml.MappingNode) and isinstance(value, yaml.MappingNode):
            value = _merged_keys(known[1], value)
        pairs[str(key.value)] = key, value
    return yaml.MappingNode(child.tag, list(pairs.values()), child.start_mark, child.end_mark)


def _merged_steps(parent: yaml.Node, child: yaml.Node, name: str) -> yaml.Node:
    if not isinstance(parent, yaml.SequenceNode) or not isinstance(child, yaml.SequenceNode):
        return child
    known = [_title(step) for step in parent.value]
    steps = list(parent.value)
    seen: set[str] = set()
    for step in child.value:
        title = _title(step)
        if title in seen:
            place = place_of(step.start_mark)
            raise ProfileError(f"{place}: two steps are called '{title}'; give one of them another `name`.")
        if title in known and isinstance(step, yaml.MappingNode):
            steps[known.index(title)] = _merged_keys(parent.value[known.index(title)], step)
        elif isinstance(step, yaml.MappingNode) and _get(step, "kind") is None:
            raise ProfileError(
                f"{place_of(step.start_mark)}: {name} has no step '{title}' that this could change, and a new step "
                f"needs a `kind`; {_suggest(title, known)}"
            )
        else:
            steps.append(step)
        seen.add(title)
    return _sequence(steps, child)


def _merged_keys(parent: yaml.Node, child: yaml.MappingNode) -> yaml.MappingNode:
    """Lay one mapping over another; a step of another kind than the one of its name takes nothing from it."""
    if not isinstance(parent, yaml.MappingNode) or _other_kind(parent, child):
        return child
    pairs = {str(key.value): (key, value) for key, value in parent.value}
    pairs |= {str(key.value): (key, value) for key, value in child.value}
    return yaml.MappingNode(child.tag, list(pairs.values()), child.start_mark, child.end_mark)


def _other_kind(parent: yaml.MappingNode, child: yaml.MappingNode) -> bool:
    kinds = [_get(each, "kind") for each in (parent, child)]
    return all(kind is not None for kind in kinds) and len({str(kind.value) for kind in kinds if kind}) > 1


def _sequence(nodes: list[yaml.Node], like: yaml.Node) -> yaml.SequenceNode:
    return yaml.SequenceNode("tag:yaml.org,2002:seq", nodes, like.start_mark, like.end_mark)


def _steps(root: yaml.MappingNode) -> list[yaml.Node]:
    steps = _get(root, STEPS)
    return list(steps.value) if isinstance(steps, yaml.SequenceNode) else []


def _title(step: yaml.Node) -> str:
    """Give a step's name, or its kind where it has none; the same as `StepBase.title`."""
    named, kind = _get(step, "name"), _get(step, "kind")
    if named is not None and named.value:
        return str(named.value)
    return str(kind.value).replace("_", " ") if kind is not None else ""


def _get(node: yaml.Node, name: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    found: yaml.Node | None = next((value for key, value in node.value if key.value == name), None)
    return found


def _suggest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'?" if close else "there are " + ", ".join(f"'{each}'" for each in known) + "."
