# SPDX-License-Identifier: Apache-2.0
"""The user that owns the other end of a local TCP connection, as the kernel's socket diagnosis says it.

Costs one netlink message, whatever the number of sockets. A peer in another network namespace or on another
machine has no owner here.
"""

from __future__ import annotations

import ipaddress
import socket
import struct

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
HEADER = struct.Struct("=IHHII")
REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states
NO_COOKIE = b"\xff" * 8
ANSWER_UID = 64
"""Offset in `struct inet_diag_msg`: 4 bytes, the 48 of the socket's id, then expires, rqueue and wqueue."""
TIMEOUT_S = 0.1


def owner_of(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the user id of the socket bound to `peer` and connected to `own`; None: not of this machine."""
    try:
        source, target = (ipaddress.ip_address(end[0].partition("%")[0]) for end in (peer, own))
        family = socket.AF_INET if source.version == 4 else socket.AF_INET6
        ports = struct.pack(">HH", peer[1], own[1])
        ends = source.packed.ljust(16, b"\0") + target.packed.ljust(16, b"\0")
        body = REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        body += ports + ends + struct.pack("=I", 0) + NO_COOKIE
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
            link.settimeout(TIMEOUT_S)
            head = HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
            link.sendto(head + body, (0, 0))
            answer = link.recv(4096)
    except (OSError, ValueError, struct.error):
        return None
    _, kind, *_ = HEADER.unpack_from(answer)
    if kind != SOCK_DIAG_BY_FAMILY or len(answer) < HEADER.size + ANSWER_UID + 4:
        return None
    return int(struct.unpack_from("=I", answer, HEADER.size + ANSWER_UID)[0])
