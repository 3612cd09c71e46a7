# SPDX-License-Identifier: Apache-2.0
"""The tenants' segments while the daemon runs: opens them, publishes limits and reaps dead processes.

A segment is closed only when the dispatcher thread no longer reads it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from hypervisor.dispatcher.dispatcher import Dispatcher, TenantList
from hypervisor.dispatcher.run_queue import TenantHandle
from hypervisor.errors import SegmentError, SegmentHeld
from hypervisor.model import DeviceQuota, Gpu, GpuUuid, TenantName, device_quota
from hypervisor.node.events import EventLog
from hypervisor.node.gangs import TenantGang, gang_of
from hypervisor.node.registry import CONTAINED, Tenant
from hypervisor.scheduler.types import SchedParams
from hypervisor.shm import fd_passing
from hypervisor.shm.fd_passing import ReadOnlyView
from hypervisor.shm.segment_store import Segments
from hypervisor.shm.segments import (
    MAX_DEVICES,
    PolicySegment,
    StateSegment,
    UsageSegment,
    uuid_bytes,
)
from limiter.quota import PriorityClass
from limiter.segment import Usage

logger = logging.getLogger(__name__)
ROOT = 0


@dataclass(slots=True)
class OpenSegments:
    """A tenant's two segments."""

    usage: UsageSegment
    policy: PolicySegment
    quotas: dict[GpuUuid, DeviceQuota]
    is_suspended: bool = False
    gang: TenantGang | None = None
    """None if not published yet."""
    reap_task: asyncio.Task[None] | None = None
    must_reap_again: bool = False
    reap_error: str = ""
    """Reason that the last reaping failed, or ""."""
    owner: str = ""
    """User whose tenants share bounds; empty for root, and for a pod or container."""

    def close(self) -> None:
        self.usage.close()
        self.policy.close()


class TenantSegments:
    """All open segments. Event loop only."""

    def __init__(
        self,
        segments: Segments,
        dispatcher: Dispatcher,
        state: StateSegment,
        view: ReadOnlyView,
        events: EventLog,
    ) -> None:
        self._segments = segments
        self._dispatcher = dispatcher
        self._state = state
        self._view = view
        self._events = events
        self.open_tenants: dict[TenantName, OpenSegments] = {}
        self.gpus: list[Gpu] = []
        """GPUs in the order of the policies' entries; the list only grows."""
        self._generation = 0
        self._retired: list[tuple[int, OpenSegments]] = []

    @property
    def has_read_only_policies(self) -> bool:
        """True if root in a container cannot write the policies that it receives."""
        return self._view.is_read_only

    def open(
        self, tenant: Tenant, before_publishing: Callable[[Tenant, OpenSegments], None] = lambda *_: None
    ) -> OpenSegments:
        """Return a tenant's segments, made and published at the first call. Raises SegmentError.

        `before_publishing` may change the tenant, based on its segments.
        """
        known = self.open_tenants.get(tenant.name)
        if known is not None:
            return known
        usage = self._segments.usage(tenant.name, tenant.uid)
        try:
            policy = self._segments.policy(tenant.name)
        except SegmentError:
            usage.close()
            raise
        opened = OpenSegments(usage, policy, {}, owner=owner_of(tenant))
        try:
            before_publishing(tenant, opened)
        except SegmentError:
            opened.close()
            raise
        self.open_tenants[tenant.name] = opened
        self._publish(tenant, opened)
        self.publish_tenant_list()
        return opened

    def in_force(self, opened: OpenSegments) -> tuple[dict[Gpu, DeviceQuota], bool]:
        """Return a policy's limits for the GPUs of this node, and if it suspends the tenant."""
        shown = opened.policy.limits()
        known = {gpu: shown[key] for gpu in self.gpus if (key := uuid_bytes(gpu.uuid)) in shown}
        limits = {
            gpu: replace(limit, is_memory_limited=limit.memory_bytes < gpu.memory_bytes)
            for gpu, (limit, _) in known.items()
        }
        return limits, any(is_suspended for _, is_suspended in known.values())

    def reopen(self, tenant: Tenant) -> OpenSegments:
        """Give a tenant that damaged its usage segment a new one.

        Raises SegmentHeld while processes live in the old one: only it records what they hold.
        """
        if not self.retire(tenant.name):
            raise SegmentHeld(
                f"the books of tenant {tenant.name} are damaged, and processes live in them: end those first"
            )
        return self.open(tenant)

    def publish(self, tenants: Iterable[Tenant]) -> None:
        """Publish the limits of tenants, after a change of their quota or of the node's GPUs."""
        for tenant in tenants:
            opened = self.open_tenants.get(tenant.name)
            if opened is not None:
                self._publish(tenant, opened)
        self.publish_tenant_list()

    def _publish(self, tenant: Tenant, opened: OpenSegments) -> None:
        quotas = {gpu.uuid: device_quota(tenant.effective.quota, gpu) for gpu in self.gpus}
        gang, is_first = gang_of(tenant), not opened.quotas
        is_joined = gang == opened.gang
        if not is_joined:
            opened.policy.join(gang.mode)
        for entry, gpu in enumerate(self.gpus):
            quota = quotas[gpu.uuid]
            is_said = opened.quotas.get(gpu.uuid) == quota and opened.is_suspended == tenant.is_suspended
            if not (is_said and is_joined):
                opened.policy.allow(entry, gpu.uuid, quota, is_suspended=tenant.is_suspended)
        if is_first:
            for entry in range(len(self.gpus), MAX_DEVICES):
                opened.policy.withdraw(entry)
        opened.quotas, opened.is_suspended, opened.gang = quotas, tenant.is_suspended, gang

    def publish_tenant_list(self) -> None:
        """Send the current list of tenants to the dispatcher."""
        self._generation += 1
        members = tuple(tenant_handle_of(name, o) for name, o in self.open_tenants.items() if o.quotas)
        gpus = tuple(gpu.uuid for gpu in self.gpus)
        self._dispatcher.replace(TenantList(self._generation, gpus, members, self._state))

    def hand_over(self, name: TenantName, connection: Any) -> None:
        """Send a tenant's segments over a connection of its process. Raises OSError."""
        opened = self.open_tenants[name]
        policy = self._view.open(opened.policy.name, opened.policy.fd)
        if policy is None:
            return
        try:
            state = self._view.open(self._state.name, self._state.fd)
            try:
                files = (policy, opened.usage.tenants_fd)
                fd_passing.send(connection, files if state is None else (*files, state))
            finally:
                if state is not None:
                    os.close(state)
        finally:
            os.close(policy)

    def read(self, opened: OpenSegments, workers: Collection[int]) -> Usage:
        """Return a tenant's usage with its registered processes. Raises as `UsageSegment.read`."""
        return opened.usage.read(self._state, workers)

    def reap(self, name: TenantName) -> None:
        """Reap the tenant's dead processes, in a thread: a hostile segment may make it slow."""
        opened = self.open_tenants.get(name)
        if opened is None:
            return
        if opened.reap_task is not None:
            opened.must_reap_again = True
            return
        opened.reap_task = asyncio.create_task(self._reap(name, opened), name=f"reap {name}")

    async def _reap(self, name: TenantName, opened: OpenSegments) -> None:
        opened.must_reap_again = True
        try:
            while opened.must_reap_again:
                opened.must_reap_again = False
                cleared = await asyncio.to_thread(opened.usage.reap)
                if cleared:
                    self._dispatcher.memory_freed()
                    self._events.counts["slots_cleared"] += cleared
            opened.reap_error = ""
        except SegmentError as error:
            if opened.reap_error != str(error):  # reported once, not at each sweep
                logger.warning("cannot clear up after %s: %s", name, error)
            opened.reap_error = str(error)
        finally:
            opened.reap_task = None

    def reap_all(self) -> None:
        """Reap processes whose end is not reported: those that have not registered with this daemon, and
        programs that were replaced by exec.
        """
        for name in self.open_tenants:
            self.reap(name)

    def memory_freed(self) -> None:
        """Wake waiting tenants: memory came free that no living process had charged."""
        self._dispatcher.memory_freed()

    def retire(self, name: TenantName) -> bool:
        """Remove a tenant's segments; False if a process lives in them or is joining. Raises SegmentError."""
        opened = self.open_tenants.get(name)
        if opened is None:
            return True
        if not self._segments.remove(opened.usage):
            return False
        del self.open_tenants[name]
        self.publish_tenant_list()
        self._retired.append((self._generation, opened))
        return True

    def close_retired(self) -> None:
        """Close the segments that no other thread reads any more."""
        left = []
        for generation, opened in self._retired:
            if self._dispatcher.applied_generation >= generation and opened.reap_task is None:
                opened.close()
            else:
                left.append((generation, opened))
        self._retired = left

    async def close(self) -> None:
        """Close all; the dispatcher has stopped. The files stay for the tenants and the next daemon."""
        everybody = [*self.open_tenants.values(), *(opened for _, opened in self._retired)]
        tasks = [o.reap_task for o in everybody if o.reap_task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        for opened in everybody:
            opened.close()
        self._state.close()
        self._view.close()


def tenant_handle_of(name: TenantName, opened: OpenSegments) -> TenantHandle:
    """Return the dispatcher's handle of a tenant."""
    gang = opened.gang or TenantGang()
    terms = {gpu: sched_params_of(quota, gang, opened.is_suspended) for gpu, quota in opened.quotas.items()}
    return TenantHandle(name, opened.usage, opened.policy, terms, opened.owner)


def owner_of(tenant: Tenant) -> str:
    """Return the user to whose bounds a tenant counts; empty for the tenant alone."""
    return "" if tenant.uid == ROOT or tenant.name.startswith(CONTAINED) else str(tenant.uid)


def sched_params_of(quota: DeviceQuota, gang: TenantGang, is_suspended: bool) -> SchedParams:
    """Return the scheduler's parameters of a quota."""
    return SchedParams(
        limit_percent=quota.compute_percent,
        request_percent=quota.request_percent,
        weight=quota.weight,
        priority=PriorityClass.of(quota.priority),
        is_suspended=is_suspended,
        gang=gang.term,
    )
