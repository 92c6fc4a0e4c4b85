"""What a pod is called, which differs from pod to pod and is taken out of the values of its arguments and variables.

Which values count at all is decided in `normalise`. The launcher does the same to what it digests (launcher/privacy.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

OWN_NAME = "<own name>"
#: Nobody else is called so: what Kubernetes puts behind a Deployment's, Job's or DaemonSet's name (apimachinery
#: util/rand, `alphanums`), and a pod's UID.
_RANDOM = re.compile(r".*-[bcdfghjklmnpqrstvwxz2456789]{5}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def own_names(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the names of the pod that handed in these facts, the longest first."""
    more = facts.get("names")
    found = {str(facts.get("hostname") or ""), *(map(str, more) if isinstance(more, list) else ())} - {""}
    return tuple(sorted(found, key=lambda name: (-len(name), name)))


def without_names(value: str, names: Sequence[str]) -> str:
    """Replace a pod's names in a value.

    One like `engine-0` may be a model's, so it is left where it is a part of a path or of a longer word; and one without
    a dash and a digit may be any word. Random ones are replaced wherever they are.
    """
    value = without_random_names(value, names)
    for name in names:
        if "-" in name and any(character.isdigit() for character in name):
            # Behind a single slash it is a part of a path.
            value = re.sub(rf"(?<![\w-])(?<![^/]/)(?<!\A/){re.escape(name)}(?![\w-])", OWN_NAME, value)
    return value


def without_random_names(value: str, names: Sequence[str]) -> str:
    """Replace those of a pod's names that nothing else can have."""
    for name in names:
        if _RANDOM.fullmatch(name):
            value = value.replace(name, OWN_NAME)
    return value
