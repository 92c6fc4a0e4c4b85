"""The highest signed generation that this pod ever saw of each key, kept beside the handshake.

It is what an old store that was put back can be told by. It lasts as long as the control directory: a new pod knows nothing,
nor does one whose node started again, and the engine's container can write there, too. What is made of it is decided in
`caches.choice`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sidecar.errors import FileUnreadable
from sidecar.files import read_json, write_json_durably

NAME = "signed.json"
FORMAT = 1
#: A control directory that outlives pods sees some keys; the oldest ones start anew.
KEPT = 200


def read(control: Path) -> dict[str, int]:
    """Give the highest numbers by scope and key; none when the file is not there or can't be read."""
    with suppress(OSError, FileUnreadable):
        said = read_json(control / NAME)
        seen = said.get("seen")
        if said.get("format") == FORMAT and isinstance(seen, dict):
            return {key: number for key, number in seen.items() if type(number) is int and number > 0}
    return {}


def note(control: Path, signed: Mapping[str, int]) -> str:
    """Take note of what was seen now; a number never gets smaller. Gives the trouble as a sentence, or nothing."""
    known = read(control)
    higher = {key: number for key, number in signed.items() if number > known.get(key, 0)}
    if not higher:
        return ""
    kept = {**{key: number for key, number in known.items() if key not in higher}, **higher}
    try:
        write_json_durably(control / NAME, {"format": FORMAT, "seen": dict(list(kept.items())[-KEPT:])})
    except OSError as error:
        return (
            f"The highest signed generation can't be written down in {control} ({error.strerror}): an old store that is put "
            "back would not be noticed by this pod."
        )
    return ""
