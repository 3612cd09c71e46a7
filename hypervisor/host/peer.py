# SPDX-License-Identifier: Apache-2.0
"""Identifies the process at the other end of a connection, with user, pod and container. All calls use it.

The kernel ties a Unix connection to the process that opened it. From Linux 6.5 on, it returns a pidfd of that
process at any time. Before, the daemon opens one by pid when it accepts the connection. Facts from /proc by
pid only count if the pidfd shows afterwards that the process lives: until then no other process can have the
pid. The cgroup of a process that has ended, or is ending, proves nothing. So such a process is refused, and
so is every call on a connection that it left to other processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypervisor.errors import Refused
from hypervisor.host import process_files, tcp_peer
from hypervisor.host.control_groups import ControlGroups
from hypervisor.host.descriptors import shortage_of
from hypervisor.host.processes import has_ended
from hypervisor.host.tcp_endpoints import TcpEndpoints
from hypervisor.host.whereabouts import Whereabouts
from hypervisor.model import Origin, Peer, ProcessKey

SO_PEERPIDFD = 77
SO_PEERGROUPS = 59
CREDENTIALS = struct.Struct("iII")
MAX_GROUPS = 4096


def gone(pid: int) -> Refused:
    return Refused(403, f"process {pid} has gone")


@contextlib.contextmanager
def no_longer(pid: int) -> Iterator[None]:
    """Turn errors of reading a process's files into a refusal."""
    try:
        yield
    except OSError as error:
        if shortage := shortage_of(error):
            raise Refused(503, f"the daemon cannot look at process {pid} now: {shortage}") from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise Refused(403, f"the daemon may not look at process {pid}: /proc hides it") from error
        raise gone(pid) from error


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class User:
    """A process's user and groups."""

    uid: int
    gid: int
    groups: frozenset[int]


class Accepted(socket.socket):
    """A connection with a pidfd of the process that opened it, in a table by the connection's number."""

    pidfds: dict[int, int] | None = None
    number = -1

    def take_pidfd(self, pidfds: dict[int, int]) -> None:
        pid, uid, _ = credentials(self)
        self.pidfds, self.number = pidfds, self.fileno()
        self._forget()
        with contextlib.suppress(OSError):
            pidfds[self.number] = os.pidfd_open(pid)
        try:
            # Another process may have got the pid since the process connected.
            is_its_user = process_files.status_of(pid).effective_uid == uid
        except OSError:
            is_its_user = False
        if not is_its_user:
            self._forget()

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        pidfd = self.pidfds.pop(self.number, None) if self.pidfds is not None else None
        if pidfd is not None:
            os.close(pidfd)


def hands_out_pidfds() -> bool:
    """True if the kernel returns a pidfd of the process that opened a connection, at any time."""
    one, two = socket.socketpair()
    with one, two:
        try:
            os.close(one.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError:
            return False
        return True


def credentials(connection: Any) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process that opened a connection, as they were then."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(raw)
    return pid, uid, gid


def groups_of(connection: Any, gid: int) -> frozenset[int]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MAX_GROUPS * 4)
    except OSError:
        raw = b""
    return frozenset({gid, *struct.unpack(f"{len(raw) // 4}I", raw)})


class Peers:
    """Identifies the processes that call."""

    def __init__(self) -> None:
        self.control_groups = ControlGroups()
        self.whereabouts = Whereabouts(self.control_groups)
        self._hands_out_pidfds = hands_out_pidfds()
        self._pidfds: dict[int, int] = {}
        """Pidfds by the connection's descriptor; only before Linux 6.5."""
        self._holders = tcp_peer.SocketHolders()
        self._own_depth = len(process_files.status_of(os.getpid()).pids)
        self._own_users = process_files.uid_map(os.getpid())

    def adopt(self, fd: int) -> socket.socket:
        """Return the socket of an accepted connection, which `of` can then map to its process."""
        if self._hands_out_pidfds:
            return socket.socket(fileno=fd)
        accepted = Accepted(fileno=fd)
        accepted.take_pidfd(self._pidfds)
        return accepted

    def of(self, connection: Any) -> Peer:
        """Return the process that opened a Unix connection and still lives. Raises Refused."""
        with self.held(connection) as (peer, _):
            return peer

    @contextlib.contextmanager
    def held(self, connection: Any) -> Iterator[tuple[Peer, int]]:
        """Yield the process that opened a Unix connection, and a pidfd of it. Raises Refused."""
        try:
            pid, uid, gid = credentials(connection)
            groups = groups_of(connection, gid)
        except OSError as error:
            raise Refused(403, "the caller has gone") from error
        if pid == 0:
            raise Refused(403, "the daemon cannot see this process: it must run in the host's pid namespace")
        with closing(self._pidfd_of(connection, pid)) as pidfd:
            yield self._describe(pid, pidfd, User(uid, gid, groups)), pidfd

    def _pidfd_of(self, connection: Any, pid: int) -> int:
        with no_longer(pid):
            try:
                return int(connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
            except OSError as error:
                accepted = self._pidfds.get(connection.fileno())
                if error.errno != errno.ENOPROTOOPT or accepted is None:
                    raise
                return os.dup(accepted)

    def over_tcp(self, ends: TcpEndpoints, pid: int, ticks: int) -> Peer:
        """Return the process with this pid in its namespace and this start time that holds a TCP connection.

        Raises Refused. Slow. Any thread.
        """
        number = tcp_peer.find(ends, pid, ticks, self._holders)
        with no_longer(number), closing(os.pidfd_open(number)) as pidfd:
            status = process_files.status_of(number)
            user = User(status.uids[1], status.gids[1], status.groups | {status.gids[1]})
            peer = self._describe(number, pidfd, user)
            # Facts found by pid belong to this process only if it had the pid all the time.
            if peer.key.start_ticks != ticks or not tcp_peer.holds(number, ends):
                raise gone(number)
            return peer

    @contextlib.contextmanager
    def again(self, peer: Peer) -> Iterator[tuple[Peer, int]]:
        """Yield a process that was identified before, and a pidfd of it. Raises Refused."""
        pid = peer.key.host_pid
        with no_longer(pid):
            pidfd = os.pidfd_open(pid)
        with closing(pidfd):
            user = User(peer.origin.uid, peer.origin.gid, peer.groups)
            now = self._describe(pid, pidfd, user)
            if now.key != peer.key:
                raise gone(pid)
            yield now, pidfd

    def is_over_tcp(self, ends: TcpEndpoints, key: ProcessKey) -> bool:
        """True if a process holds the other end of a TCP connection. Any thread."""
        try:
            with closing(os.pidfd_open(key.host_pid)) as pidfd:
                started = process_files.stat_of(key.host_pid).start_ticks
                is_holder = tcp_peer.holds(key.host_pid, ends)
                return is_holder and started == key.start_ticks and not has_ended(pidfd)
        except OSError:
            return False

    def _describe(self, pid: int, pidfd: int, user: User) -> Peer:
        with no_longer(pid):
            text = process_files.cgroup_text(pid)
            status = process_files.status_of(pid)
            users = process_files.uid_map(pid)
            stat = process_files.stat_of(pid)
        # Until a process is about to end its control group is told; until it has ended the number is its own.
        if stat.is_ending or has_ended(pidfd):
            raise gone(pid)
        place = self.control_groups.place(text)
        member = place.member
        origin = Origin(user.uid, user.gid, member.container_id, member.pod_uid, text, place.unknown)
        is_beside = len(status.pids) == self._own_depth and users == self._own_users
        return Peer(
            ProcessKey(pid, stat.start_ticks),
            origin,
            user.groups,
            is_of_the_node=is_beside and not origin.is_contained and not place.is_named_by_user,
            namespace_pid=status.namespace_pid,
        )
