# SPDX-License-Identifier: Apache-2.0
"""Saves tenants and operators' quotas, and adopts living tenants after a restart."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from hypervisor.errors import Refused, SegmentError
from hypervisor.model import EffectiveQuota, TenantName
from hypervisor.node.events import EventLog, record_event
from hypervisor.node.policy_limits import Limits, matches_limits, quota_of
from hypervisor.node.registry import CONTAINED, Registry, Tenant
from hypervisor.node.segment_health import SegmentHealth
from hypervisor.node.state_store import NoStateStore, SavedState, SavedTenant, StateStore
from hypervisor.node.tenant_segments import OpenSegments, TenantSegments
from hypervisor.shm.segment_store import Segments
from limiter.errors import QuotaError
from limiter.quota import Quota

logger = logging.getLogger(__name__)
CLUSTERS = ("pod", "slices")
"""Sources that the cluster supplies again after a restart."""
MAX_SAVE_WAIT_S = 0.05


class Recovery:
    """Passes state from the previous daemon to this one, and from this one to the next."""

    def __init__(
        self,
        store: StateStore | NoStateStore,
        registry: Registry,
        tenant_segments: TenantSegments,
        segments: Segments,
        health: SegmentHealth,
        events: EventLog,
    ) -> None:
        self.store = store
        self._registry = registry
        self._tenant_segments = tenant_segments
        self._segments = segments
        self._health = health
        self._events = events
        self._pending: dict[TenantName, SavedTenant] = {}
        """Tenants of the previous daemon, until the GPUs are known."""
        self._had_problem = False

    def load(self) -> None:
        """Read the state that an earlier daemon saved."""
        saved, losses = self.store.load()
        for loss in losses:
            self._events.add("state_lost", loss.text, now_ns=time.time_ns(), tenant=loss.tenant)
            logger.warning("state_lost: %s", loss.text)
        self._registry.sources.api.update(saved.api)
        self._registry.suspended |= saved.suspended
        self._pending = dict(saved.tenants)

    def adopt(self) -> list[Tenant]:
        """Adopt the tenants of an earlier daemon that have living processes; return them."""
        pending, self._pending = self._pending, {}
        for name, was in pending.items():
            if name not in self._registry.tenants and self._segments.has_usage(name):
                self._adopt(name, was)
        return [self._registry.tenants[name] for name in pending if name in self._registry.tenants]

    def _adopt(self, name: TenantName, was: SavedTenant) -> None:
        tenant = Tenant(
            name,
            was.uid,
            was.effective,
            was.proposed,
            proposal_applied=was.proposal_applied,
            pod_uid=was.pod_uid,
            pod=was.pod,
            containers=set(was.containers),
            is_suspended=was.is_suspended,
            began_s=was.began_s,
        )
        if was.effective.source == "pod":  # until the cluster supplies it again
            self._registry.sources.pods.setdefault(name, was.effective.quota)
        elif was.effective.gang_source == "pod":
            self._registry.sources.pods.setdefault(name, Quota(gang=was.effective.quota.gang))
        try:
            if not self.open(tenant).usage.count_living() and self._tenant_segments.retire(name):
                return
        except SegmentError as error:
            # Its processes may live, and only the unreadable segment knows what they hold.
            self._health.unopened[name] = str(error)
            record_event(self._events, "segment_failed", str(error), tenant=name, level=logging.WARNING)
        self._registry.adopt(tenant, now_ns=time.monotonic_ns())
        record_event(self._events, "adopted", "was there before this daemon", tenant=name)

    def retry_unopened(self) -> None:
        """Try again to open the usage segments of tenants that were adopted without them."""
        for name, reason in list(self._health.unopened.items()):
            tenant = self._registry.tenants.get(name)
            try:
                if tenant is not None:
                    self.open(tenant).usage.count_living()
                del self._health.unopened[name]
            except SegmentError as error:
                self._health.unopened[name] = str(error)
                if str(error) != reason:
                    record_event(
                        self._events, "segment_failed", str(error), tenant=name, level=logging.WARNING
                    )

    def open(self, tenant: Tenant) -> OpenSegments:
        """Return a tenant's segments, published. Raises SegmentError.

        The policy of a tenant with living processes holds the quota that was in force when the previous
        daemon ended. If the saved state differs, that daemon could not save: the policy wins.
        """
        return self._tenant_segments.open(tenant, before_publishing=self._restore_policy)

    def _restore_policy(self, tenant: Tenant, opened: OpenSegments) -> None:
        limits, is_suspended = self._tenant_segments.in_force(opened)
        if not limits or not opened.usage.count_living():
            return
        if not self._is_trusted(tenant):
            is_suspended = is_suspended or tenant.is_suspended
        if is_suspended != tenant.is_suspended:
            tenant.is_suspended = is_suspended
            (self._registry.suspended.add if is_suspended else self._registry.suspended.discard)(tenant.name)
            text = f"is {'suspended' if is_suspended else 'not suspended'}, as it was before this daemon"
            record_event(self._events, "state_recovered", text, tenant=tenant.name, level=logging.WARNING)
        if self._is_trusted(tenant) and not matches_limits(tenant.effective.quota, limits):
            self._restore_quota(tenant, limits)

    def _is_trusted(self, tenant: Tenant) -> bool:
        """True if no process of the tenant could write its policy.

        Without a read-only mount, root in a container could. Its changes must not outlive this daemon.
        """
        is_contained = tenant.pod_uid or tenant.containers or tenant.name.startswith(CONTAINED)
        return self._tenant_segments.has_read_only_policies or not is_contained

    def _restore_quota(self, tenant: Tenant, limits: Limits) -> None:
        sources, name = self._registry.sources, tenant.name
        try:
            effective = sources.resolve(
                name, tenant.pod_uid, tenant.proposed, proposal_applied=tenant.proposal_applied
            )
        except Refused:
            effective = tenant.effective
        if not matches_limits(effective.quota, limits):
            source = tenant.effective.source if tenant.effective.source in CLUSTERS else "api"
            try:
                gang = tenant.effective.quota.gang  # a policy does not name the gang
                limited = replace(quota_of(limits), gang=gang)
                effective = EffectiveQuota(limited, source, tenant.effective.gang_source)
            except QuotaError as error:
                record_event(self._events, "state_lost", f"{error}", tenant=name, level=logging.WARNING)
                return
            if source == "api":
                sources.api[name] = effective.quota
        tenant.effective = effective
        text = f"keeps the quota that was in force before this daemon (source: {effective.source})"
        record_event(self._events, "state_recovered", text, tenant=name, level=logging.WARNING)

    def save(self) -> None:
        """Save the state that must survive this daemon; `retry_save` retries after a failure."""
        tenants = {t.name: saved_tenant(t) for t in self._registry.tenants.values()}
        api, suspended = dict(self._registry.sources.api), frozenset(self._registry.suspended)
        self.store.save(SavedState(api, {**self._pending, **tenants}, suspended))
        self._report()

    async def saved(self) -> None:
        """Wait until what was saved last is written, at most MAX_SAVE_WAIT_S: then the disk is busy."""
        await self.store.settled(MAX_SAVE_WAIT_S)

    def retry_save(self) -> None:
        """Save again if the last save failed."""
        if self.store.problem:
            self.save()
        else:
            self._report()

    def _report(self) -> None:
        problem = self.store.problem
        if problem:
            record_event(self._events, "state_not_saved", f"{problem}; tried again", level=logging.WARNING)
        elif self._had_problem:
            record_event(self._events, "state_saved", "quotas and suspensions are saved again")
        self._had_problem = bool(problem)


def saved_tenant(tenant: Tenant) -> SavedTenant:
    return SavedTenant(
        uid=tenant.uid,
        effective=tenant.effective,
        proposed=tenant.proposed,
        proposal_applied=tenant.proposal_applied,
        pod_uid=tenant.pod_uid,
        pod=tenant.pod,
        containers=tuple(sorted(tenant.containers)),
        is_suspended=tenant.is_suspended,
        began_s=tenant.began_s,
    )
