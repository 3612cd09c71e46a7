# SPDX-License-Identifier: Apache-2.0
"""Pod, container or plain place of a process, by the text of its /proc/<pid>/cgroup. Pure.

Kubelets and runtimes write the same facts in many ways: with cgroupfs or systemd naming, nested in another
runtime's container, relative to the reader's cgroup namespace. So nothing is assumed but what a pod's UID
and a container's id look like and what may stand around them; the last of each in a path counts.

A name says nothing where a user may give it: `control_groups` cuts paths there before they are read here.
The other way round, a path without a pod and a container in it is a plain process's only if it is of a known
layout (`is_plain`): an unknown runtime's containers look like that, too.
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
"""What stands before the id where a runtime's own helper runs, outside the container."""

UNIT = re.compile(r".+\.(service|socket|mount|swap)|(session|run|app)-.+\.scope")
"""A service, or a scope of a login, of systemd-run or of a desktop; runtimes make scopes of other names."""
USER_MANAGER = re.compile(r"user@\d+\.service")
RUNTIME_UNIT = re.compile(r"systemd-nspawn@.*")
"""Services that hold a container."""
RUNTIME_SLICE = re.compile(r"(.*kubepods.*|kubelet|machine)\.slice")
JOBS_UNITS = frozenset({"slurmstepd.scope"})
"""Units that divide themselves into groups for jobs that are no containers."""
DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class Membership:
    """Where a process belongs; both None: to no container."""

    pod_uid: str | None = None
    container_id: str | None = None


@dataclass(frozen=True, slots=True)
class CgroupLine:
    """One line of a cgroup file: a process's group in one hierarchy."""

    controllers: str
    """"cpu,cpuacct", "name=systemd"; empty: version 2's hierarchy."""
    path: str


def lines_in(text: str) -> list[CgroupLine]:
    """Return the lines of a cgroup file; a path begins with a slash."""
    parts = (line.split(":", 2) for line in text.splitlines())
    return [CgroupLine(part[1], part[2]) for part in parts if len(part) == 3 and part[2].startswith("/")]


def parse(text: str) -> Membership:
    """Return the membership that the lines of a cgroup file tell: one with a pod if there is any."""
    found = [of_path(line.path) for line in lines_in(text)]
    return innermost(found)


def innermost(found: Iterable[Membership]) -> Membership:
    """Return of what the lines tell the one that says most."""
    found = list(found)
    with_pod = [m for m in found if m.pod_uid]
    with_container = [m for m in found if m.container_id]
    both = [m for m in with_pod if m.container_id]
    return next(iter(both or with_pod or with_container), Membership())


def of_path(path: str) -> Membership:
    """Return the membership that one cgroup path tells."""
    pods = list(POD.finditer(path))
    start = pods[-1].end() if pods else 0
    ids = [m[1] for m in CONTAINER.finditer(path, start) if not HELPER.search(path[: m.start()])]
    return Membership(
        pod_uid=dashed(pods[-1][1]) if pods else None,
        container_id=ids[-1] if ids else None,
    )


def is_plain(path: str) -> bool:
    """True if a group surely holds no container: the root, a slice, a service or scope of systemd's without
    groups in it, a login session, or all that a user's own manager makes.

    A unit may be divided into groups by what runs in it, and that may be a container runtime.
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
    """Return a pod's UID as the API server writes it; static pods' have no dashes there either."""
    return uid.replace("_", "-")
