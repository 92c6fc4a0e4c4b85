"""The pod's identity towards the API server: address, token, certificate, namespace, the pod's own name.

Nothing is sent here; files are read anew each time, because the kubelet replaces them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar import files
from sidecar.errors import FileUnreadable, NotInKubernetes

#: A token is a JWT of one or two kB, a bundle of certificates some more.
_LIMIT = 1 << 20


@dataclass(frozen=True)
class Account:
    """Where the API server is and who asks it. `directory` holds `token`, `ca.crt` and `namespace`.

    `host` and `port` are what the kubelet puts into KUBERNETES_SERVICE_HOST and _PORT (Kubernetes documentation,
    "Accessing the Kubernetes API from a Pod"). `pod_name` and `pod_namespace` count before what the files say.
    """

    directory: Path
    host: str
    port: str
    pod_name: str = ""
    pod_namespace: str = ""
    hostname: str = ""

    @property
    def url(self) -> str:
        """Give the API server's address. Raises NotInKubernetes."""
        if not self.host or not self.port:
            raise NotInKubernetes(
                "KUBERNETES_SERVICE_HOST and _PORT are not set: this is no pod, or its service links were taken away."
            )
        return f"https://[{self.host}]:{self.port}" if ":" in self.host else f"https://{self.host}:{self.port}"

    @property
    def certificate(self) -> Path:
        """Name the file with the certificates that the API server is known by."""
        return self.directory / "ca.crt"

    def token(self) -> str:
        """Read the token. Raises NotInKubernetes."""
        path = self.directory / "token"
        try:
            with files.open_plain(path, _LIMIT) as stream:
                token = stream.read().decode("ascii").strip()
        except (OSError, FileUnreadable, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise NotInKubernetes(
                f"There is no token for the API server ({path}: {why}). Mount a projected serviceAccountToken there, "
                "see k8s/README.md, or name its directory in WARMUP_SERVICE_ACCOUNT."
            ) from error
        if not token or any(character.isspace() for character in token):
            raise NotInKubernetes(f"{path} holds no token for the API server.")
        return token

    @property
    def namespace(self) -> str:
        """Give the pod's namespace: setting, file, token. Raises NotInKubernetes."""
        if self.pod_namespace:
            return self.pod_namespace
        with (
            suppress(OSError, FileUnreadable, UnicodeDecodeError),
            files.open_plain(self.directory / "namespace", 4096) as stream,
        ):
            if found := stream.read().decode("ascii").strip():
                return found
        if found := str(self._claims().get("namespace") or ""):
            return found
        raise NotInKubernetes(
            "The pod's namespace is unknown: set WARMUP_POD_NAMESPACE from metadata.namespace by the downward API."
        )

    @property
    def name(self) -> str:
        """Give the pod's name: setting, token, host name. A host name may be cut or another; the API server tells."""
        if self.pod_name:
            return self.pod_name
        pod = self._claims().get("pod")
        return (str(pod.get("name") or "") if isinstance(pod, Mapping) else "") or self.hostname

    @property
    def uid(self) -> str:
        """Give the uid of the pod that the token is bound to; empty for a token of another kind."""
        pod = self._claims().get("pod")
        return str(pod.get("uid") or "") if isinstance(pod, Mapping) else ""

    def _claims(self) -> Mapping[str, Any]:
        """Read what a bound token says of its pod (Kubernetes documentation, "Bound service account tokens")."""
        with suppress(NotInKubernetes, ValueError, IndexError):
            payload = self.token().split(".")[1]
            decoded = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            found = decoded.get("kubernetes.io") if isinstance(decoded, dict) else None
            return found if isinstance(found, dict) else {}
        return {}
