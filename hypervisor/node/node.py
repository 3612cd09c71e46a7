# SPDX-License-Identifier: Apache-2.0
"""The node: its tenants, GPUs and quotas, and the parts that change them.

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
        tenancy: TenantSegments,
        health: SegmentHealth,
        events: EventLog,
        authorization: Authorization,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.inventory = inventory
        self.tenancy = tenancy
        self.health = health
        self.events = events
        self.authorization = authorization
        self.peers = Peers()
        store = state_store_of(settings.state_dir)
        self.recovery = Recovery(store, registry, tenancy, segments, health, events)
        self.commands = WorkerCommands(registry, tenancy, events)
        self.quotas = QuotaUpdates(registry, tenancy, self.commands, self.recovery, events)
        self.operators = Operators(registry, self.recovery, events, self.quotas.publish)
        self.exits = ProcessExits(registry, tenancy, self.commands, events)
        self.removal = TenantRemoval(
            registry, tenancy, self.recovery, health, events, linger_ns=settings.linger
        )

    def sweep(self, now_ns: int) -> None:
        """Do what is due every second: try again what failed, and forget tenants without processes."""
        self.recovery.retry()
        self.tenancy.close_retired()
        self.recovery.open_again()
        self.tenancy.reap_all()
        for name, its in self.tenancy.open_tenants.items():
            if name not in self.health.corrupt and not its.usage.is_whole:
                self.health.mark_corrupt(name, f"{its.usage.name} was cut short")
        self.removal.sweep(now_ns)

    def reasons_not_ready(self) -> list[str]:
        """Return what keeps the daemon from doing its work."""
        if not self.tenancy.gpus:
            failed = [f"card {card.index}: {card.error}" for card in self.inventory.failed_cards[:1]]
            reason = self.inventory.trouble or "".join(failed) or "NVML has not answered yet"
            return [f"no GPU known: {reason}"]
        return []

    def warnings(self) -> list[str]:
        """Return what operators should know, though the daemon does its work."""
        problem = self.recovery.store.problem
        return [f"{problem}; quotas and suspensions set now may not outlive the daemon"] if problem else []
