# SPDX-License-Identifier: Apache-2.0
"""Accepts many connections at a time, with the kernel's report on the user of each, and refuses many at a
time.

A refused connection only costs a few system calls, so that a user that connects without pause does not delay
other users.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from limiter._native import ffi, lib

NETLINK_SOCK_DIAG = 4
NO_USER = int(lib.GL_NO_USER)
"""User of a connection from another machine or network namespace, or of one whose other end is closed."""


class Arrival(NamedTuple):
    """An accepted connection; its descriptor is open until it is adopted or refused."""

    fd: int
    pid: int
    """Pid of the process that opened it, at that time; 0 over TCP."""
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
        """Netlink socket for the kernel's socket diagnosis."""

    def accept(self) -> list[Arrival]:
        """Return the waiting connections; empty if there are none. Raises OSError."""
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
        """Close connections; only the first ones get an answer."""
        lib.gl_turn_away(ffi.new("int32_t[]", list(fds)), len(fds), answer, len(answer))

    def close(self) -> None:
        self._close_link()
