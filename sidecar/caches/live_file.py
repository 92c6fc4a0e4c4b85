"""One file of the live cache as it is read for a publish, and what its disk's errors are called.

The live cache as a whole is in `live_cache`.
"""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

#: What is being restored or sent away lies below the live cache under this name.
STAGING_NAME = ".staging"
#: The latest time that a file may have, in ns since the epoch; the earliest is as far before it.
LATEST_NS = (1 << 63) - 1


class LiveFile(io.RawIOBase):
    """A file of the live cache, for reading. Raises FileNotFoundError when it is gone.

    Every other error of its disk ends the file early and is kept in `trouble`: it must not be taken for an error of
    where the bytes go, and one file that can't be read must not keep the others from being published.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.trouble = ""
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.trouble = error.strerror or str(error)

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes, all that is left when negative; nothing at the end and after an error."""
        if size < 0:
            return self.readall()
        try:
            return b"" if self.trouble else os.read(self._descriptor, size)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            return b""

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()


def disk_trouble(live_cache: Path | str, what: str, error: OSError) -> str:
    """Say in a sentence that the live cache can't be `what` (read, written), and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The live cache {live_cache} is full ({error.strerror}); give its volume more room."
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"The live cache {live_cache} can't be {what} ({error.strerror}); give the engine and the sidecar a common "
            "group (fsGroup), and the engine umask 007."
        )
    return f"The live cache {live_cache} can't be {what} ({error.strerror or error}); check its volume."
