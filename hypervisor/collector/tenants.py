# SPDX-License-Identifier: Apache-2.0
"""Reads the usage, quotas, processes and identity of each tenant on each card.

Event loop only, so no segment is closed while it is read. Read-only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path

from hypervisor.collector.gangs import membership
from hypervisor.collector.ratio_file import RatioFile
from hypervisor.dispatcher.dispatcher import Dispatcher
from hypervisor.dispatcher.run_queue import TenantShare
from hypervisor.host.names import Names
from hypervisor.host.systemd_unit import unit_of
from hypervisor.host.unregistered import UnregisteredProcess, inspect
from hypervisor.metrics.observations import ProcessObservation, TenantObservation, UsageCounters
from hypervisor.metrics.snapshot import GangMembership, Identity, State
from hypervisor.model import DeviceQuota, Gpu, GpuUuid, PodRef, Worker, device_quota
from hypervisor.node.gangs import TenantGang, gang_of
from hypervisor.node.node import Node
from hypervisor.node.registry import Tenant
from hypervisor.node.tenant_segments import OpenSegments, sched_params_of
from hypervisor.scheduler.types import SchedParams
from limiter import segment
from limiter.errors import LayoutMismatch
from limiter.segment import Account, Device, Process, Usage

MAX_STANDALONE_TENANTS = 64
MAX_INSPECTED_NAMES = 1024
MAX_STANDALONE_TENANTS_OF_USER = 64
SOURCES = {"pod": "annotation", "environment": "env"}
NvmlBytes = Mapping[GpuUuid, Mapping[int, int | None]]
"""Bytes that processes hold according to NVML, by card and host pid."""


class TenantCollector:
    """Observes all tenants of the node. `errors` counts usage segments that could not be read.

    `pod_of` returns the cluster's names. A process's own claims about its pod are not used: it could put
    its figures into another pod's series.
    """

    def __init__(
        self,
        node: Node,
        dispatcher: Dispatcher,
        ratios: RatioFile,
        pod_of: Callable[[Tenant], PodRef | None],
    ) -> None:
        self._node = node
        self._dispatcher = dispatcher
        self._names = Names()
        self._ratios = ratios
        self._pod_of = pod_of
        self._unregistered: list[UnregisteredProcess] = []
        self._nvml: NvmlBytes = {}
        self.errors: Counter[str] = Counter()

    def tenants(self, nvml: NvmlBytes, names: Iterable[str]) -> Iterator[list[TenantObservation]]:
        """Yield each tenant's observations. The registry may change between two of them."""
        self._nvml = nvml
        self._unregistered = self._find_unregistered()
        for name in list(self._node.registry.tenants):
            tenant = self._node.registry.tenants.get(name)
            if tenant is not None:
                yield list(self._tenant(tenant))
        shown = 0
        for path_name in names:
            observations = list(self._standalone(path_name))
            shown += bool(observations)  # a tenant without a living process does not count against the bound
            yield observations
            if shown == MAX_STANDALONE_TENANTS:
                break

    def _find_unregistered(self) -> list[UnregisteredProcess]:
        """Return the GPU processes that are not registered."""
        known = {worker.key.host_pid for worker in self._node.registry.workers.values()}
        groups = self._node.peers.control_groups
        pids = {pid for processes in self._nvml.values() for pid in processes} - known
        pids -= self._node.exits.departed.among(pids)
        return [process for pid in sorted(pids) if (process := inspect(pid, groups)) is not None]

    def _tenant(self, tenant: Tenant) -> Iterable[TenantObservation]:
        opened = self._node.tenant_segments.open_tenants.get(tenant.name)
        if opened is None:
            yield from self._unopened(tenant)
            return
        if not tenant.workers and not tenant.is_adopted:
            return
        workers = {worker.key.host_pid: worker for worker in tenant.workers.values()}
        usage = self._usage(opened, workers)
        devices = {d.uuid: d for d in usage.devices} if usage is not None else {}
        who, state = self._identity(tenant), self._state(tenant, usage)
        for gpu in self._node.inventory.gpus:
            device, quota = devices.get(gpu.uuid_digits), opened.quotas.get(gpu.uuid)
            if quota is None or (device is None and gpu.uuid not in tenant.gpus):
                continue
            share = self._dispatcher.shares.get(gpu.uuid, {}).get(tenant.name)
            yield observation_of(
                who,
                gpu,
                quota,
                sched_params_of(quota, gang_of(tenant), tenant.is_suspended),
                source=source_of(tenant),
                state=state_of(state, usage, device),
                counters=counters_of(usage, device) if usage is not None and device is not None else None,
                processes=self._processes(usage, device, gpu, workers),
                share=share,
                gang=membership(usage, device, gang_of(tenant), tenant.name),
                ratio=self._ratios.read().of(
                    gpu_uuid=gpu.uuid, gpu_index=gpu.index, namespace=who.namespace, pod=who.pod
                ),
            )

    def _unopened(self, tenant: Tenant) -> Iterable[TenantObservation]:
        """Return an adopted tenant whose usage segment cannot be read: it may be on any GPU."""
        if tenant.name not in self._node.health.unopened:
            return
        for gpu in self._node.inventory.gpus:
            quota = device_quota(tenant.effective.quota, gpu)
            yield observation_of(
                self._identity(tenant),
                gpu,
                quota,
                sched_params_of(quota, gang_of(tenant), tenant.is_suspended),
                source=source_of(tenant),
                state="degraded",
                counters=None,
                processes=[],
                share=None,
                gang=membership(None, None, gang_of(tenant), tenant.name),
                ratio=None,
            )

    def _usage(self, opened: OpenSegments, workers: Mapping[int, Worker]) -> Usage | None:
        """Return a tenant's usage with its registered processes; None if the segment cannot be read."""
        try:
            return self._node.tenant_segments.read(opened, workers)
        except (LayoutMismatch, OSError, ValueError):
            self.errors["unreadable"] += 1
            return None

    def _state(self, tenant: Tenant, usage: Usage | None) -> State:
        if any(is_member(process, tenant) for process in self._unregistered):
            return "off"
        if usage is None or self._node.health.problem_of(tenant.name) or not tenant.workers:
            return "degraded"
        return "enforced"

    def _processes(
        self, usage: Usage | None, device: Device | None, gpu: Gpu, workers: Mapping[int, Worker]
    ) -> list[ProcessObservation]:
        if usage is None or device is None:
            return []
        nvml = self._nvml.get(gpu.uuid, {})
        rows = []
        for process in usage.processes:
            pid = pid_of(process, workers)
            if pid is None or not process.is_alive:
                continue
            account = next((a for a in process.accounts if a.entry == device.entry), None)
            if account is not None:
                rows.append(process_observation(process, pid, account, workers.get(pid), nvml.get(pid)))
        return rows

    def _identity(self, tenant: Tenant) -> Identity:
        """Return a tenant's pod, container, unit and user as the kernel reports them, and its command."""
        workers = list(tenant.workers.values())
        origins = [worker.origin for worker in workers]
        containers = {origin.container_id for origin in origins if origin.container_id}
        container = containers.pop() if len(containers) == 1 else None
        units = {unit_of(origin.cgroup) for origin in origins}
        commands = {worker.name for worker in workers}
        named = self._pod_of(tenant)
        return Identity(
            tenant=tenant.name,
            namespace=named.namespace if named else "",
            pod=named.pod if named else "",
            container=named.container if named else self._names.container(container) if container else "",
            unit=units.pop() if len(units) == 1 and not container else "",
            user=self._names.user(tenant.uid),
            command=commands.pop() if len(commands) == 1 else "",
        )

    # ---- tenants that this daemon does not limit ----

    def _standalone(self, name: str) -> Iterable[TenantObservation]:
        """Return the tenants whose processes started without the daemon and limit themselves."""
        if name in self._node.tenant_segments.open_tenants:
            return
        try:
            usage = segment.read_listed(name)
        except (LayoutMismatch, OSError, ValueError):
            return
        if not any(process.is_alive for process in usage.processes):
            return
        who = Identity(tenant=name, user=self._names.user(usage.owner_uid))
        for device in usage.devices:
            gpu = next((g for g in self._node.inventory.gpus if g.uuid_digits == device.uuid), None)
            if gpu is None:
                continue
            processes = self._processes(usage, device, gpu, {})
            # NVML must list its processes: the segment alone may come from another machine.
            if not self._nvml.get(gpu.uuid, {}).keys() & {process.host_pid for process in processes}:
                continue
            is_limited = device.memory_limit_bytes < device.card_bytes
            yield TenantObservation(
                who=who,
                gpu=gpu,
                terms=SchedParams(limit_percent=min(100, device.compute_limit_percent), weight=device.weight),
                memory_quota_bytes=device.memory_limit_bytes if is_limited else 0,
                source="env",
                state="standalone",
                counters=counters_of(usage, device),
                processes=processes,
                is_counted=False,
                gang=membership(usage, device, TenantGang(), name),
            )


def source_of(tenant: Tenant) -> str:
    """Return the source of the tenant's quota, as a metric label."""
    return (
        SOURCES.get(tenant.effective.source, tenant.effective.source)
        if tenant.effective.quota.is_set
        else "none"
    )


def standalone_names(own: Container[str], directory: Path = segment.DIRECTORY) -> list[str]:
    """Return the tenants in shared memory that this daemon does not limit, a bounded number per user.

    Any thread: users can put any number of files there.
    """
    found: list[str] = []
    of_user: Counter[int] = Counter()
    for name in segment.tenants(directory):
        if name in own:
            continue
        try:
            uid = (directory / f"{segment.PREFIX}{name}").lstat().st_uid
        except OSError:
            continue
        of_user[uid] += 1
        if of_user[uid] <= MAX_STANDALONE_TENANTS_OF_USER:
            found.append(name)
        if len(found) == MAX_INSPECTED_NAMES:
            break
    return found


def observation_of(
    who: Identity,
    gpu: Gpu,
    quota: DeviceQuota,
    terms: SchedParams,
    *,
    source: str,
    state: State,
    counters: UsageCounters | None,
    processes: list[ProcessObservation],
    share: TenantShare | None,
    gang: GangMembership,
    ratio: float | None,
) -> TenantObservation:
    """Return a registered tenant on a card."""
    is_held = share is not None and share.grant.is_shared
    return TenantObservation(
        who=who,
        gpu=gpu,
        terms=terms,
        memory_quota_bytes=quota.memory_bytes if quota.is_memory_limited else 0,
        source=source,
        state=state,
        counters=counters,
        processes=processes,
        waiting=share.seen.waiting if share is not None else 0,
        outstanding_ns=share.seen.outstanding_ns if share is not None else 0,
        granted_ns=share.grant.granted_ns if share is not None and is_held else None,
        has_turn=share is not None and share.has_turn,
        ratio=ratio,
        gang=gang,
    )


def state_of(state: State, usage: Usage | None, device: Device | None) -> State:
    """Return a tenant's state on one GPU; it is degraded if events cannot measure its GPU time."""
    if state != "enforced" or usage is None or device is None:
        return state
    return "degraded" if any(account.is_coarse for account in usage.accounts(device)) else state


def counters_of(usage: Usage, device: Device) -> UsageCounters:
    return UsageCounters(
        usage.created_ns,
        device.used_bytes,
        device.spent_ns,
        device.throttled_ns,
        device.refused,
        device.refused_by_card,
    )


def pid_of(process: Process, workers: Mapping[int, Worker]) -> int | None:
    """Return a process's pid: from its record lock, else the pid that it claims if its tenant has that
    process.

    A program that closes all its descriptors loses the lock.
    """
    if process.holder_pid is not None:
        return process.holder_pid
    return process.host_pid if process.host_pid in workers else None


def process_observation(
    process: Process, pid: int, account: Account, worker: Worker | None, nvml: int | None
) -> ProcessObservation:
    overhead = account.kind_bytes.get("overhead", 0)
    return ProcessObservation(
        client_id=worker.id if worker is not None else "",
        host_pid=pid,
        start_ticks=process.start_ticks,
        command=process.name,
        tracked_bytes=max(0, account.used_bytes - overhead),
        spent_ns=account.spent_ns,
        launches=account.launches,
        nvml_bytes=nvml,
        memory_waiting=account.memory_waiting,
    )


def is_member(process: UnregisteredProcess, tenant: Tenant) -> bool:
    """True if an unregistered process belongs to a tenant: same pod or container, or its user names the
    tenant.
    """
    if process.pod_uid or tenant.pod_uid:
        return process.pod_uid == tenant.pod_uid
    if process.container_id is not None:
        return tenant.name == f"container-{process.container_id[:12]}"
    return process.tenant == tenant.name and process.uid == tenant.uid
