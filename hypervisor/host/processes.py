# SPDX-License-Identifier: Apache-2.0
"""Processes of the host: who is at the other end, when it started, where it belongs, and when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from hypervisor.errors import Refused
from hypervisor.host import cgroup
from hypervisor.model import Origin, Peer, ProcessKey

SO_PEERPIDFD = 77
SO_PEERGROUPS = 59
CREDENTIALS = struct.Struct("iII")
MOST_GROUPS = 4096


def peer_of(connection: socket.socket) -> Peer:
    """Return who connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(raw)
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MOST_GROUPS * 4)
    except OSError:
        groups = b""
    return Peer(pid, uid, gid, frozenset({gid, *struct.unpack(f"{len(groups) // 4}I", groups)}))


def pidfd_of(connection: socket.socket, pid: int) -> int:
    """Return a pidfd of who connected. Raises OSError if it has gone.

    Before Linux 6.5 it is opened by number; whoever asks then still waits for the answer, so the number is
    its own.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)


def has_ended(pidfd: int) -> bool:
    """Whether the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def namespace_pid(pid: int) -> int:
    """Return the pid that a process has in its own, innermost namespace; 0: unknown."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def cgroup_text(pid: int | str) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return ""


class Processes:
    """Identifies processes and watches over registered ones."""

    def __init__(self) -> None:
        # Where the daemon is itself in a container, what runs beside it there counts as plain processes.
        self._own = cgroup.parse(cgroup_text("self"))
        self._watched: dict[ProcessKey, int] = {}

    def identify(self, peer: Peer, connection: socket.socket) -> tuple[ProcessKey, Origin, int]:
        """Return who a peer is, and a pidfd of it. Raises Refused."""
        if peer.pid == 0:
            raise Refused(403, "the daemon cannot see this process: it must run in the host's pid namespace")
        try:
            pidfd = pidfd_of(connection, peer.pid)
        except OSError as error:
            raise Refused(403, f"process {peer.pid} has gone") from error
        ticks = start_ticks(peer.pid)
        text = cgroup_text(peer.pid)
        # What was read is of this process if it still lives: until then nobody else can have had its number.
        if ticks is None or has_ended(pidfd):
            os.close(pidfd)
            raise Refused(403, f"process {peer.pid} has gone")
        member = cgroup.parse(text)
        if member == self._own:
            member = cgroup.Membership()
        origin = Origin(peer.uid, peer.gid, member.container_id, member.pod_uid, text)
        return ProcessKey(peer.pid, ticks), origin, pidfd

    def is_of_the_node(self, peer: Peer) -> bool:
        """Whether a peer runs in no pod and no container, but for the daemon's own."""
        if peer.pid == 0:
            return False
        # A daemon in a pod serves the node's own processes, too.
        return cgroup.parse(cgroup_text(peer.pid)) in (cgroup.Membership(), self._own)

    def watch(self, key: ProcessKey, pidfd: int, died: Callable[[ProcessKey], None]) -> None:
        """Call `died` once the process has gone; takes the pidfd over."""
        if key in self._watched:
            os.close(pidfd)
            return
        self._watched[key] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._ended, key, died)

    def ended(self) -> list[ProcessKey]:
        """Return the watched processes that have ended and of which `died` has not been called yet."""
        return [key for key, pidfd in self._watched.items() if has_ended(pidfd)]

    def _ended(self, key: ProcessKey, died: Callable[[ProcessKey], None]) -> None:
        self.unwatch(key)
        died(key)

    def unwatch(self, key: ProcessKey) -> None:
        """Stop watching."""
        pidfd = self._watched.pop(key, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """Stop watching all."""
        for key in list(self._watched):
            self.unwatch(key)
