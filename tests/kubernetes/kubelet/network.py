"""A pod's network: a namespace with a loopback device of its own and the pod's address on it, reached by sockets from here.

Who talks to whom is not known here.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

#: linux/sched.h, linux/sockios.h, linux/if.h.
CLONE_NEWNET = 0x40000000
SIOCSIFADDR, SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8916, 0x8913, 0x8914
IFF_UP = 0x1

#: RFC 5737, "TEST-NET-1": an address that nothing else has. Each pod is alone in its network, so all have the same.
POD_ADDRESS = "192.0.2.10"


class PodNetwork:
    """One pod's network namespace. A thread of its own lives in it and makes sockets there."""

    def __init__(self) -> None:
        """Make it. Raises OSError where this is not allowed."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pod network")
        try:
            self._namespace = self._thread.submit(_enter_a_new_one).result()
        except BaseException:
            self._thread.shutdown()
            raise

    @property
    def path(self) -> str:
        """Give the namespace's name for nsenter(1), good while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._namespace}"

    def socket(self) -> socket.socket:
        """Make a TCP socket in the pod's network."""
        return self._thread.submit(socket.socket).result()

    def close(self) -> None:
        """Give the namespace up; it ends with its last process."""
        self._thread.shutdown()
        os.close(self._namespace)


def _enter_a_new_one() -> int:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        _bring_up(asked, b"lo")
        address = struct.pack("16sH2s4s8x", b"lo:1", socket.AF_INET, b"", socket.inet_aton(POD_ADDRESS))
        fcntl.ioctl(asked, SIOCSIFADDR, address)
    return os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _bring_up(asked: socket.socket, name: bytes) -> None:
    found = fcntl.ioctl(asked, SIOCGIFFLAGS, struct.pack("16sH14x", name, 0))
    flags = struct.unpack("16sH14x", found)[1]
    fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sH14x", name, flags | IFF_UP))
