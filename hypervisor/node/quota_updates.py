# SPDX-License-Identifier: Apache-2.0
"""Changes of quotas, brought to tenants that have processes. Event loop only."""

from __future__ import annotations

import logging

from hypervisor.config.settings import Quotas
from hypervisor.errors import Refused
from hypervisor.model import TenantName
from hypervisor.node.commands import CommandName
from hypervisor.node.events import EventLog, record_event
from hypervisor.node.recovery import Recovery
from hypervisor.node.registry import Registry, Tenant
from hypervisor.node.tenant_segments import TenantSegments
from hypervisor.node.worker_commands import WorkerCommands


class QuotaUpdates:
    """Publishes a changed quota, tells the tenant's processes, and saves it."""

    def __init__(
        self,
        registry: Registry,
        tenant_segments: TenantSegments,
        commands: WorkerCommands,
        recovery: Recovery,
        events: EventLog,
    ) -> None:
        self._registry = registry
        self._tenant_segments = tenant_segments
        self._commands = commands
        self._recovery = recovery
        self._events = events

    def publish(self, tenant: Tenant, command: CommandName) -> None:
        """Publish a tenant's quota and suspension, and give its processes a command about it."""
        self._tenant_segments.publish([tenant])
        self._commands.post(tenant, command)

    def reevaluate(self, name: TenantName) -> bool:
        """Give a tenant the quota that its sources now name; True if it has changed. Raises Refused."""
        if not self._registry.reevaluate_quota(name):
            return False
        self.publish(self._registry.tenants[name], "refresh")
        self._recovery.save()
        return True

    def reread(self, quotas: Quotas) -> None:
        """Take the quotas of the configuration file, which was read again."""
        self._registry.sources.default, self._registry.sources.config = quotas.default, quotas.tenants
        for name in list(self._registry.tenants):
            self.reevaluate_or_note(name)
        record_event(self._events, "config_read", "quotas read again")

    def reevaluate_or_note(self, name: TenantName) -> None:
        """Give a tenant the quota that its sources now name; write an event if it does not fit."""
        try:
            self.reevaluate(name)
        except Refused as error:
            text = f"keeps its quota: {error}"
            record_event(self._events, "quota_kept", text, tenant=name, level=logging.WARNING)
