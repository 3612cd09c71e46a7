# SPDX-License-Identifier: Apache-2.0
"""Endpoint of a stream: vsock, Unix socket, a virtual machine monitor's socket, TCP. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hypervisor.scraper.errors import AddressError

Kind = Literal["vsock", "unix", "hvsock", "tcp"]
ANY_CID = (1 << 32) - 1
HYPERVISOR_CID, LOCAL_CID, HOST_CID = 0, 1, 2
MAX_PORT = {"vsock": (1 << 32) - 2, "hvsock": (1 << 32) - 2, "tcp": (1 << 16) - 1}
MAX_PATH_BYTES = 107
FORMS = "vsock://CID:PORT, hvsock://PATH:PORT, unix://PATH or tcp://HOST:PORT"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One place."""

    kind: Kind
    place: str
    """CID, path, or host."""
    port: int = 0

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix://{self.place}"
        cid = "" if self.kind == "vsock" and self.cid == ANY_CID else self.place
        return f"{self.kind}://{f'[{cid}]' if ':' in cid else cid}:{self.port}"

    @property
    def cid(self) -> int:
        """The address of a virtual machine on its host; of vsock alone."""
        return int(self.place)


def endpoint_of(text: str, *, is_listening: bool = False) -> Endpoint:
    """Return the endpoint that a text names. Raises AddressError.

    hvsock is the Unix socket by which Firecracker and Cloud Hypervisor give access to a guest's vsock ports.
    Who listens may leave out CID and host.
    """
    kind, separator, rest = text.partition("://")
    if not separator or not text.isprintable() or " " in text:
        raise AddressError(text, f"is not {FORMS}")
    if kind == "unix":
        return Endpoint("unix", path_of(text, rest))
    if kind == "hvsock" and not is_listening:
        path, _, port = rest.rpartition(":")
        return Endpoint("hvsock", path_of(text, path), port_of(text, "hvsock", port))
    if kind == "vsock":
        cid, _, port = rest.rpartition(":")
        return Endpoint("vsock", str(cid_of(text, cid, is_listening)), port_of(text, "vsock", port))
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host and not is_listening:
            raise AddressError(text, "names no host")
        return Endpoint("tcp", host, port_of(text, "tcp", port))
    raise AddressError(text, f"is not {FORMS}")


def path_of(text: str, path: str) -> str:
    if not path.startswith("/") or len(path.encode()) > MAX_PATH_BYTES:
        raise AddressError(text, f"needs an absolute path of at most {MAX_PATH_BYTES} bytes")
    return path


def port_of(text: str, kind: Kind, port: str) -> int:
    if not (port.isascii() and port.isdecimal() and len(port) <= 10 and 0 < int(port) <= MAX_PORT[kind]):
        raise AddressError(text, "needs a port at the end, as in :9402")
    return int(port)


def cid_of(text: str, cid: str, is_listening: bool) -> int:
    if is_listening and cid in ("", "-1"):
        return ANY_CID
    if not (cid.isascii() and cid.isdecimal() and len(cid) <= 10 and int(cid) < ANY_CID):
        raise AddressError(text, "needs a CID, as in vsock://42:9402")
    if int(cid) == HYPERVISOR_CID:
        raise AddressError(text, "CID 0 is reserved")
    return int(cid)
