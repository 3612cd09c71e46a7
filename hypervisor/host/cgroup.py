# SPDX-License-Identifier: Apache-2.0
"""Finds the pod and container of a process in the text of its /proc/<pid>/cgroup. Pure.

Kubelets and runtimes write the same facts in many ways: with cgroupfs or systemd naming, nested in another
runtime's container, relative to the reader's cgroup namespace. So this module only relies on the form of a
pod's UID and of a container's id, and on the text that may surround them. The last of each in a path counts.

A user may choose the names of delegated groups, so such names prove nothing: `control_groups` cuts paths
there before this module parses them. Conversely, a path without pod and container belongs to a plain process
only if its layout is known (`is_plain`): containers of an unknown runtime look the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

POD = re.compile(
    r"(?:^|[/-])pod"
    r"([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?=[/.:]|$)"
)
CONTAINER = re.compile(r"(?<=[/:-])([0-9a-f]{64})(?=[/.]|$)")
HELPER = re.compile(r"crio-conmon-$")
"""Text before the id in the group of a runtime's helper process, which runs outside the container."""

UNIT = re.compile(r".+\.(service|socket|mount|swap)|(session|run|app)-.+\.scope")
"""A service, or a scope of a login, of systemd-run or of a desktop. Runtimes name their scopes
differently."""
USER_MANAGER = re.compile(r"user@\d+\.service")
RUNTIME_UNIT = re.compile(r"systemd-nspawn@.*")
"""Services that hold a container."""
RUNTIME_SLICE = re.compile(r"(.*kubepods.*|kubelet|machine)\.slice")
JOBS_UNITS = frozenset({"slurmstepd.scope"})
"""Units with subgroups for jobs that are not containers."""
DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class Membership:
    """Pod and container of a process; both None if it is in no container."""

    pod_uid: str | None = None
    container_id: str | None = None


@dataclass(frozen=True, slots=True)
class CgroupLine:
    """One line of a cgroup file: a process's group in one hierarchy."""

    controllers: str
    """"cpu,cpuacct" or "name=systemd"; empty for the hierarchy of version 2."""
    path: str


def lines_in(text: str) -> list[CgroupLine]:
    """Return the lines of a cgroup file; a path begins with a slash."""
    parts = (line.split(":", 2) for line in text.splitlines())
    return [CgroupLine(part[1], part[2]) for part in parts if len(part) == 3 and part[2].startswith("/")]


def parse(text: str) -> Membership:
    """Return the membership in the lines of a cgroup file, preferably one with a pod."""
    found = [of_path(line.path) for line in lines_in(text)]
    return innermost(found)


def innermost(found: Iterable[Membership]) -> Membership:
    """Return the most specific membership."""
    found = list(found)
    with_pod = [m for m in found if m.pod_uid]
    with_container = [m for m in found if m.container_id]
    both = [m for m in with_pod if m.container_id]
    return next(iter(both or with_pod or with_container), Membership())


def of_path(path: str) -> Membership:
    """Return the membership in one cgroup path."""
    pods = list(POD.finditer(path))
    start = pods[-1].end() if pods else 0
    ids = [m[1] for m in CONTAINER.finditer(path, start) if not HELPER.search(path[: m.start()])]
    return Membership(
        pod_uid=dashed(pods[-1][1]) if pods else None,
        container_id=ids[-1] if ids else None,
    )


def is_plain(path: str) -> bool:
    """True if a group certainly holds no container.

    These are the root, a slice, a systemd service or scope without subgroups, a login session, and every
    group of a user's own manager. Other units may have subgroups that a container runtime inside them has
    made.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    if not parts:
        return "/.." not in path
    if parts == ["init.scope"]:
        return True
    slices = list(takewhile(lambda part: part.endswith(".slice"), parts))
    if not slices or any(RUNTIME_SLICE.fullmatch(part) for part in slices):
        return False
    if len(slices) == len(parts):
        return True
    unit, *below = parts[len(slices) :]
    if slices[0] == "user.slice" and USER_MANAGER.fullmatch(unit):
        return True
    if unit in JOBS_UNITS:
        return True
    return not below and UNIT.fullmatch(unit) is not None and not RUNTIME_UNIT.fullmatch(unit)


def dashed(uid: str) -> str:
    """Return a pod's UID in the API server's form. UIDs of static pods have no dashes there either."""
    return uid.replace("_", "-")
