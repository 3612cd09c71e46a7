# SPDX-License-Identifier: Apache-2.0
"""Address and credentials of a Kubernetes API server.

Kubernetes renews the files of tokens and certificates while a pod runs, so they are read again for every
request.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypervisor.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Access:
    """One server."""

    url: str
    """https://HOST:PORT, or http:// for requests without secrets."""
    token_file: str = ""
    ca_file: str = ""
    """Authority that signed the server's certificate, or that certificate itself; empty: the system's
    authorities.
    """
    server_name: str = ""
    """Name in its certificate, if it is not the host of the URL."""

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https://")

    def headers(self) -> dict[str, str]:
        """Return the headers with the credentials. Raises OSError if the token cannot be read."""
        if not self.token_file or not self.is_encrypted:
            return {}
        token = Path(self.token_file).read_text(encoding="ascii").strip()
        return {"Authorization": f"Bearer {token}"}


class Trust:
    """The TLS context of an access; it is rebuilt when its file has changed."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._seen: tuple[int, int] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the context; None if the server does not use TLS. Raises OSError, ssl.SSLError."""
        if not self._access.is_encrypted:
            return None
        path = self._access.ca_file
        seen = stamp(path) if path else (0, 0)
        if self._context is None or seen != self._seen:
            self._context = ssl.create_default_context(cafile=path or None)
            self._seen = seen
        return self._context


def stamp(path: str) -> tuple[int, int]:
    """Return a value that changes when a file is replaced or written."""
    status = Path(path).stat()
    return status.st_ino, status.st_mtime_ns


def api_server(url: str, token_file: str, ca_file: str, environ: Mapping[str, str] = os.environ) -> Access:
    """Return the API server: the named one, else the one in a pod's environment. Raises ConfigError."""
    if not url:
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ConfigError("kube_api", "", "is not set, and KUBERNETES_SERVICE_HOST neither")
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(url.rstrip("/"), token_file, ca_file)
