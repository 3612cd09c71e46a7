# SPDX-License-Identifier: Apache-2.0
"""The current tenants, workers and GPUs. Event loop only. Pure: no clock and no files."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from dataclasses import dataclass, field, replace

from limiter._native import lib

from hypervisor.errors import Refused
from hypervisor.model import (
    EffectiveQuota,
    Gpu,
    GpuUuid,
    Origin,
    ProcessKey,
    RegistrationRequest,
    TenantName,
    Worker,
    WorkerId,
)
from hypervisor.node.commands import CommandQueue
from hypervisor.node.quota_policy import QuotaSources
from hypervisor.node.reservations import Reservation, admit
from hypervisor.node.tenant_bounds import TenantBounds, account_key
from limiter.quota import Quota
from limiter.segment import TENANT

CONTAINED = ("pod-", "container-")
AUTOMATIC = "auto-"
MAX_WORKERS = int(lib.GL_MAX_SLOTS)
"""Bound per tenant: the number of slots in its segment."""


@dataclass(slots=True)
class Tenant:
    """One tenant; `workers` may be empty for a while after the last one has ended."""

    name: TenantName
    uid: int
    effective: EffectiveQuota
    proposed: Quota
    """Quota that its first process proposed."""
    proposal_applied: bool = False
    """True if the proposal set the quota: a later change may then also raise it."""
    pod_uid: str | None = None
    pod: str = ""
    """The cluster's namespace/name; empty if not known."""
    containers: set[str] = field(default_factory=set)
    """Ids of the pod's containers with processes in this tenant. They stay, even if the pod's annotations
    change."""
    has_ended: bool = False
    """True if its pod is gone. No process can join any more, so the tenant is forgotten with its last
    process."""
    is_suspended: bool = False
    workers: dict[WorkerId, Worker] = field(default_factory=dict)
    gpus: frozenset[GpuUuid] = frozenset()
    """GPUs that its processes use."""
    empty_since_ns: int | None = None
    began_s: float = 0.0
    """Unix time of its first process; 0 if not known."""
    is_adopted: bool = False
    """True if its processes came under quota before this daemon, and not all have registered again."""

    def reservation(self) -> Reservation:
        """Return the tenant's reservation."""
        return Reservation(self.name, self.effective.quota, self.gpus, self.began_s)

    @property
    def is_occupied(self) -> bool:
        """True if it has a living process. Only then does it hold its request, memory and place."""
        return bool(self.workers) or self.is_adopted


class Registry:
    """The current tenants and workers."""

    def __init__(
        self,
        sources: QuotaSources,
        *,
        boot: str,
        overcommit_percent: int = 100,
        bounds: TenantBounds | None = None,
    ) -> None:
        self.sources = sources
        self.bounds = bounds or TenantBounds()
        self.gpus: dict[GpuUuid, Gpu] = {}
        self.tenants: dict[TenantName, Tenant] = {}
        self.workers: dict[WorkerId, Worker] = {}
        self.queues: dict[WorkerId, CommandQueue] = {}
        self.suspended: set[TenantName] = set()
        """Suspended tenants; they need not exist."""
        self._by_key: dict[ProcessKey, WorkerId] = {}
        self._boot = boot
        self._overcommit_percent = overcommit_percent
        self._numbers = itertools.count(1)

    def register(self, request: RegistrationRequest, *, now_ns: int) -> tuple[Worker, list[Worker]]:
        """Return the worker for a process, and the workers that turn out to be dead. Raises Refused.

        The same process gets the same worker again, unless it has changed its user or entered a container
        meanwhile: its tenant is then another one. Another process with a known pid means that the earlier one
        has ended.
        """
        known = self._by_key.get(request.key)
        if known is not None and has_same_owner(self.workers[known].origin, request.origin):
            return self._registered_again(known, request), []
        gone = [w for w in self.workers.values() if w.key.host_pid == request.key.host_pid]
        for worker in gone:
            self.remove(worker.id, now_ns=now_ns)
        self._check_process_bound(request.origin)
        tenant = self._tenant_for(request)
        if len(tenant.workers) >= MAX_WORKERS:
            raise Refused(409, f"tenant {tenant.name} has {MAX_WORKERS} processes already; end one of them")
        worker = Worker(
            id=WorkerId(f"{self._boot}-{next(self._numbers)}"),
            key=request.key,
            tenant=tenant.name,
            origin=request.origin,
            pid=request.hints.pid,
            name=request.hints.name,
            registered_at_ns=now_ns,
            is_nvml_only=request.hints.is_nvml_only,
        )
        self.tenants[tenant.name] = tenant
        tenant.workers[worker.id] = worker
        tenant.empty_since_ns = None
        if request.origin.pod_uid is not None and request.origin.container_id is not None:
            tenant.containers.add(request.origin.container_id)
        self.workers[worker.id] = worker
        self.queues[worker.id] = CommandQueue()
        self._by_key[request.key] = worker.id
        return worker, gone

    def _registered_again(self, worker_id: WorkerId, request: RegistrationRequest) -> Worker:
        """Return a worker that registers again, for example because it now uses CUDA and not only NVML."""
        worker = self.workers[worker_id]
        if worker.is_nvml_only and not request.hints.is_nvml_only:
            worker = replace(worker, is_nvml_only=False)
            self.workers[worker_id] = self.tenants[worker.tenant].workers[worker_id] = worker
        return worker

    def worker_of(self, key: ProcessKey) -> Worker | None:
        """Return the worker of a process."""
        worker_id = self._by_key.get(key)
        return self.workers[worker_id] if worker_id is not None else None

    def remove(self, worker_id: WorkerId, *, now_ns: int) -> Worker | None:
        """Forget a worker; return it if it was there."""
        worker = self.workers.pop(worker_id, None)
        if worker is None:
            return None
        self._by_key.pop(worker.key, None)
        self.queues.pop(worker_id, None)
        tenant = self.tenants[worker.tenant]
        tenant.workers.pop(worker_id, None)
        if not tenant.workers:
            tenant.empty_since_ns = now_ns
        return worker

    def adopt(self, tenant: Tenant, *, now_ns: int) -> None:
        """Add a tenant whose processes came under quota before this daemon; they register again."""
        tenant.is_adopted = True
        tenant.empty_since_ns = now_ns
        self.tenants[tenant.name] = tenant

    def suspend(self, name: TenantName, *, is_suspended: bool) -> None:
        """Record that a tenant is suspended or resumed; it need not exist."""
        (self.suspended.add if is_suspended else self.suspended.discard)(name)
        tenant = self.tenants.get(name)
        if tenant is not None:
            tenant.is_suspended = is_suspended

    def forget(self, name: TenantName) -> None:
        """Drop a tenant without workers."""
        if not self.tenants[name].workers and self.tenants.pop(name).has_ended:
            self.sources.pods.pop(name, None)
            self.suspended.discard(name)

    def empty_tenants(self, *, before_ns: int) -> list[Tenant]:
        """Return the tenants without a worker since `before_ns`, and those without a worker whose pod is
        gone.
        """
        return [
            t
            for t in self.tenants.values()
            if t.empty_since_ns is not None and (t.has_ended or t.empty_since_ns <= before_ns)
        ]

    def of_pod(self, pod_uid: str) -> list[Tenant]:
        """Return a pod's tenants: one, and one for each container with its own quota."""
        return [tenant for tenant in self.tenants.values() if tenant.pod_uid == pod_uid]

    def set_gpus(self, name: TenantName, gpus: frozenset[GpuUuid]) -> bool:
        """Record the GPUs that a tenant uses; return True if they have changed."""
        tenant = self.tenants[name]
        news = tenant.gpus != gpus
        tenant.gpus = gpus
        return news

    def tenants_by_gpu(self) -> dict[GpuUuid, int]:
        """Return the number of tenants with processes on each GPU of the node."""
        counts = Counter(gpu for tenant in self.tenants.values() for gpu in tenant.gpus)
        return {gpu: counts[gpu] for gpu in self.gpus}

    def check(self, name: TenantName, effective: EffectiveQuota, *, is_start: bool = False) -> None:
        """Raise Refused if a quota would not fit beside those of tenants with living processes."""
        tenant = self.tenants.get(name)
        wanted = Reservation(name, effective.quota, tenant.gpus if tenant else frozenset())
        others = [t.reservation() for t in self.tenants.values() if t.is_occupied and t.name != name]
        percent = self._overcommit_percent
        admit(wanted, others, self.gpus.values(), overcommit_percent=percent, is_start=is_start)

    def reevaluate_quota(self, name: TenantName) -> bool:
        """Decide a tenant's quota from its sources again; return True if it has changed. Raises Refused."""
        tenant = self.tenants[name]
        effective = self.sources.resolve(
            name, tenant.pod_uid, tenant.proposed, proposal_applied=tenant.proposal_applied
        )
        if effective == tenant.effective:
            return False
        if tenant.is_occupied:  # otherwise it is checked when the next process registers
            self.check(name, effective)
        tenant.effective = effective
        return True

    def source_for(self, request: RegistrationRequest, tenant: Tenant) -> str:
        """Return the source of the quota from a process's view: "environment" is its own environment.

        If a process's environment differs from that of the tenant's first process, the smaller of both holds
        for it.
        """
        if tenant.proposal_applied and same_limits(request.hints.quota, tenant.proposed):
            return "environment"
        return "tenant" if tenant.effective.source == "environment" else tenant.effective.source

    def _tenant_for(self, request: RegistrationRequest) -> Tenant:
        name = tenant_name(request)
        tenant = self.tenants.get(name)
        if tenant is not None:
            if request.origin.uid != tenant.uid and not request.origin.is_contained:
                raise Refused(403, f"tenant {name} belongs to another user, {tenant.uid}; take another name")
            if tenant.is_occupied:
                return tenant
        else:
            self._check_tenant_bound(request.origin)
        effective = self.sources.resolve(name, request.origin.pod_uid, request.hints.quota)
        self.check(name, effective, is_start=True)
        if tenant is None:
            origin, hints = request.origin, request.hints
            pod = request.pod.title if request.pod is not None else ""
            tenant = Tenant(name, origin.uid, effective, hints.quota, pod_uid=origin.pod_uid, pod=pod)
            tenant.is_suspended = name in self.suspended
        tenant.effective, tenant.proposed, tenant.began_s = effective, request.hints.quota, request.at_s
        tenant.proposal_applied = effective.source == "environment"
        return tenant

    def _check_tenant_bound(self, origin: Origin) -> None:
        """Raise Refused if the node, or a user, has its largest number of living tenants."""
        living = [tenant for tenant in self.tenants.values() if tenant.is_occupied]
        own = sorted((t for t in living if t.uid == origin.uid), key=lambda tenant: tenant.began_s)
        self.bounds.check_tenant(origin, len(living), [tenant.name for tenant in own])

    def _check_process_bound(self, origin: Origin) -> None:
        """Raise Refused if a user has its largest number of processes."""
        payer = account_key(origin)
        own = sum(account_key(worker.origin) == payer for worker in self.workers.values())
        self.bounds.check_process(origin, own)

    def blocking_tenant(self, request: RegistrationRequest) -> Tenant | None:
        """Return a tenant without processes that occupies a new tenant's name or place.

        None if there is no such tenant, or if the bound on tenants is not reached.
        """
        known = self.tenants.get(tenant_name(request))
        if known is not None:
            is_foreign = known.uid != request.origin.uid and not request.origin.is_contained
            return known if is_foreign and not known.is_occupied else None
        if len(self.tenants) < self.bounds.max_tenants:
            return None
        empty = [tenant for tenant in self.tenants.values() if not tenant.is_occupied]
        return min(empty, key=lambda tenant: tenant.empty_since_ns or 0, default=None)


def has_same_owner(one: Origin, other: Origin) -> bool:
    """True if two origins belong to the same pod, container or plain user."""
    owners = [(origin.pod_uid, origin.container_id) for origin in (one, other)]
    return owners[0] == owners[1] and (one.is_contained or one.uid == other.uid)


def same_limits(one: Quota, other: Quota) -> bool:
    """True if two quotas have the same limits; tenant and gang may differ."""
    plain = (replace(quota, tenant=None, gang=None) for quota in (one, other))
    return next(plain).environ() == next(plain).environ()


def tenant_name(request: RegistrationRequest) -> TenantName:
    """Return the tenant of a process: its pod, its container, the one that it names, or its user's session.

    In a pod or container, only the kernel's report counts, and the named tenant is ignored. Raises Refused.
    """
    if request.pod is not None:
        return request.pod.tenant
    if request.origin.pod_uid is not None:
        return TenantName(f"pod-{request.origin.pod_uid}")
    if request.origin.container_id is not None:
        return TenantName(f"container-{request.origin.container_id[:12]}")
    wanted = request.hints.tenant
    if not wanted:
        return default_name(request.origin)
    if not TENANT.fullmatch(wanted):
        raise Refused(422, f"{wanted!a} is not a tenant's name")
    if wanted.startswith(CONTAINED):
        raise Refused(422, f"{wanted}: names of pods and containers are given by the node")
    if wanted.startswith(AUTOMATIC) and not wanted.startswith(f"{AUTOMATIC}{request.origin.uid}-"):
        raise Refused(403, f"{wanted}: kept for processes of that user that name no tenant")
    return TenantName(wanted)


def default_name(origin: Origin) -> TenantName:
    """Return the tenant of a plain process that names none; there is one per user and cgroup."""
    digest = hashlib.sha256(origin.cgroup.encode()).hexdigest()[:16]
    return TenantName(f"{AUTOMATIC}{origin.uid}-{digest}")
