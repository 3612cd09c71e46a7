# SPDX-License-Identifier: Apache-2.0
"""Which process of this node is at the other end of a TCP connection.

The kernel does not say it with the connection, as it does for Unix sockets. So the process says its pid, as
it sees it, and when it started; here the processes of the node are searched for that, and the one is taken
that really holds the other end: its network namespace has the connection, from the same address and port to
ours, and the socket is among its files. A process cannot say that it is another, and what comes from another
node, or through a translation of addresses, is nobody here.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path

from hypervisor.errors import Refused
from hypervisor.host.tcp_endpoints import Ends, plain
from hypervisor.model import Peer

PROC = Path("/proc")
ESTABLISHED = "01"
MOST_STATUS = 1 << 14
MOST_TABLE = 16 << 20
MOST_FILES = 1 << 16


def find(ends: Ends, pid: int, ticks: int, proc: Path = PROC) -> Peer:
    """Return the process that has this pid in its innermost namespace, started then, and holds the other end.
    Raises Refused.
    """
    alike = list(like(pid, ticks, proc))
    if not alike:
        raise Refused(403, f"no process of this node has pid {pid} in its namespace and started at {ticks}")
    found = [number for number in alike if holds(number, ends, proc)]
    if not found:
        raise Refused(
            403,
            f"process {pid} did not make this connection, or its addresses are translated on the way",
        )
    if len(found) > 1:
        raise Refused(409, f"ambiguous: {len(found)} processes could be pid {pid}; use the Unix socket")
    return peer_of(found[0], proc)


def like(pid: int, ticks: int, proc: Path) -> Iterator[int]:
    """Yield the processes with a pid in their innermost namespace that started at a time."""
    for entry in os.scandir(proc):
        if entry.name.isdecimal() and namespace_pid(status(int(entry.name), proc)) == pid:
            number = int(entry.name)
            if start_ticks(number, proc) == ticks:
                yield number


def holds(number: int, ends: Ends, proc: Path = PROC) -> bool:
    """Whether a process holds the other end of a connection."""
    sockets = {f"socket:[{inode}]" for inode in inodes(number, ends, proc)}
    if not sockets:
        return False
    try:
        with os.scandir(proc / str(number) / "fd") as files:
            for count, file in enumerate(files):
                if count >= MOST_FILES:
                    break
                if link(file.path) in sockets:
                    return True
    except OSError:
        pass
    return False


def inodes(number: int, ends: Ends, proc: Path) -> Iterator[int]:
    """Yield the sockets of the other end in a process's network namespace."""
    for name in ("tcp", "tcp6"):
        for line in read(proc / str(number) / "net" / name, MOST_TABLE).splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != ESTABLISHED or not fields[9].isdecimal():
                continue
            if endpoint(fields[1]) == ends.peer and endpoint(fields[2]) == ends.own:
                yield int(fields[9])


def endpoint(text: str) -> tuple[str, int]:
    """Return what "0100007F:1F90" says: the kernel writes an address as 32-bit words of the machine."""
    address, _, port = text.partition(":")
    try:
        raw = bytes.fromhex(address)
        words = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
        return plain(str(ipaddress.ip_address(words))), int(port, 16)
    except ValueError:
        return "", 0


def peer_of(number: int, proc: Path) -> Peer:
    fields = status(number, proc)
    try:
        uid, gid = int(fields["Uid"].split()[1]), int(fields["Gid"].split()[1])
        groups = frozenset(map(int, fields.get("Groups", "").split()))
    except (KeyError, ValueError, IndexError):
        raise Refused(403, f"process {number} has gone") from None
    return Peer(number, uid, gid, groups | {gid})


def status(number: int, proc: Path) -> dict[str, str]:
    """Return the fields of /proc/<pid>/status; none: it has gone."""
    lines = read(proc / str(number) / "status", MOST_STATUS).splitlines()
    return {name: value for name, _, value in (line.partition(":\t") for line in lines)}


def namespace_pid(fields: dict[str, str]) -> int:
    words = fields.get("NSpid", "").split()
    return int(words[-1]) if words and words[-1].isdecimal() else 0


def start_ticks(number: int, proc: Path) -> int | None:
    words = read(proc / str(number) / "stat", MOST_STATUS).rpartition(")")[2].split()
    return int(words[19]) if len(words) > 19 else None


def link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - by the thousand
    except OSError:
        return ""


def read(path: Path, most: int) -> str:
    """Return the beginning of a file; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""
