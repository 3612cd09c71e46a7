# SPDX-License-Identifier: Apache-2.0
"""The two ends of a TCP connection. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TcpEndpoints:
    """A TCP connection as this process sees it: (address, port) of both sides."""

    peer: tuple[str, int]
    own: tuple[str, int]

    @classmethod
    def of(cls, peername: object, sockname: object) -> TcpEndpoints | None:
        """Return the ends of what a transport tells; None: it is no TCP connection, or gone."""
        if not isinstance(peername, tuple) or not isinstance(sockname, tuple):
            return None
        return cls((plain(peername[0]), peername[1]), (plain(sockname[0]), sockname[1]))


def plain(address: str) -> str:
    """Return an address without zone, and an IPv4 address as such, also where it comes as IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
