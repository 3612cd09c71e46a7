# SPDX-License-Identifier: Apache-2.0
"""A tenant's gang on one GPU, from its quota and its usage. Pure."""

from __future__ import annotations

from hypervisor.metrics.observations import MAX_COUNT
from hypervisor.metrics.snapshot import GangMembership
from hypervisor.model import TenantName
from hypervisor.node.gangs import TenantGang, gang_in_force
from limiter.quota import GangMode
from limiter.segment import Device, Usage


def membership(usage: Usage | None, device: Device | None, gang: TenantGang, tenant: str) -> GangMembership:
    """Return a tenant's gang on one GPU; `device` is its entry there. A named gang is where it uses a GPU."""
    mode = gang.mode.name.lower()
    if usage is None or device is None:
        return GangMembership(mode=mode)
    name = gang_in_force(gang, TenantName(tenant), len(usage.gang_devices))
    is_here = device.is_used if gang.mode == GangMode.NAMED else device.entry in usage.gang.entries
    released = usage.gang.released if usage.gang.released < MAX_COUNT else None
    return GangMembership(name if is_here else "", mode, released)
