# SPDX-License-Identifier: Apache-2.0
"""Removal of tenants without living processes. Event loop only."""

from __future__ import annotations

import logging

from hypervisor.errors import SegmentError, SegmentFull
from hypervisor.node.events import EventLog, record_event
from hypervisor.node.recovery import Recovery
from hypervisor.node.registry import Registry, Tenant
from hypervisor.node.segment_health import SegmentHealth
from hypervisor.node.tenant_segments import TenantSegments

logger = logging.getLogger(__name__)


class TenantRemoval:
    """Forgets tenants `linger_ns` after their last process has ended."""

    def __init__(
        self,
        registry: Registry,
        tenant_segments: TenantSegments,
        recovery: Recovery,
        health: SegmentHealth,
        events: EventLog,
        *,
        linger_ns: int,
    ) -> None:
        self._registry = registry
        self._tenant_segments = tenant_segments
        self._recovery = recovery
        self._health = health
        self._events = events
        self._linger_ns = linger_ns

    def sweep(self, now_ns: int) -> None:
        """Forget the tenants whose last process ended long ago."""
        self.release_dead()
        for tenant in self._registry.empty_tenants(before_ns=now_ns - self._linger_ns):
            self.forget_if_dead(tenant)

    def release_dead(self) -> bool:
        """Release adopted tenants whose processes ended without registering; True if there were any."""
        dead = [
            tenant
            for tenant in self._registry.tenants.values()
            if tenant.is_adopted and not tenant.workers and not self._has_living(tenant)
        ]
        for tenant in dead:
            tenant.is_adopted = False
        return bool(dead)

    def _has_living(self, tenant: Tenant) -> bool:
        """True if a process has a slot in the tenant's segment, or if that is not known now."""
        opened = self._tenant_segments.open_tenants.get(tenant.name)
        if opened is None or tenant.name in self._health.corrupt:
            return tenant.name in self._health.unopened
        try:
            return bool(opened.usage.count_living())
        except SegmentFull:
            return True
        except SegmentError as error:
            logger.warning("%s", error)
            return False

    def forget_if_dead(self, tenant: Tenant) -> None:
        """Forget a tenant and remove its segments, unless a process of it lives."""
        if self._has_living(tenant):
            return
        try:
            if not self._tenant_segments.retire(tenant.name):  # a process is about to join
                return
        except SegmentError as error:
            logger.warning("%s", error)
            return
        self._health.forget(tenant.name)
        self._registry.forget(tenant.name)
        record_event(self._events, "tenant_gone", "has no process left", tenant=tenant.name)
        self._recovery.save()
