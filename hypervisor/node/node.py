# SPDX-License-Identifier: Apache-2.0
"""The node: its tenants, GPUs and quotas, and the components that change them.

Event loop only. Reports of other threads arrive by `dispatcher_reports`.
"""

from __future__ import annotations

from hypervisor.config.settings import Settings
from hypervisor.host.peer import Peers
from hypervisor.node.authorization import Authorization
from hypervisor.node.events import EventLog
from hypervisor.node.inventory import Inventory
from hypervisor.node.operators import Operators
from hypervisor.node.process_exits import ProcessExits
from hypervisor.node.quota_updates import QuotaUpdates
from hypervisor.node.recovery import Recovery
from hypervisor.node.registry import Registry
from hypervisor.node.segment_health import SegmentHealth
from hypervisor.node.state_store import state_store_of
from hypervisor.node.tenant_removal import TenantRemoval
from hypervisor.node.tenant_segments import TenantSegments
from hypervisor.node.worker_commands import WorkerCommands
from hypervisor.shm.segment_store import Segments


class Node:
    """The live node. Processes come in by a `Registrar`, NVML's answers by `GpuUpdates`."""

    def __init__(
        self,
        settings: Settings,
        *,
        registry: Registry,
        inventory: Inventory,
        segments: Segments,
        tenant_segments: TenantSegments,
        health: SegmentHealth,
        events: EventLog,
        authorization: Authorization,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.inventory = inventory
        self.tenant_segments = tenant_segments
        self.health = health
        self.events = events
        self.authorization = authorization
        self.peers = Peers()
        store = state_store_of(settings.state_dir)
        self.recovery = Recovery(store, registry, tenant_segments, segments, health, events)
        self.commands = WorkerCommands(registry, tenant_segments, events)
        self.quotas = QuotaUpdates(registry, tenant_segments, self.commands, self.recovery, events)
        self.operators = Operators(registry, self.recovery, events, self.quotas.publish)
        self.exits = ProcessExits(registry, tenant_segments, self.commands, events)
        self.removal = TenantRemoval(
            registry, tenant_segments, self.recovery, health, events, linger_ns=settings.linger
        )

    def sweep(self, now_ns: int) -> None:
        """Run the work of each second: retry failed work, and forget tenants without processes."""
        self.recovery.retry_save()
        self.tenant_segments.close_retired()
        self.recovery.retry_unopened()
        self.tenant_segments.reap_all()
        for name, its in self.tenant_segments.open_tenants.items():
            if name not in self.health.corrupt and not its.usage.is_whole:
                self.health.mark_corrupt(name, f"{its.usage.name} was cut short")
        self.removal.sweep(now_ns)

    def reasons_not_ready(self) -> list[str]:
        """Return the reasons that the daemon cannot work."""
        if not self.tenant_segments.gpus:
            failed = [f"card {card.index}: {card.error}" for card in self.inventory.failed_cards[:1]]
            reason = self.inventory.nvml_error or "".join(failed) or "NVML has not answered yet"
            return [f"no GPU known: {reason}"]
        return []

    def warnings(self) -> list[str]:
        """Return warnings for operators; the daemon works all the same."""
        problem = self.recovery.store.problem
        return [f"{problem}; quotas and suspensions set now may not outlive the daemon"] if problem else []
