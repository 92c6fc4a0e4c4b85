"""Packs `sidecar/launcher/` into the one file that is dropped into the control directory.

Nothing of the launcher is imported or run here.
"""

from __future__ import annotations

import io
import zipfile
from importlib import resources

_SHEBANG = b"#!/usr/bin/env python3\n"
#: The same bytes every time: a restarted sidecar puts nothing new under a launcher that is being read.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def launcher_file() -> bytes:
    """Give a zip application (PEP 441) that any Python from 3.9 on runs as `python3 launcher.py`.

    Stored, not compressed: an engine image's Python may lack zlib.
    """
    packed = io.BytesIO()
    packed.write(_SHEBANG)
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(_members().items()):
            archive.writestr(zipfile.ZipInfo(name, _NO_TIME), content)
    return packed.getvalue()


def _members() -> dict[str, bytes]:
    source = resources.files("sidecar").joinpath("launcher")
    modules = {file.name: file.read_bytes() for file in source.iterdir() if file.name.endswith(".py")}
    first = modules.pop("__main__.py")
    inside = {f"sidecar/launcher/{name}": content for name, content in modules.items()}
    return {"__main__.py": first, "sidecar/__init__.py": b"", **inside}
