# SPDX-License-Identifier: Apache-2.0
"""Creates sockets in other network namespaces: the only way to reach guests whose vsock is confined to
one.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading

CLONE_NEWNET = 0x40000000


def socket_in(netns: str, family: int) -> socket.socket:
    """Return a stream socket that belongs to a network namespace, given as a path such as /proc/PID/ns/net.

    Raises OSError; entering another namespace needs CAP_SYS_ADMIN.
    """
    found: list[socket.socket] = []
    failures: list[OSError] = []

    def enter() -> None:
        try:
            found.append(made(netns, family))
        except OSError as error:
            failures.append(error)

    # A separate thread: a namespace belongs to a thread, and this one ends in the other namespace.
    thread = threading.Thread(target=enter, name="netns")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return found[0]


def made(netns: str, family: int) -> socket.socket:
    """Move this thread into the namespace permanently, and return a socket that was created there."""
    handle = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{netns}: {os.strerror(number)}")
    finally:
        os.close(handle)
    return socket.socket(family, socket.SOCK_STREAM)
