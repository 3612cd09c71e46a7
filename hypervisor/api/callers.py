# SPDX-License-Identifier: Apache-2.0
"""Finds the account of a connection by the kernel's report, before any byte is read.

A cheap first check serves every new connection. A complete second one follows for possible operators.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from hypervisor.api.accounts import Accounts, CallerAccount
from hypervisor.errors import Refused
from hypervisor.host.arrivals import NO_USER, Arrival
from hypervisor.host.peer import groups_of
from hypervisor.host.subordinate_users import SubordinateUsers
from hypervisor.host.tcp_endpoints import plain
from hypervisor.host.whereabouts import UNKNOWN, Remembered
from hypervisor.model import Peer

UNAVAILABLE = 503
SITE_BITS = 64
"""Bits of an IPv6 address that a machine cannot choose."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Result of the cheap check of a new connection's peer."""

    name: str
    """Name of the account: the user and where the process runs, or the address."""
    may_operate: bool = False
    """True if the peer may be an operator, which has no bounds."""


class PeerLookup(Protocol):
    """Identifies the process at the other end of a Unix socket."""

    def of(self, connection: Any) -> Peer: ...


class PlaceLookup(Protocol):
    """Returns a process's pod or container, as part of an account's name."""

    def of(self, pid: int) -> str: ...


class OperatorsOfNode(Protocol):
    """Identifies operators of the node."""

    def may_operate(self, uid: int, groups: Collection[int]) -> bool: ...
    def is_operator(self, peer: Peer) -> bool: ...


class UnixCallers:
    """Finds the accounts of connections to the Unix socket.

    A process that has ended may have passed its connection to other processes. Each call checks that. They
    share an account.
    """

    def __init__(
        self, peers: PeerLookup, places: PlaceLookup, operators: OperatorsOfNode, accounts: Accounts
    ) -> None:
        self._peers = peers
        self._places = places
        self._operators = operators
        self._accounts = accounts
        self._callers: Remembered[tuple[int, int], Caller] = Remembered()
        """By pid and user."""
        self._users = SubordinateUsers()

    def caller(self, arrival: Arrival) -> Caller:
        """Return the caller whose turn a connection waits for."""
        return self._callers.of((arrival.pid, arrival.uid), lambda: self._look(arrival))

    def _look(self, arrival: Arrival) -> Caller:
        place = self._places.of(arrival.pid)
        with borrowed(arrival.fd) as connection:
            groups = groups_of(connection, arrival.gid)
        return Caller(
            f"{self._users.name_of(arrival.uid)}{place}",
            not place and self._operators.may_operate(arrival.uid, groups),
        )

    def account(self, connection: socket.socket, caller: Caller) -> CallerAccount:
        """Return the account that is charged. Raises Refused if there is a shortage, or for the rate."""
        if not caller.may_operate:
            return self._accounts.of(caller.name)
        name = caller.name
        try:
            if self._operators.is_operator(self._peers.of(connection)):
                return self._accounts.of(name, is_operator=True)
        except Refused as error:
            if error.status == UNAVAILABLE:
                raise
            name += UNKNOWN
        account = self._accounts.of(name)
        if not self._accounts.connects(account):
            raise Refused(UNAVAILABLE, self._accounts.too_many_new(account))
        return account


class TcpCallers:
    """Finds the accounts of TCP connections: the local user, or the address."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._users = SubordinateUsers()

    def caller(self, arrival: Arrival) -> Caller:
        """Return the caller whose turn a connection waits for. Raises OSError if it is closed."""
        if arrival.uid != NO_USER:
            return Caller(f"{self._users.name_of(arrival.uid)} over TCP")
        with borrowed(arrival.fd) as connection:
            return Caller(f"address {machine(connection.getpeername()[0])}")

    def account(self, _: socket.socket, caller: Caller) -> CallerAccount:
        """Return the account that is charged."""
        return self._accounts.of(caller.name)


@contextlib.contextmanager
def borrowed(fd: int) -> Iterator[socket.socket]:
    """Yield the socket of a descriptor, which stays open."""
    made = socket.socket(fileno=fd)
    try:
        yield made
    finally:
        made.detach()


def machine(address: str) -> str:
    """Return the part of an address that all addresses of one machine share."""
    ip = ipaddress.ip_address(plain(address))
    if ip.version == 4 or ip.is_loopback:
        return str(ip)
    return str(ipaddress.ip_network((ip, SITE_BITS), strict=False))
