# SPDX-License-Identifier: Apache-2.0
"""Bounds on tenants and processes, of the node and of each user. Pure.

Root has no bound of its own. In pods and containers the node chooses the names of tenants, so users there
only have a bound on processes. The node's last places are for users without a tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypervisor.errors import Refused
from hypervisor.model import Origin
from hypervisor.node.reservations import WAIT

ROOT = 0
RESERVED_FRACTION = 4
"""One place in four is kept for users without a tenant."""
ADVICE = f"end one, or wait with {WAIT}"


@dataclass(frozen=True, slots=True)
class TenantBounds:
    """The bounds in force, named as the options."""

    max_tenants: int = 120
    """One sleep of the dispatcher must cover all doorbells."""
    max_tenants_per_user: int = 32
    max_processes_per_user: int = 1024

    def check_tenant(self, origin: Origin, living: int, own: Sequence[str]) -> None:
        """Raise Refused if there is no place for another tenant.

        `living` is the number of tenants with processes; `own` holds those of the same user, the oldest
        first.
        """
        uid = origin.uid
        if living >= self.max_tenants:
            has = f"this node has {living} tenants with processes already (max_tenants)"
            raise Refused(409, f"{has}; {ADVICE}")
        if uid == ROOT or origin.is_contained:
            return
        oldest = f"{ADVICE}; the oldest are {', '.join(own[:3])}"
        if len(own) >= self.max_tenants_per_user:
            has = f"user {uid} has {len(own)} tenants with processes already (max_tenants_per_user)"
            raise Refused(409, f"{has}; {oldest}")
        reserved = self.max_tenants // RESERVED_FRACTION
        if own and living >= self.max_tenants - reserved:
            has = f"user {uid} has {len(own)} tenants; the last {reserved} places are for users with none"
            raise Refused(409, f"{has}; {oldest}")

    def check_process(self, origin: Origin, own: int) -> None:
        """Raise Refused if a user, or the users of a container, have their largest number of processes."""
        if own >= self.max_processes_per_user and (origin.uid != ROOT or origin.is_contained):
            of = "this container" if origin.is_contained else f"user {origin.uid}"
            raise Refused(409, f"{of} has {own} processes already (max_processes_per_user); {ADVICE}")


def account_key(origin: Origin) -> tuple[str | int, ...]:
    """Return the key under which bounds are counted: one per user, pod or container."""
    if origin.is_contained:
        return (origin.pod_uid or "", origin.container_id or "")
    return (origin.uid,)
