# SPDX-License-Identifier: Apache-2.0
"""What outlives a daemon: saves tenants and operators' quotas, and takes over at the next start what lives
on.
"""

from __future__ import annotations

import logging
import time

from hypervisor.errors import SegmentError
from hypervisor.model import TenantName
from hypervisor.node.events import EventLog, note
from hypervisor.node.registry import Registry, Tenant
from hypervisor.node.state_store import Saved, SavedTenant, Store
from hypervisor.node.tenant_segments import Tenancy
from hypervisor.shm.segments import Segments


class Survival:
    """One daemon's link to the one before and the one after."""

    def __init__(
        self, store: Store, registry: Registry, tenancy: Tenancy, segments: Segments, events: EventLog
    ) -> None:
        self._store = store
        self._registry = registry
        self._tenancy = tenancy
        self._segments = segments
        self._events = events
        self._pending: dict[TenantName, SavedTenant] = {}
        """Tenants of the daemon before, until the GPUs are known."""

    def load(self) -> None:
        """Read what an earlier daemon saved."""
        saved = self._store.load()
        self._registry.book.api.update(saved.api)
        self._pending = dict(saved.tenants)

    def adopt(self) -> list[Tenant]:
        """Take over the tenants that an earlier daemon had, if processes of theirs live; return them."""
        pending, self._pending = self._pending, {}
        for name, was in pending.items():
            if name not in self._registry.tenants and self._segments.has_usage(name):
                self._adopt(name, was)
        return [self._registry.tenants[name] for name in pending if name in self._registry.tenants]

    def _adopt(self, name: TenantName, was: SavedTenant) -> None:
        tenant = Tenant(
            name,
            was.uid,
            was.held,
            was.proposed,
            was_heard=was.was_heard,
            pod_uid=was.pod_uid,
            pod=was.pod,
            containers=set(was.containers),
            is_suspended=was.is_suspended,
        )
        if was.held.source == "pod":  # until the cluster says it again
            self._registry.book.pods.setdefault(name, was.held.quota)
        try:
            if self._tenancy.open(tenant).usage.count_living():
                self._registry.adopt(tenant, now_ns=time.monotonic_ns())
                note(self._events, "adopted", "was there before this daemon", tenant=name)
            else:
                self._tenancy.retire(name)
        except SegmentError as error:
            self._tenancy.retire(name)
            note(self._events, "segment_failed", str(error), tenant=name, level=logging.WARNING)

    def save(self) -> None:
        """Write down what must survive this daemon."""
        tenants = {t.name: saved_tenant(t) for t in self._registry.tenants.values()}
        self._store.save(Saved(dict(self._registry.book.api), {**self._pending, **tenants}))


def saved_tenant(tenant: Tenant) -> SavedTenant:
    return SavedTenant(
        uid=tenant.uid,
        held=tenant.held,
        proposed=tenant.proposed,
        was_heard=tenant.was_heard,
        pod_uid=tenant.pod_uid,
        pod=tenant.pod,
        containers=tuple(sorted(tenant.containers)),
        is_suspended=tenant.is_suspended,
    )
