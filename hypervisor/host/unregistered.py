# SPDX-License-Identifier: Apache-2.0
"""Describes GPU processes that are under no quota, with the tenant that /proc suggests for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypervisor.errors import Refused
from hypervisor.host.cgroup import Membership
from hypervisor.host.control_groups import ControlGroups

MAX_READ_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class UnregisteredProcess:
    """A GPU process under no quota."""

    pid: int
    uid: int
    pod_uid: str | None
    container_id: str | None
    tenant: str
    """Tenant in its own environment: a hint, only trusted if the process runs as the tenant's user."""


def inspect(pid: int, groups: ControlGroups) -> UnregisteredProcess | None:
    """Return the description of a process; None if it has ended, or if /proc hides it."""
    place = Path(f"/proc/{pid}")
    try:
        uid = place.stat().st_uid
        member = groups.place((place / "cgroup").read_text(errors="replace")).member
    except OSError:
        return None
    except Refused:
        member = Membership()
    return UnregisteredProcess(pid, uid, member.pod_uid, member.container_id, wished_tenant(place))


def wished_tenant(place: Path) -> str:
    try:
        with (place / "environ").open("rb") as file:
            raw = file.read(MAX_READ_BYTES)
    except OSError:
        return ""
    wanted = b"GPULIMIT_TENANT="
    for entry in raw.split(b"\0"):
        if entry.startswith(wanted):
            return entry.removeprefix(wanted).decode(errors="replace")
    return ""
