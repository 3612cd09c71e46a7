# SPDX-License-Identifier: Apache-2.0
"""Builds the answers to the HTTP calls: the node's state, reduced to the part that the caller may see.

Operators see everything. A tenant's process sees its own tenant and the GPUs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

from hypervisor.api.gangs import gangs_data
from hypervisor.api.serializers import (
    event_data,
    gpu_data,
    observed_data,
    processes_data,
    quota_data,
    tenant_data,
)
from hypervisor.dispatcher.dispatcher import Dispatcher
from hypervisor.errors import Refused
from hypervisor.exporter.exporter import Exporter
from hypervisor.host.tcp_endpoints import TcpEndpoints
from hypervisor.model import ClientHints, Peer, ProcessKey, Registration, TenantName, Worker, WorkerId
from hypervisor.node.commands import Command
from hypervisor.node.node import Node
from hypervisor.node.quota_changes import QuotaChange
from hypervisor.node.registration import Registrar
from hypervisor.node.registry import CONTAINED, Tenant
from limiter.errors import LayoutMismatch
from limiter.quota import Quota
from limiter.segment import Usage
from limiter.tenants import start_ticks


class Api:
    """The calls on a node; `exporter` has the last metrics snapshot."""

    def __init__(self, node: Node, registrar: Registrar, dispatcher: Dispatcher, exporter: Exporter) -> None:
        self._node = node
        self._registrar = registrar
        self._dispatcher = dispatcher
        self._exporter = exporter

    def peer(self, connection: Any) -> Peer:
        return self._node.peers.of(connection)

    def register(self, connection: Any, hints: ClientHints, caller: Peer | None = None) -> Registration:
        return self._registrar.register(connection, hints, caller)

    async def saved(self) -> None:
        """Wait until registrations are saved, at most a moment."""
        await self._node.recovery.saved()

    def find_caller(self, endpoints: TcpEndpoints, hints: ClientHints) -> Peer:
        return self._node.peers.over_tcp(endpoints, hints.pid, hints.start_ticks)

    def is_caller(self, endpoints: TcpEndpoints, key: ProcessKey) -> bool:
        return self._node.peers.is_over_tcp(endpoints, key)

    def hand_over(self, connection: Any, tenant: TenantName) -> None:
        self._registrar.hand_over(connection, tenant)

    def worker(self, worker_id: WorkerId) -> Worker:
        return self._node.commands.worker(worker_id)

    async def next_command(self, worker_id: WorkerId, after: int, wait_s: float) -> Command | None:
        return await self._node.commands.next(worker_id, after, wait_s)

    def finished(self, worker_id: WorkerId, number: int, message: str, *, ok: bool) -> None:
        self._node.commands.finished(worker_id, number, message, ok=ok)

    def is_operator(self, peer: Peer) -> bool:
        return self._node.authorization.is_operator(peer)

    async def state(self, peer: Peer | None) -> dict[str, Any]:
        """Return the state that the caller may see; `peer` is None for an operator.

        Usage segments are read tenant by tenant; the event loop runs other tasks in between.
        """
        node = self._node
        sees_all = peer is None or node.authorization.is_operator(peer)
        tenants = [t for t in node.registry.tenants.values() if sees_all or self._is_own(t, peer)]
        shown: list[dict[str, Any]] = []
        for tenant in tenants:
            shown.append(self._tenant(tenant))
            await asyncio.sleep(0)
        counts = node.registry.tenants_by_gpu()
        state: dict[str, Any] = {
            "daemon": {
                "pid": os.getpid(),
                "start_ticks": start_ticks(os.getpid()),
                "admission": node.registry.sources.admission,
                "arbitration_steps": self._dispatcher.steps,
                "not_ready": node.reasons_not_ready(),
                "warnings": node.warnings(),
                "may_change": sees_all,
                "at_ns": time.monotonic_ns(),
            },
            "gpus": [
                gpu_data(node.inventory.samples[gpu.uuid], counts.get(gpu.uuid, 0))
                for gpu in node.inventory.present
            ],
            "failed_gpus": [dataclasses.asdict(card) for card in node.inventory.failed_cards],
            "tenants": shown,
            "gangs": gangs_data(shown),
            "observed": observed_data(
                self._exporter.snapshot, None if sees_all else {t.name for t in tenants}
            ),
        }
        if sees_all:
            here = [node.inventory.samples[gpu.uuid] for gpu in node.inventory.present]
            state["processes"] = processes_data(here)
            state["events"] = event_data(node.events.newest())
            state["counts"] = dict(node.events.counts)
        return state

    def _is_own(self, tenant: Tenant, peer: Peer | None) -> bool:
        """True if a peer is a process of the tenant or, outside pods and containers, of the tenant's user."""
        if peer is None or any(w.key == peer.key for w in tenant.workers.values()):
            return peer is not None
        is_plain = not tenant.name.startswith(CONTAINED)
        return is_plain and tenant.uid == peer.origin.uid and self._node.authorization.is_of_the_node(peer)

    def _tenant(self, tenant: Tenant) -> dict[str, Any]:
        opened = self._node.tenant_segments.open_tenants.get(tenant.name)
        quotas = opened.quotas if opened is not None else {}
        data = tenant_data(tenant, quotas, self._usage(tenant), self._shares())
        if problem := self._node.health.problem_of(tenant.name):
            data["problem"] = problem
        return data

    def _usage(self, tenant: Tenant) -> Usage | None:
        """Return a tenant's usage with its registered processes; None if the segment cannot be read."""
        opened = self._node.tenant_segments.open_tenants.get(tenant.name)
        workers = {worker.key.host_pid for worker in tenant.workers.values()}
        try:
            return self._node.tenant_segments.read(opened, workers) if opened is not None else None
        except (LayoutMismatch, OSError):
            return None

    def _shares(self) -> Mapping[Any, Any]:
        return dict(self._dispatcher.shares)

    def quota_of(self, name: TenantName, peer: Peer | None) -> dict[str, Any]:
        """Return the quota in force; for a tenant without processes, the one for its next start."""
        tenant = self._node.registry.tenants.get(name)
        sees_all = peer is None or self._node.authorization.is_operator(peer)
        if not sees_all and (tenant is None or not self._is_own(tenant, peer)):
            raise Refused(403, "only root and the daemon's group may see other tenants")
        effective, is_suspended = self._node.operators.quota_of(name), name in self._node.registry.suspended
        if effective is None and not is_suspended:
            raise Refused(404, f"no tenant {name!a} here, and no quota waits for it")
        shown = quota_data(effective) if effective is not None else {"source": None, "quota": {}}
        suspended = {"suspended": True} if is_suspended else {}
        said_by = effective.gang_source if effective is not None else None
        gang = {"gang_source": said_by} if said_by is not None else {}
        is_present = tenant is not None and tenant.is_occupied
        return {"tenant": name, "present": is_present, **shown, **gang, **suspended}

    def set_quota(self, name: TenantName, wanted: Quota | None) -> dict[str, Any]:
        """Set a whole quota, or remove it (None); return the quota that is then in force."""
        self._node.operators.set_quota(name, wanted)
        return self._answer(name)

    def change_quota(self, name: TenantName, change: QuotaChange) -> dict[str, Any]:
        """Set fields of a quota; return the quota that is then in force."""
        self._node.operators.change_quota(name, change)
        return self._answer(name)

    def _answer(self, name: TenantName) -> dict[str, Any]:
        warnings = {"warnings": self._node.warnings()} if self._node.warnings() else {}
        try:
            return self.quota_of(name, None) | warnings
        except Refused:
            return {"tenant": name, "present": False, "source": None, "quota": {}} | warnings

    def suspend(self, name: TenantName, *, is_suspended: bool) -> list[str]:
        """Suspend or resume a tenant; return warnings."""
        self._node.operators.suspend(name, is_suspended=is_suspended)
        return self._node.warnings()
