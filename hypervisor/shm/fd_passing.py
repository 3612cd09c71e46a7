# SPDX-License-Identifier: Apache-2.0
"""Passes the descriptors of a tenant's segments to its process, over the connection on which it registers.

So a process only needs the socket. It does not need the node's /dev/shm, which a container does not see. It
needs no permission on the files, whatever its user and user namespace. The descriptors come with an interim
answer, which is only sent to clients that ask for it.
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path
from typing import Any

from hypervisor.errors import ConfigError

INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n"
SYS_OPEN_TREE, SYS_MOUNT_SETATTR = 428, 442
AT_FDCWD, AT_EMPTY_PATH, OPEN_TREE_CLONE, MOUNT_ATTR_RDONLY = -100, 0x1000, 1, 1


def send(connection: Any, files: tuple[int, ...]) -> None:
    """Send descriptors to a peer in the expected order: the policy, the usage segment, the node's state.

    Raises OSError if the peer cannot receive them now.
    """
    with connection.dup() as raw:
        socket.send_fds(raw, [INTERIM], list(files), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


class ReadOnlyView:
    """A view of a folder through a read-only mount.

    Through /proc/self/fd, root in a container could reopen a read-only descriptor of a policy for writing. A
    read-only mount prevents that. `path` names such a mount. Without it a detached mount is made, which needs
    CAP_SYS_ADMIN and Linux 5.12.
    """

    def __init__(self, folder: Path, path: str = "") -> None:
        self._folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if path else detached(folder)
        if path and not os.statvfs(path).f_flag & os.ST_RDONLY:
            raise ConfigError("shm_read_only", "", f"{path} is not mounted read-only")
        if path and Path(path).stat().st_dev != folder.stat().st_dev:
            raise ConfigError("shm_read_only", "", f"{path} does not show {folder}")
        self.is_read_only = self._folder is not None
        if self._folder is None:
            self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, name: str, of: int) -> int | None:
        """Return a read-only descriptor of the file of `of`; None if it is gone. The caller closes it."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(name, flags, dir_fd=self._folder)
        except OSError:
            return None
        if os.path.sameopenfile(fd, of):
            return fd
        os.close(fd)
        return None

    def close(self) -> None:
        if self._folder is not None:
            os.close(self._folder)
        self._folder = None


def detached(folder: Path) -> int | None:
    """Return a descriptor of a detached read-only mount of a folder; None if it cannot be made here."""
    libc = ctypes.CDLL(None, use_errno=True)
    raw = os.fsencode(folder)
    tree = libc.syscall(SYS_OPEN_TREE, AT_FDCWD, raw, OPEN_TREE_CLONE | os.O_CLOEXEC)
    if tree < 0:
        return None
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.sizeof(attributes)
    if libc.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), size) != 0:
        os.close(tree)
        return None
    return int(tree)
