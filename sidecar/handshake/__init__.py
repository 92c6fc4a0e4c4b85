"""The daemon's side of the control directory: what launchers say, what they are told, why an engine ended.

Nothing here starts a process, waits, or decides what happens next; `launcher.py` is the other side.

Map: `messages.py` what the files say, checked before it is believed; `directory.py` reading and writing them;
`exits.py` why an engine ended.
"""

from sidecar.handshake.directory import ControlDirectory
from sidecar.handshake.exits import CAUSES, PASSING, ExitCause, classify_exit
from sidecar.handshake.messages import (
    FORMAT,
    AttemptState,
    CommitEntry,
    Decision,
    Exited,
    Grown,
    LauncherSettings,
    Line,
    Proven,
    Started,
)

__all__ = [
    "CAUSES",
    "FORMAT",
    "PASSING",
    "AttemptState",
    "CommitEntry",
    "ControlDirectory",
    "Decision",
    "ExitCause",
    "Exited",
    "Grown",
    "LauncherSettings",
    "Line",
    "Proven",
    "Started",
    "classify_exit",
]
