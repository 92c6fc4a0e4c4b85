"""Packs `sidecar/launcher/` into the one file that is dropped into the control directory, and drops it there alone.

Nothing of the launcher is imported or run here.
"""

from __future__ import annotations

import io
import os
import zipfile
from contextlib import suppress
from importlib import resources
from pathlib import Path

from sidecar.errors import HandshakeError
from sidecar.files import temporary_name

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


def lay_launcher(control: Path) -> Path:
    """Put the launcher into a control directory that no daemon has prepared yet, and give its path.

    Raises HandshakeError.
    """
    target = control / "launcher.py"
    temporary = temporary_name(target)
    try:
        control.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):
            control.chmod(0o2775)
        temporary.write_bytes(launcher_file())
        temporary.chmod(0o775)
        os.replace(temporary, target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise HandshakeError(
            f"The launcher can't be put into {control} ({error.strerror}): mount a volume there that uid {os.getuid()} "
            "can write, or set WARMUP_CONTROL_DIR."
        ) from error
    return target


def _members() -> dict[str, bytes]:
    source = resources.files("sidecar").joinpath("launcher")
    modules = {file.name: file.read_bytes() for file in source.iterdir() if file.name.endswith(".py")}
    first = modules.pop("__main__.py")
    inside = {f"sidecar/launcher/{name}": content for name, content in modules.items()}
    return {"__main__.py": first, "sidecar/__init__.py": b"", **inside}
