"""A server's certificate that is replaced while it serves: new connections get the newest pair that fits together.

Where the files come from (cert-manager, our own job) is not known here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

#: The kubelet brings a renewed Secret within about a minute; renewals come weeks before the end.
LOOK_S = 5.0

#: What tells a replaced file: inode, time in ns, size.
_Stamp = tuple[int, int, int]


class ServedCertificate:
    """The TLS context of a server. `told` gets a sentence for each pair that was taken or refused.

    `context` is the same object for the whole life: OpenSSL gives each new connection what was loaded last.
    """

    def __init__(self, certificate: Path, key: Path, told: Callable[[str, bool], None]) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._certificate, self._key, self._told = certificate, key, told
        self._seen: tuple[_Stamp, _Stamp] | None = None
        self._refused = ""
        self.loaded = False

    @property
    def certificate(self) -> Path:
        """Name the file of the certificate."""
        return self._certificate

    def look(self) -> bool:
        """Take the pair that lies there if it is another one; tell whether a new one was taken.

        A pair that does not fit together is left alone, and the one before goes on being served.
        """
        try:
            seen = (_stamp(self._certificate), _stamp(self._key))
        except OSError as error:
            self._refuse(None, f"There is no certificate yet ({error.filename}: {error.strerror}).")
            return False
        if seen == self._seen:
            return False
        try:
            # Tried on a context of its own first: a half-loaded pair would end every handshake.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            self.context.load_cert_chain(self._certificate, self._key)
        except (ssl.SSLError, OSError) as error:
            self._refuse(seen, f"{self._certificate} and {self._key} can't be used together ({error}).")
            return False
        self._seen, self.loaded, self._refused = seen, True, ""
        self._told(f"The certificate in {self._certificate} is served now.", True)
        return True

    async def keep_looking(self, changed: Callable[[], None], every_s: float = LOOK_S) -> None:
        """Look again and again; `changed` is called for each new pair. Runs until cancelled."""
        while True:
            if await asyncio.to_thread(self.look):
                changed()
            await asyncio.sleep(every_s)

    def _refuse(self, seen: tuple[_Stamp, _Stamp] | None, why: str) -> None:
        self._seen = seen
        if why != self._refused:
            self._told(why + (" The one before goes on being served." if self.loaded else ""), False)
        self._refused = why


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
