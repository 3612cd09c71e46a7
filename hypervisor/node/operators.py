# SPDX-License-Identifier: Apache-2.0
"""Operators' calls: set, change and remove a tenant's quota, suspend and resume its launches.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

from hypervisor.errors import Refused
from hypervisor.model import NO_QUOTA, EffectiveQuota, TenantName
from hypervisor.node.commands import CommandName
from hypervisor.node.events import EventLog, record_event
from hypervisor.node.quota_changes import QuotaChange, apply_change, check_amounts
from hypervisor.node.recovery import Recovery
from hypervisor.node.registry import Registry, Tenant
from limiter.quota import Quota
from limiter.segment import TENANT
from limiter.tenants import MADE_UP


class Operators:
    """Changes by operators; `follow` makes a change known to a tenant that is there."""

    def __init__(
        self,
        registry: Registry,
        recovery: Recovery,
        events: EventLog,
        publish: Callable[[Tenant, CommandName], None],
    ) -> None:
        self._registry = registry
        self._recovery = recovery
        self._events = events
        self._publish = publish

    def set_quota(self, name: TenantName, said: Quota | None) -> None:
        """Set the whole quota of a tenant, or remove it (None); the tenant need not exist. Raises Refused."""
        if not TENANT.fullmatch(name):
            raise Refused(422, f"{name!a} is not a tenant's name")
        if said is not None:
            self._check_can_apply(name, said)
            check_amounts(said, self._registry.gpus.values())
        api = self._registry.sources.api
        before = api.get(name)
        set_or_remove(api, name, said)
        try:
            if name in self._registry.tenants:
                self._registry.reevaluate_quota(name)
        except Refused:
            set_or_remove(api, name, before)
            raise
        # Published first, so that shared memory is never older than the saved state.
        tenant = self._registry.tenants.get(name)
        if tenant is not None:
            self._publish(tenant, "refresh")
        self._recovery.save()
        record_event(
            self._events, "quota_set", "quota set" if said is not None else "quota taken back", tenant=name
        )

    def change_quota(self, name: TenantName, change: QuotaChange) -> None:
        """Set fields of a tenant's quota; the other fields stay. Raises Refused."""
        effective = self.quota_of(name)
        self.set_quota(name, apply_change(effective.quota if effective is not None else NO_QUOTA, change))

    def quota_of(self, name: TenantName) -> EffectiveQuota | None:
        """Return the quota in force, or the one for a tenant's next start; None if there is none."""
        tenant = self._registry.tenants.get(name)
        if tenant is not None and tenant.is_occupied:
            return tenant.effective
        return self._registry.sources.ceiling(name)

    def _check_can_apply(self, name: TenantName, said: Quota) -> None:
        """Raise Refused if a call's quota could never be in force for this tenant."""
        annotated = self._registry.sources.pods.get(name)
        if annotated is not None and (annotated.has_limits or said.gang not in (None, annotated.gang)):
            raise Refused(
                409,
                f"tenant {name}: its pod's annotations are stronger than a call; "
                "change them, gpulimit.io/memory and so on, with kubectl annotate",
            )
        tenant = self._registry.tenants.get(name)
        if (tenant is None or not tenant.is_occupied) and has_one_time_name(name, tenant):
            raise Refused(404, f"tenant {name} has ended, and nothing will start under this name again")

    def suspend(self, name: TenantName, *, is_suspended: bool) -> None:
        """Suspend a tenant's launches, or resume them. Raises Refused.

        A suspension also holds for processes that start after the last one has ended.
        """
        tenant = self._registry.tenants.get(name)
        is_there = tenant is not None and tenant.is_occupied
        if not is_there and (is_suspended or name not in self._registry.suspended):
            raise Refused(404, f"no tenant {name!a} here with a process that lives")
        self._registry.suspend(name, is_suspended=is_suspended)
        if tenant is not None:
            self._publish(tenant, "suspend" if is_suspended else "resume")
        self._recovery.save()
        record_event(self._events, "suspended" if is_suspended else "resumed", "by an operator", tenant=name)


def has_one_time_name(name: TenantName, tenant: Tenant | None) -> bool:
    """True if an ended tenant had a name that never returns: of one run, or of a pod that is gone."""
    return bool(MADE_UP.fullmatch(name)) or (tenant is not None and tenant.has_ended)


def set_or_remove(quotas: dict[TenantName, Quota], name: TenantName, said: Quota | None) -> None:
    if said is None:
        quotas.pop(name, None)
    else:
        quotas[name] = said
