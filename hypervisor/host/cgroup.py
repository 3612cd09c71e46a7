# SPDX-License-Identifier: Apache-2.0
"""Which pod and container a process is in, by the text of its /proc/<pid>/cgroup. Pure.

Kubelets and runtimes write the same facts in many ways: with cgroupfs or systemd naming, nested in another
runtime's container, relative to the reader's cgroup namespace. So nothing is assumed but what a pod's UID
and a container's id look like and what may stand around them; the last of each in a path counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

POD = re.compile(
    r"(?:^|[/-])pod"
    r"([0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?=[/.:]|$)"
)
CONTAINER = re.compile(r"(?<=[/:-])([0-9a-f]{64})(?=[/.]|$)")
HELPER = re.compile(r"crio-conmon-$")
"""What stands before the id where a runtime's own helper runs, outside the container."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Where a process belongs; both None: to no container."""

    pod_uid: str | None = None
    container_id: str | None = None


def parse(text: str) -> Membership:
    """Return the membership that the lines of a cgroup file tell: one with a pod if there is any."""
    found = [of_path(line.split(":", 2)[2]) for line in text.splitlines() if line.count(":") >= 2]
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


def dashed(uid: str) -> str:
    """Return a pod's UID as the API server writes it; static pods' have no dashes there either."""
    return uid.replace("_", "-")
