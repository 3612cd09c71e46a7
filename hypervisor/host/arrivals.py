# SPDX-License-Identifier: Apache-2.0
"""Accepts connections many at a time, with the kernel's word on who made each; turns some away likewise.

For each connection that is turned away only a few system calls are made, so that one user who connects
without pause does not keep others waiting.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from limiter._native import ffi, lib

NETLINK_SOCK_DIAG = 4
NO_USER = int(lib.GL_NO_USER)
"""User of a connection from another machine or network namespace, or whose other end has gone."""


class Arrival(NamedTuple):
    """A connection that has been accepted; its descriptor is open until it is adopted or turned away."""

    fd: int
    pid: int
    """Number of the process that made it, at that time; 0 over TCP."""
    uid: int
    gid: int


class Arrivals:
    """Connections to one listening socket, which does not block; `most` at a time. Any one thread."""

    def __init__(self, listener: socket.socket, most: int) -> None:
        self._listener = listener
        self._is_tcp = listener.family != socket.AF_UNIX
        self._most = most
        self._came = ffi.new("struct gl_arrival[]", most)
        self._link: socket.socket | None = None
        """To the kernel's socket diagnosis."""

    def accept(self) -> list[Arrival]:
        """Return connections that waited; empty: none did. Raises OSError."""
        count = lib.gl_accept_many(self._listener.fileno(), self._came, self._most)
        if count < 0:
            raise OSError(-count, os.strerror(-count))
        if self._is_tcp and count:
            self._find_owners(count)
        return [Arrival(one.fd, one.pid, one.uid, one.gid) for one in self._came[0:count]]

    def _find_owners(self, count: int) -> None:
        try:
            if self._link is None:
                self._link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
        except OSError:
            return  # for want of descriptors: they are told apart by their addresses
        if lib.gl_owners_of(self._link.fileno(), self._came, count):
            self._close_link()

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def turn_away(self, fds: Sequence[int], answer: bytes) -> None:
        """Close connections; the first ones are told why."""
        lib.gl_turn_away(ffi.new("int32_t[]", list(fds)), len(fds), answer, len(answer))

    def close(self) -> None:
        self._close_link()
