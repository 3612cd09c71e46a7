# SPDX-License-Identifier: Apache-2.0
"""Tenants, workers and GPUs: who is there now. Changed on the daemon's loop alone; holds no clock and no
files.
"""

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
"""Per tenant: the slots of its segment."""


@dataclass(slots=True)
class Tenant:
    """One tenant; `workers` may be empty for a while after the last has gone."""

    name: TenantName
    uid: int
    effective: EffectiveQuota
    proposed: Quota
    """What its first process asked for."""
    proposal_applied: bool = False
    """That was followed: what others say later may also be more."""
    pod_uid: str | None = None
    pod: str = ""
    """namespace/name, by the cluster's word; empty: not known."""
    containers: set[str] = field(default_factory=set)
    """Ids of the pod's containers whose processes have come here; they stay, whatever the pod says later."""
    has_ended: bool = False
    """Its pod is gone: nobody comes any more, so it is forgotten with its last process."""
    is_suspended: bool = False
    workers: dict[WorkerId, Worker] = field(default_factory=dict)
    gpus: frozenset[GpuUuid] = frozenset()
    """Where its processes have shown up."""
    empty_since_ns: int | None = None
    began_s: float = 0.0
    """Unix time of its first process; 0 if not known."""
    is_adopted: bool = False
    """Its processes came under quota before this daemon started, and not all have registered again."""

    def reservation(self) -> Reservation:
        """Return what it has set aside."""
        return Reservation(self.name, self.effective.quota, self.gpus, self.began_s)

    @property
    def is_occupied(self) -> bool:
        """True if a process of it lives. Only then does it hold its request, its memory and its place."""
        return bool(self.workers) or self.is_adopted


class Registry:
    """The live view."""

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
        """Tenants, there or not, whose launches an operator holds back."""
        self._by_key: dict[ProcessKey, WorkerId] = {}
        self._boot = boot
        self._overcommit_percent = overcommit_percent
        self._numbers = itertools.count(1)

    def register(self, request: RegistrationRequest, *, now_ns: int) -> tuple[Worker, list[Worker]]:
        """Return the worker for a process, and those that turn out to be dead. Raises Refused.

        The same process gets the same worker again, unless it has become another user's or entered a
        container meanwhile: the tenant that it was in is then not its own any more. Another process with a
        known pid means that the earlier one has gone.
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
        """Return a worker that registers again, perhaps since it now does more than ask NVML."""
        worker = self.workers[worker_id]
        if worker.is_nvml_only and not request.hints.is_nvml_only:
            worker = replace(worker, is_nvml_only=False)
            self.workers[worker_id] = self.tenants[worker.tenant].workers[worker_id] = worker
        return worker

    def worker_of(self, key: ProcessKey) -> Worker | None:
        """Return the worker that a process is."""
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
        """Take over a tenant whose processes came under quota before this daemon; they register again."""
        tenant.is_adopted = True
        tenant.empty_since_ns = now_ns
        self.tenants[tenant.name] = tenant

    def suspend(self, name: TenantName, *, is_suspended: bool) -> None:
        """Note that a tenant, there or not, is suspended, or no longer is."""
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
        """Return the tenants that have had no worker since then, and those without whose pod is gone."""
        return [
            t
            for t in self.tenants.values()
            if t.empty_since_ns is not None and (t.has_ended or t.empty_since_ns <= before_ns)
        ]

    def of_pod(self, pod_uid: str) -> list[Tenant]:
        """Return the tenants that a pod is: one, and one for each container with a quota of its own."""
        return [tenant for tenant in self.tenants.values() if tenant.pod_uid == pod_uid]

    def set_gpus(self, name: TenantName, gpus: frozenset[GpuUuid]) -> bool:
        """Note which GPUs a tenant is on; True if that is news."""
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
        """Take up what the book now says of a tenant; True if that changes its quota. Raises Refused."""
        tenant = self.tenants[name]
        effective = self.sources.resolve(
            name, tenant.pod_uid, tenant.proposed, proposal_applied=tenant.proposal_applied
        )
        if effective == tenant.effective:
            return False
        if tenant.is_occupied:  # else it is checked when its next process comes
            self.check(name, effective)
        tenant.effective = effective
        return True

    def source_for(self, request: RegistrationRequest, tenant: Tenant) -> str:
        """Return who said the quota, as a process has to see it: "environment" is its own environment.

        A process whose environment says something else than its tenant's first is held to the smaller of
        both.
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
        """Raise Refused if the node, or a user, has as many living tenants as it may have."""
        living = [tenant for tenant in self.tenants.values() if tenant.is_occupied]
        own = sorted((t for t in living if t.uid == origin.uid), key=lambda tenant: tenant.began_s)
        self.bounds.check_tenant(origin, len(living), [tenant.name for tenant in own])

    def _check_process_bound(self, origin: Origin) -> None:
        """Raise Refused if a user has as many processes as it may have."""
        payer = account_key(origin)
        own = sum(account_key(worker.origin) == payer for worker in self.workers.values())
        self.bounds.check_process(origin, own)

    def blocking_tenant(self, request: RegistrationRequest) -> Tenant | None:
        """Return a tenant without processes that keeps a new one from its name or its place; None: there
        is none, or the bound on tenants does not stand in the way.
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
    """Return True if two origins are of the same pod, container or plain user."""
    owners = [(origin.pod_uid, origin.container_id) for origin in (one, other)]
    return owners[0] == owners[1] and (one.is_contained or one.uid == other.uid)


def same_limits(one: Quota, other: Quota) -> bool:
    """Whether two quotas say the same, whatever they name the tenant and its gang."""
    plain = (replace(quota, tenant=None, gang=None) for quota in (one, other))
    return next(plain).environ() == next(plain).environ()


def tenant_name(request: RegistrationRequest) -> TenantName:
    """Return the tenant of a process: its pod, its container, what it wishes, or its user's session. Raises
    Refused.

    In a pod or container the kernel's word stands and the wish is not heard.
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
    """Return the tenant of a plain process that names none: one per user and cgroup."""
    digest = hashlib.sha256(origin.cgroup.encode()).hexdigest()[:16]
    return TenantName(f"{AUTOMATIC}{origin.uid}-{digest}")
