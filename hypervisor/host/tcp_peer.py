# SPDX-License-Identifier: Apache-2.0
"""Identifies the local process at the remote end of a TCP connection.

For Unix sockets the kernel names the peer; for TCP it does not. So the process sends its pid in its own
namespace and its start time, and four checks must confirm them. Its network namespace has the connection,
with the same addresses and ports. The socket is among its files. No other process has the socket. The user
that created the socket is the process's real, effective, saved and file-system user. So a connection that a
process inherited or received from another user's program does not identify that process. A connection from
another node, or through address translation, belongs to no process of this node.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypervisor.errors import Refused
from hypervisor.host.process_files import PROC, stat_of, status_of
from hypervisor.host.tcp_endpoints import TcpEndpoints, plain

ESTABLISHED = "01"
MAX_TABLE_BYTES = 16 << 20
MAX_FILES = 1 << 16


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """The other end of a connection, as a process's network namespace lists it."""

    inode: int
    uid: int
    """User of the process that created the socket."""

    @property
    def link(self) -> str:
        return f"socket:[{self.inode}]"


class SocketHolders:
    """Finds the processes that hold a socket.

    A scan of all files of all processes is slow, so one scan serves all callers that asked before it began.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._looks = 0
        self._holders: dict[str, list[int]] = {}

    def of(self, held: TcpSocket) -> list[int]:
        """Return the processes that hold a socket. Any thread."""
        seen = self._looks
        with self._lock:
            # A scan is counted before it begins. A scan counted after this point has seen the caller's
            # socket.
            if self._looks == seen:
                self._looks += 1
                self._holders = self._look()
            return self._holders.get(held.link, [])

    def _look(self) -> dict[str, list[int]]:
        holders: dict[str, list[int]] = {}
        for number in numbers(self._proc):
            for name in set(links(number, self._proc)):
                if name.startswith("socket:"):
                    holders.setdefault(name, []).append(number)
        return holders


def find(ends: TcpEndpoints, pid: int, ticks: int, holders: SocketHolders, proc: Path = PROC) -> int:
    """Return the process with this pid in its innermost namespace and this start time.

    Raises Refused unless exactly this process holds the other end.
    """
    alike = list(like(pid, ticks, proc))
    if not alike:
        raise Refused(403, f"no process of this node has pid {pid} in its namespace and started at {ticks}")
    found = [(number, held) for number in alike if (held := held_socket(number, ends, proc))]
    if not found:
        raise Refused(
            403,
            f"process {pid} did not make this connection, or its addresses are translated on the way",
        )
    if len(found) > 1:
        raise Refused(409, f"ambiguous: {len(found)} processes could be pid {pid}; use the Unix socket")
    number, held = found[0]
    check_user(number, held, proc)
    others = [other for other in holders.of(held) if other != number]
    if others:
        # A freshly forked child holds a copy until it calls exec: the next try may succeed.
        raise Refused(503, f"process {others[0]} holds this connection too; use the Unix socket")
    return number


def holds(number: int, ends: TcpEndpoints, proc: Path = PROC) -> bool:
    """True if a process holds the other end of a connection that its user opened."""
    held = held_socket(number, ends, proc)
    if held is None:
        return False
    try:
        check_user(number, held, proc)
    except Refused:
        return False
    return True


def check_user(number: int, held: TcpSocket, proc: Path) -> None:
    """Raise Refused unless the socket's user is the process's user, without a way back to another."""
    try:
        uids = status_of(number, proc).uids
    except OSError as error:
        raise Refused(403, f"process {number} has gone") from error
    if set(uids) != {held.uid}:
        raise Refused(403, f"process {number} runs as another user than made this connection")


def numbers(proc: Path) -> Iterator[int]:
    with os.scandir(proc) as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdecimal())


def like(pid: int, ticks: int, proc: Path) -> Iterator[int]:
    """Yield the processes with this pid in their innermost namespace and this start time."""
    for number in numbers(proc):
        try:
            if status_of(number, proc).namespace_pid == pid and stat_of(number, proc).start_ticks == ticks:
                yield number
        except OSError:
            continue


def held_socket(number: int, ends: TcpEndpoints, proc: Path) -> TcpSocket | None:
    """Return the other end of a connection if it is among a process's files.

    Raises Refused if the daemon may not read the process's files.
    """
    for found in sockets(number, ends, proc):
        try:
            if found.link in links(number, proc, is_needed=True):
                return found
        except PermissionError as error:
            reason = f"the daemon may not see the files of process {number}: it needs CAP_SYS_PTRACE"
            raise Refused(403, f"{reason}; use the Unix socket") from error
    return None


def links(number: int, proc: Path, *, is_needed: bool = False) -> Iterator[str]:
    """Yield the targets of a process's descriptors. `is_needed`: raise PermissionError if they are hidden."""
    try:
        with os.scandir(proc / str(number) / "fd") as files:
            yield from (link(file.path) for file in itertools.islice(files, MAX_FILES))
    except PermissionError:
        if is_needed:
            raise
    except OSError:
        pass


def sockets(number: int, ends: TcpEndpoints, proc: Path) -> Iterator[TcpSocket]:
    """Yield the sockets of the other end in a process's network namespace."""
    for name in ("tcp", "tcp6"):
        for line in read(proc / str(number) / "net" / name, MAX_TABLE_BYTES).splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != ESTABLISHED:
                continue
            if not fields[7].isdecimal() or not fields[9].isdecimal():
                continue
            if endpoint(fields[1]) == ends.peer and endpoint(fields[2]) == ends.own:
                yield TcpSocket(int(fields[9]), int(fields[7]))


def endpoint(text: str) -> tuple[str, int]:
    """Parse "0100007F:1F90": the kernel writes an address as 32-bit words in the machine's byte order."""
    address, _, port = text.partition(":")
    try:
        raw = bytes.fromhex(address)
        words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
        return plain(str(ipaddress.ip_address(words))), int(port, 16)
    except ValueError:
        return "", 0


def link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - thousands of calls
    except OSError:
        return ""


def read(path: Path, most: int) -> str:
    """Return the beginning of a file; "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""
