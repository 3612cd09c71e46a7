# SPDX-License-Identifier: Apache-2.0
"""Finds the account that a connection is charged to: by the kernel's word, before anything is read."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

from hypervisor.api.accounts import Accounts, CallerAccount
from hypervisor.errors import Refused
from hypervisor.host.peer import credentials
from hypervisor.host.socket_owner import owner_of
from hypervisor.host.tcp_endpoints import plain
from hypervisor.model import Peer

ROOT = 0
UNAVAILABLE = 503


class PeerLookup(Protocol):
    """Identifies the process at the other end of a Unix socket."""

    def of(self, connection: Any) -> Peer: ...


def user_over_unix(connection: socket.socket) -> str:
    """Return the user that opened a connection to the Unix socket."""
    return f"user {credentials(connection)[1]}"


def user_over_tcp(connection: socket.socket) -> str:
    """Return the local user at the other end of a TCP connection, or the address."""
    peer, own = connection.getpeername()[:2], connection.getsockname()[:2]
    uid = owner_of(peer, own)
    return f"user {uid} over TCP" if uid is not None else f"address {plain(peer[0])}"


def over_unix(
    peers: PeerLookup, accounts: Accounts, is_operator: Callable[[Peer], bool]
) -> Callable[[socket.socket], CallerAccount]:
    """Return a function that finds the account of a connection to the Unix socket; it may raise Refused.

    A user that connects too often is refused before its process is looked at. A process that has ended
    may have left its connection to others: each call finds that out, and they share an account.
    """

    def find(connection: socket.socket) -> CallerAccount:
        _, uid, _ = credentials(connection)
        if uid != ROOT:
            accounts.charge(accounts.of(f"connections of user {uid}"), 1)
        try:
            peer = peers.of(connection)
        except Refused as error:
            if error.status == UNAVAILABLE:
                raise
            return accounts.of(f"user {uid}, unknown processes")
        if is_operator(peer):
            return accounts.of(f"user {uid}", is_operator=True)
        return accounts.of(f"user {uid}{place_of(peer)}")

    return find


def place_of(peer: Peer) -> str:
    """Return where a process runs, if not on the node itself: a container has users of its own."""
    origin = peer.origin
    if origin.pod_uid is not None:
        return f" of pod {origin.pod_uid}"
    return f" of container {origin.container_id[:12]}" if origin.container_id is not None else ""


def over_tcp(accounts: Accounts) -> Callable[[socket.socket], CallerAccount]:
    """Return a function that finds the account of a TCP connection: the local user, or the address."""

    def find(connection: socket.socket) -> CallerAccount:
        user = user_over_tcp(connection)
        accounts.charge(accounts.of(f"connections of {user}"), 1)
        return accounts.of(user)

    return find
