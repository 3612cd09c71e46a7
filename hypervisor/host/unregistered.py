# SPDX-License-Identifier: Apache-2.0
"""GPU processes that are under no quota: which tenant they would belong to, as far as /proc tells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypervisor.errors import Refused
from hypervisor.host.cgroup import Membership
from hypervisor.host.control_groups import ControlGroups

LARGEST = 64 << 10


@dataclass(frozen=True, slots=True)
class UnregisteredProcess:
    """One of them."""

    pid: int
    uid: int
    pod_uid: str | None
    container_id: str | None
    tenant: str
    """What its own environment says: a hint, believed only of the tenant's user."""


def inspect(pid: int, groups: ControlGroups) -> UnregisteredProcess | None:
    """Return what is known of a process; None: it has gone, or is hidden from this one."""
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
            raw = file.read(LARGEST)
    except OSError:
        return ""
    wanted = b"GPULIMIT_TENANT="
    for entry in raw.split(b"\0"):
        if entry.startswith(wanted):
            return entry.removeprefix(wanted).decode(errors="replace")
    return ""
