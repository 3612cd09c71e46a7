# SPDX-License-Identifier: Apache-2.0
"""Applies changes of quotas to tenants that have processes. Event loop only."""

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
        """Publish a tenant's quota and suspension, and send its processes the command."""
        self._tenant_segments.publish([tenant])
        self._commands.post(tenant, command)

    def reevaluate(self, name: TenantName) -> bool:
        """Decide a tenant's quota again; return True if it has changed. Raises Refused."""
        if not self._registry.reevaluate_quota(name):
            return False
        self.publish(self._registry.tenants[name], "refresh")
        self._recovery.save()
        return True

    def reread(self, quotas: Quotas) -> None:
        """Apply the quotas of the configuration file, which was read again."""
        self._registry.sources.default, self._registry.sources.config = quotas.default, quotas.tenants
        for name in list(self._registry.tenants):
            self.reevaluate_or_note(name)
        record_event(self._events, "config_read", "quotas read again")

    def reevaluate_or_note(self, name: TenantName) -> None:
        """Decide a tenant's quota again; record an event if it does not fit."""
        try:
            self.reevaluate(name)
        except Refused as error:
            text = f"keeps its quota: {error}"
            record_event(self._events, "quota_kept", text, tenant=name, level=logging.WARNING)
