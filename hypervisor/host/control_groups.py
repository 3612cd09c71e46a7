# SPDX-License-Identifier: Apache-2.0
"""Finds the trusted part of cgroup paths, and the pod, container or unit in it.

A user with a delegated cgroup chooses the names of groups in it, even a pod's name. systemd delegates a group
to each login user and to services with `Delegate=`. So a name in a path only counts if root owns every
directory down to it, and only root can write them. The last group itself may belong to a user: runtimes give
a container in a user namespace its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hypervisor.errors import Refused
from hypervisor.host.cgroup import DELETED, CgroupLine, Membership, innermost, is_plain, lines_in, of_path

ROOT = 0
ROOT_INODE = 1
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
PROC = Path("/proc")
MAX_DEPTH = 12
"""Bound on the depth of this daemon's own group below the node's root; kubelets put it at 4."""


@dataclass(frozen=True, slots=True)
class Place:
    """Pod, container or unit of a process, by its cgroup."""

    member: Membership
    unknown: str = ""
    """Path of unknown layout, which may belong to a container of an unknown runtime; empty if all are
    known."""
    is_named_by_user: bool = False
    """True if a user has named a group in its path like a pod or a container."""


PLAIN = Place(Membership())
UNSEEN = "the daemon does not see it; give it the node's /sys/fs/cgroup"


class Hierarchy:
    """One cgroup hierarchy, as far as this process can see it.

    `above` is the number of levels from this process's own root up to the mounted directory.
    """

    def __init__(self, mount: Path, above: int, own_root: Path | None) -> None:
        self._mount = mount
        self._above = above
        self._own_root = own_root

    @cached_property
    def _own(self) -> list[str] | None:
        """Names of the groups from the mounted directory down to this process's own root; None if unknown."""
        if self._above == 0:
            return []
        if self._own_root is None or self._above > MAX_DEPTH:
            return None
        wanted = self._own_root.stat().st_ino
        for place in groups_below(self._mount, self._above):
            with contextlib.suppress(FileNotFoundError):
                if place.stat().st_ino == wanted:
                    return list(place.relative_to(self._mount).parts)
        return None

    @property
    def is_whole(self) -> bool:
        """True if more than this process's own group is visible: the hierarchy's root, or a group above.

        On a node that is itself a container, the topmost group is not the hierarchy's root.
        """
        return self._above > 0 or self._mount.stat().st_ino == ROOT_INODE

    def resolve(self, path: str) -> list[str] | None:
        """Return a path's names from the mounted directory on; None if it is not below that."""
        parts = [part for part in path.split("/") if part]
        up = sum(part == ".." for part in parts)
        if up > self._above or (up < self._above and self._own is None):
            return None
        return (self._own or [])[: self._above - up] + parts[up:]

    def believed(self, names: list[str]) -> int:
        """Return the number of names, from the top, that root has chosen. Raises OSError."""
        place = self._mount
        for count, name in enumerate(names):
            found = place.lstat()
            if found.st_uid != ROOT or found.st_mode & OTHERS_MAY_WRITE or not stat.S_ISDIR(found.st_mode):
                if count == 0:
                    raise PermissionError(f"{place} does not belong to root")
                return count
            place /= name
        return len(names)


def groups_below(top: Path, depth: int) -> Iterator[Path]:
    """Yield the directories `depth` levels below another; groups may appear and disappear meanwhile."""
    try:
        with os.scandir(top) as found:
            below = [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    for place in below:
        if depth == 1:
            yield place
        else:
            yield from groups_below(place, depth - 1)


class ControlGroups:
    """Finds pod, container or unit of processes, from the text of their /proc/<pid>/cgroup."""

    def __init__(self, proc: Path = PROC) -> None:
        own = lines_in((proc / "self/cgroup").read_text(errors="replace"))
        mounts = mounts_in((proc / "self/mountinfo").read_text(errors="replace"))
        self._hierarchies = {line.controllers: hierarchy_of(line.controllers, mounts) for line in own}
        self._own_lines = frozenset(own)
        self._own = innermost(of_path(line.path) for line in own)

    def sees_node(self) -> bool:
        """True if all groups of the node are visible, in at least one hierarchy."""
        with contextlib.suppress(OSError):
            return any(one is not None and one.is_whole for one in self._hierarchies.values())
        return False

    def place(self, text: str) -> Place:
        """Return the place of a process. Raises Refused if it is not known.

        If the daemon is in a container itself, other processes of that container count as plain processes.
        """
        lines = lines_in(text)
        if not lines or any(line.path.endswith(DELETED) for line in lines):
            raise Refused(403, "the process's control group cannot be read")
        if self._own_lines.issuperset(lines):
            return PLAIN
        read = [self._line(line) for line in lines]
        member = innermost(place.member for place in read)
        is_named_by_user = any(place.is_named_by_user for place in read)
        if member == self._own != Membership():
            return Place(Membership(), "", is_named_by_user)
        unknown = next((place.unknown for place in read if place.unknown), "")
        return Place(member, unknown if member == Membership() else "", is_named_by_user)

    def _line(self, line: CgroupLine) -> Place:
        names = self._resolved(line)
        path = line.path if names is None else "/" + "/".join(names)
        claimed = of_path(path)
        if claimed != Membership():
            path = self._believed(line, names)
        member = of_path(path)
        is_known = member != Membership() or line in self._own_lines or is_plain(path)
        return Place(member, "" if is_known else line.path, member != claimed)

    def _resolved(self, line: CgroupLine) -> list[str] | None:
        hierarchy = self._hierarchies.get(line.controllers)
        try:
            return hierarchy.resolve(line.path) if hierarchy is not None else None
        except OSError:
            return None

    def _believed(self, line: CgroupLine, names: list[str] | None) -> str:
        hierarchy = self._hierarchies.get(line.controllers)
        if names is None or hierarchy is None:
            raise Refused(403, f"{UNSEEN}: control group {line.path}")
        try:
            return "/" + "/".join(names[: hierarchy.believed(names)])
        except OSError as error:
            raise Refused(403, f"control group {line.path}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A mount of cgroups: a directory of the hierarchy, by this process's view, and its mount point."""

    root: str
    place: Path
    options: frozenset[str]
    """Options of the hierarchy; empty for version 2."""


def mounts_in(text: str) -> list[CgroupMount]:
    """Return the mounts of control groups in a mountinfo file."""
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if separator and len(fields) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
            options = frozenset(kind[2].split(",")) if kind[0] == "cgroup" else frozenset[str]()
            found.append(CgroupMount(unescaped(fields[3]), Path(unescaped(fields[4])), options))
    return found


def hierarchy_of(controllers: str, mounts: list[CgroupMount]) -> Hierarchy | None:
    """Return a hierarchy by its most complete mount; None if no mount shows this process's root."""
    wanted = frozenset(controllers.split(",")) if controllers else frozenset[str]()
    fitting = [m for m in mounts if (m.options >= wanted if wanted else not m.options)]
    whole = [m for m in fitting if not m.root.replace("/..", "").strip("/")]
    if not whole:
        return None
    highest = max(whole, key=lambda m: m.root.count(".."))
    own_root = next((m.place for m in whole if m.root == "/"), None)
    return Hierarchy(highest.place, highest.root.count(".."), own_root)


def unescaped(text: str) -> str:
    """Return a field of a mountinfo file with escapes resolved: a blank is a backslash and 040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
