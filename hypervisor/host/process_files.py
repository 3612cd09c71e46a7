# SPDX-License-Identifier: Apache-2.0
"""Reads files of /proc about one process, by its pid.

This module does not check that the pid still belongs to the same process: `peer` does.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
READ_BYTES = 8 << 10
MAX_FILE_BYTES = 256 << 10
"""Bound on the bytes read from a file; a user namespace's map has at most 340 lines, a cgroup file a few."""
PF_EXITING = 0x4
DEAD = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A process by /proc/<pid>/stat."""

    state: str
    flags: int
    start_ticks: int

    @property
    def is_ending(self) -> bool:
        """True if the process, or its first thread, has ended or is ending.

        The kernel then shows it in the root of version 1's cgroups, wherever it was.
        """
        return self.state in DEAD or bool(self.flags & PF_EXITING)


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process by /proc/<pid>/status."""

    uids: tuple[int, ...]
    """Real, effective, saved and file-system user."""
    gids: tuple[int, ...]
    groups: frozenset[int]
    pids: tuple[int, ...]
    """Pid in each pid namespace, from that of /proc down to its own."""

    @property
    def effective_uid(self) -> int:
        return self.uids[1]

    @property
    def namespace_pid(self) -> int:
        """Return the pid in its own, innermost namespace; 0 if unknown."""
        return self.pids[-1] if self.pids else 0


def stat_of(pid: int, proc: Path = PROC) -> ProcessStat:
    """Return a process's state and start time. Raises OSError if it does not exist."""
    words = read(proc / str(pid) / "stat").rpartition(")")[2].split()
    try:
        return ProcessStat(words[0], int(words[6]), int(words[19]))
    except (IndexError, ValueError) as error:
        raise ProcessLookupError(f"/proc/{pid}/stat cannot be read") from error


def status_of(pid: int, proc: Path = PROC) -> ProcessStatus:
    """Return a process's users, groups and pids. Raises OSError if it does not exist."""
    lines = read(proc / str(pid) / "status").splitlines()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    try:
        uids, gids = (tuple(map(int, fields[name])) for name in ("Uid", "Gid"))
        groups = frozenset(map(int, fields.get("Groups", ())))
        pids = tuple(map(int, fields.get("NSpid", ())))
    except (KeyError, ValueError) as error:
        raise ProcessLookupError(f"/proc/{pid}/status cannot be read") from error
    if len(uids) != 4 or len(gids) != 4:
        raise ProcessLookupError(f"/proc/{pid}/status cannot be read")
    return ProcessStatus(uids, gids, groups, pids)


def cgroup_text(pid: int, proc: Path = PROC) -> str:
    """Return the text of a process's cgroup file. Raises OSError."""
    return read(proc / str(pid) / "cgroup")


def uid_map(pid: int, proc: Path = PROC) -> str:
    """Return the map from a process's user namespace to the reader's. Raises OSError."""
    return read(proc / str(pid) / "uid_map")


def read(path: Path) -> str:
    """Return a file's text, at most MAX_FILE_BYTES, without buffering. Raises OSError."""
    fd, parts, size = os.open(path, os.O_RDONLY | os.O_CLOEXEC), [], 0
    try:
        while size < MAX_FILE_BYTES and (part := os.read(fd, READ_BYTES)):
            parts.append(part)
            size += len(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="replace")
