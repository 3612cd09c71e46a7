# SPDX-License-Identifier: Apache-2.0
"""Gangs by name: the tenants that a name joins. Pure.

Members have their turns together, so a name only joins tenants that are trusted to be of one job. These are
pods of one namespace and, outside pods and containers, tenants of one user. A container's user does not
identify its owner. So the name in a container's environment joins no other container; an operator's quota
does.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.model import Source, TenantName
from hypervisor.node.registry import CONTAINED, Tenant
from hypervisor.scheduler.types import GANG_OFF
from limiter.quota import GangMode

OPERATORS: tuple[Source, ...] = ("api", "config")
ANY_CONTAINER = "container:*"
MIN_GPUS = 2
"""Number of GPUs with waiting processes from which on a tenant is a gang by itself."""


@dataclass(frozen=True, slots=True)
class TenantGang:
    """The gang that a tenant's quota names."""

    mode: GangMode = GangMode.AUTO
    id: str = ""
    """Scope and name, as in "namespace/name"; empty unless named. A user's scope has a colon, which no
    namespace
    has. No tenant's name has a slash.
    """

    @property
    def term(self) -> str:
        """The value of `SchedParams.gang`."""
        return GANG_OFF if self.mode == GangMode.OFF else self.id


def gang_of(tenant: Tenant) -> TenantGang:
    """Return the gang that a tenant's quota names."""
    quota = tenant.effective.quota
    is_named = quota.gang_mode == GangMode.NAMED
    return TenantGang(quota.gang_mode, f"{scope_of(tenant)}/{quota.gang}" if is_named else "")


def gang_in_force(gang: TenantGang, tenant: TenantName, waits_on: int) -> str:
    """Return the id of the gang that a tenant is in; empty if it is in none.

    `waits_on`: number of GPUs on which its processes are seen to wait for each other.
    """
    if gang.mode == GangMode.AUTO and waits_on >= MIN_GPUS:
        return tenant
    return gang.id


def scope_of(tenant: Tenant) -> str:
    """Return the scope within which a gang's name is unique."""
    namespace = tenant.pod.partition("/")[0]
    if tenant.pod_uid is not None and namespace:
        return namespace
    if tenant.pod_uid is None and not tenant.name.startswith(CONTAINED):
        return f"uid:{tenant.uid}"
    if tenant.effective.gang_source in OPERATORS:
        return ANY_CONTAINER
    return f"pod:{tenant.pod_uid}" if tenant.pod_uid is not None else tenant.name.replace("-", ":", 1)
