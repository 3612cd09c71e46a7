# SPDX-License-Identifier: Apache-2.0
"""The node: what the daemon knows and does, between the HTTP calls, the segments and the arbitration.

Everything here runs on the loop's thread; what other threads report comes in through `call_soon_threadsafe`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from hypervisor.config.settings import Config, Quotas
from hypervisor.errors import Refused, SegmentError, SegmentFull, SegmentHeld
from hypervisor.host.departed import DepartedProcesses
from hypervisor.host.peer import Peers
from hypervisor.host.processes import Processes
from hypervisor.model import (
    Admission,
    ClientHints,
    GpuSample,
    GpuUuid,
    Origin,
    Peer,
    PodRef,
    ProcessKey,
    Registration,
    RegistrationRequest,
    TenantName,
    Worker,
    WorkerId,
)
from hypervisor.node.commands import Command, CommandName
from hypervisor.node.events import EventLog, note
from hypervisor.node.inventory import Inventory
from hypervisor.node.operators import Operators
from hypervisor.node.places import Places
from hypervisor.node.quota_policy import QuotaSources
from hypervisor.node.recovery import Recovery
from hypervisor.node.registry import Registry, Tenant
from hypervisor.node.state_store import StateStore
from hypervisor.node.tenant_segments import TenantSegments
from hypervisor.shm.segment_store import Segments

logger = logging.getLogger(__name__)
ROOT = 0
CONFLICT = 409
"""Status of a refusal that passes once another tenant's process ends."""
MAX_REFUSALS = 1024


class Node:
    """The live node."""

    def __init__(
        self,
        config: Config,
        *,
        tenancy: TenantSegments,
        segments: Segments,
        inventory: Inventory,
        events: EventLog,
        operators_gid: int | None,
    ) -> None:
        self.config = config
        self.events = events
        self.tenancy = tenancy
        book = QuotaSources(admission=cast(Admission, config.settings.admission))
        book.default, book.config = config.quotas.default, config.quotas.tenants
        self.registry = Registry(
            book,
            boot=os.urandom(4).hex(),
            overcommit_percent=config.settings.memory_overcommit,
            places=Places(
                config.settings.max_tenants,
                config.settings.max_tenants_per_user,
                config.settings.max_processes_per_user,
            ),
        )
        self.inventory = inventory
        self.departed = DepartedProcesses()
        self.wake: Callable[[WorkerId], None] = lambda _: None
        self.place: Callable[[Origin], PodRef | None] = lambda _: None
        """Where the cluster says that a process runs; raises Refused."""
        self.adopted: Callable[[Tenant], None] = lambda _: None
        """Told of tenants that were there before this daemon."""
        self.before: Callable[[Origin], None] = lambda _: None
        """Called before a process is taken in; raises Refused."""
        self.broken: dict[TenantName, str] = {}
        """Tenants that have spoiled their books, and how."""
        self.unreadable: dict[TenantName, str] = {}
        """Tenants whose books cannot be read at the moment, and why."""
        self.survival = Recovery(
            StateStore(config.settings.state_dir), self.registry, tenancy, segments, events
        )
        self.operators = Operators(self.registry, self.survival, events, self._follow)
        self.peers = Peers()
        self._processes = Processes()
        self._refusals: dict[ProcessKey, str] = {}
        """By process, the last one, of those that may ask again."""
        self._operators_gid = operators_gid

    def note(self, kind: str, text: str, *, tenant: str = "", level: int = logging.INFO) -> None:
        """Write an event down."""
        note(self.events, kind, text, tenant=tenant, level=level)

    # ---- processes ----

    def register(self, connection: Any, wish: ClientHints, caller: Peer | None = None) -> Registration:
        """Take a process in; `caller` says which it is where the connection does not. Raises Refused."""
        if not self.tenancy.gpus:
            raise Refused(503, "the daemon does not know this node's GPUs yet: NVML has not answered")
        calling = self.peers.again(caller) if caller is not None else self.peers.held(connection)
        with calling as (peer, pidfd):
            return self._take_in(peer, pidfd, wish)

    def _take_in(self, peer: Peer, pidfd: int, said: ClientHints) -> Registration:
        wish = replace(said, pid=peer.namespace_pid)
        try:
            self.before(peer.origin)
            claim = RegistrationRequest(
                peer.key, peer.origin, wish, self.place(peer.origin), at_s=time.time()
            )
            is_known = self.registry.worker_of(peer.key) is not None
            worker, gone = self._admit(claim)
        except Refused as error:
            self._note_refusal(peer.key, f"process {peer.key.host_pid} ({wish.name}): {error}")
            raise
        self._refusals.pop(peer.key, None)
        for earlier in gone:
            self._left(earlier)
        try:
            self._processes.watch(peer.key, pidfd, self.died)
            self._settle(worker)
        except (SegmentError, OSError) as error:
            self._processes.unwatch(peer.key)
            self.registry.remove(worker.id, now_ns=time.monotonic_ns())
            self.note("segment_failed", str(error), tenant=worker.tenant, level=logging.ERROR)
            raise Refused(status_of(error), str(error)) from error
        if is_known:
            self.tenancy.reap(worker.tenant)  # it may have replaced its image, and left the old one's slot
        return self._registration(worker, claim)

    def _admit(self, claim: RegistrationRequest) -> tuple[Worker, list[Worker]]:
        """Take a process into the registry, whatever only dead ones hold. Raises Refused."""
        empty = self.registry.in_the_way(claim)
        if empty is not None:
            self._forget_if_dead(empty)
        try:
            return self.registry.register(claim, now_ns=time.monotonic_ns())
        except Refused as error:
            if error.status != CONFLICT or not self._notice_deaths():
                raise
        return self.registry.register(claim, now_ns=time.monotonic_ns())

    def _notice_deaths(self) -> bool:
        """Notice processes that have ended meanwhile; True if there were some."""
        ended = self._processes.ended()
        for key in ended:
            self.died(key)
        return self._leave_dead_tenants() or bool(ended)

    def _leave_dead_tenants(self) -> bool:
        """Give up tenants that were taken over, and whose processes ended without coming back."""
        dead = [
            tenant
            for tenant in self.registry.tenants.values()
            if tenant.is_adopted and not tenant.workers and not self._has_living(tenant)
        ]
        for tenant in dead:
            tenant.is_adopted = False
        return bool(dead)

    def _has_living(self, tenant: Tenant) -> bool:
        """True if a process has a slot in the tenant's segment, or that cannot be told now."""
        opened = self.tenancy.open_tenants.get(tenant.name)
        if opened is None or tenant.name in self.broken:
            return tenant.name in self.survival.unopened
        try:
            return bool(opened.usage.count_living())
        except SegmentFull:
            return True
        except SegmentError as error:
            logger.warning("%s", error)
            return False

    def _note_refusal(self, key: ProcessKey, text: str) -> None:
        """Write a refusal down, once for a process that asks again and again."""
        if self._refusals.get(key) == text:
            return
        if len(self._refusals) >= MAX_REFUSALS:
            self._refusals.clear()
        self._refusals[key] = text
        self.note("refused", text, level=logging.WARNING)

    def _settle(self, worker: Worker) -> None:
        tenant = self.registry.tenants[worker.tenant]
        opened = self.tenancy.open_tenants.get(worker.tenant)
        if opened is not None and (worker.tenant in self.broken or not opened.usage.is_whole):
            self.tenancy.reopen(tenant)
            self.broken.pop(worker.tenant, None)
        self.survival.open(tenant)
        self.survival.unopened.pop(worker.tenant, None)
        self.tenancy.publish([tenant])
        self.survival.save()
        text = f"process {worker.key.host_pid} ({worker.name})"
        self.note("registered", text, tenant=worker.tenant, level=logging.DEBUG)

    def _registration(self, worker: Worker, claim: RegistrationRequest) -> Registration:
        opened = self.tenancy.open_tenants[worker.tenant]
        return Registration(
            worker=worker.id,
            host_pid=worker.key.host_pid,
            tenant=worker.tenant,
            usage=opened.usage.name,
            policy=opened.policy.name,
            source=self.registry.source_for(claim, self.registry.tenants[worker.tenant]),
        )

    def hand_over(self, connection: Any, name: TenantName) -> None:
        """Hand a tenant's segments to its process, which else looks for them in its /dev/shm."""
        try:
            self.tenancy.hand_over(name, connection)
        except OSError as error:
            self.note("files_not_sent", f"{error.strerror}", tenant=name, level=logging.WARNING)

    def died(self, key: ProcessKey) -> None:
        """A registered process has gone."""
        worker = self.registry.worker_of(key)
        if worker is not None:
            self.registry.remove(worker.id, now_ns=time.monotonic_ns())
            self._left(worker)

    def _left(self, worker: Worker) -> None:
        self._processes.unwatch(worker.key)
        self.departed.add(worker.key)
        self.wake(worker.id)
        self.tenancy.reap(worker.tenant)
        text = f"process {worker.key.host_pid} ({worker.name})"
        self.note("exited", text, tenant=worker.tenant, level=logging.DEBUG)

    def reaped(self, slots: int) -> None:
        """Dead processes' slots were cleared."""
        if slots:
            self.events.counts["slots_cleared"] += slots

    # ---- commands ----

    def worker(self, worker_id: WorkerId) -> Worker | None:
        """Return a worker, if it is known to this daemon."""
        return self.registry.workers.get(worker_id)

    def next_command(self, worker_id: WorkerId, after: int) -> Command | None:
        """Return the next command for a worker."""
        queue = self.registry.queues.get(worker_id)
        return queue.next(after) if queue is not None else None

    def finished(self, worker_id: WorkerId, number: int, message: str, *, ok: bool) -> None:
        """A worker tells how a command went. Raises Refused."""
        worker = self.registry.workers.get(worker_id)
        if worker is None:
            raise Refused(404, "no such worker: register again")
        text = f"command {number} of process {worker.key.host_pid}: {'done' if ok else 'failed'} {message}"
        self.note("command_done" if ok else "command_failed", text.strip(), tenant=worker.tenant)

    def command(self, tenant: Tenant, name: CommandName) -> None:
        """Tell all of a tenant's workers to do something."""
        for worker_id in tenant.workers:
            self.registry.queues[worker_id].post(name)
            self.wake(worker_id)
        opened = self.tenancy.open_tenants.get(tenant.name)
        if opened is not None:
            opened.policy.command()

    # ---- operators ----

    def is_operator(self, peer: Peer) -> bool:
        """Whether a peer may change quotas: root, the daemon's user or its group, and not from inside a
        pod.
        """
        is_theirs = peer.origin.uid in (ROOT, os.geteuid()) or self._operators_gid in peer.groups
        return is_theirs and self.is_of_the_node(peer)

    def is_of_the_node(self, peer: Peer) -> bool:
        """Whether a peer runs in no pod and no container, but for the daemon's own. In a cluster a control
        group of no known layout may be an unknown runtime's container.
        """
        is_known = not (self.config.settings.kubernetes and peer.origin.unknown_group)
        return peer.is_of_the_node and is_known

    def _follow(self, tenant: Tenant, command: CommandName) -> None:
        """Let a tenant follow its quota or its suspension."""
        self.tenancy.publish([tenant])
        self.command(tenant, command)

    def decide_again(self, name: TenantName) -> bool:
        """Let a tenant follow what is now said of its quota; True if that is news. Raises Refused."""
        if not self.registry.decide_again(name):
            return False
        self._follow(self.registry.tenants[name], "refresh")
        self.survival.save()
        return True

    def reread(self, quotas: Quotas) -> None:
        """Take up the configuration file's quotas."""
        self.registry.book.default, self.registry.book.config = quotas.default, quotas.tenants
        for name in list(self.registry.tenants):
            try:
                self.decide_again(name)
            except Refused as error:
                self.note("quota_kept", f"keeps its quota: {error}", tenant=name, level=logging.WARNING)
        self.note("config_read", "quotas read again")

    # ---- GPUs ----

    def sampled(self, samples: tuple[GpuSample, ...]) -> None:
        """NVML has answered."""
        before = self.inventory.samples
        if any(s.memory_used_bytes < b.memory_used_bytes for s in samples if (b := before.get(s.gpu.uuid))):
            self.tenancy.memory_freed()
        in_use = {gpu for tenant in self.registry.tenants.values() for gpu in tenant.gpus}
        if self.inventory.take(samples, in_use=in_use):
            self.registry.gpus = {gpu.uuid: gpu for gpu in self.inventory.gpus}
            self.tenancy.gpus = list(self.inventory.gpus)
            for tenant in self.survival.adopt():
                self.adopted(tenant)
            self.tenancy.publish(self.registry.tenants.values())
        self._show_gpus()

    def _show_gpus(self) -> None:
        self.inventory.show({gpu.uuid: self.tenants_on(gpu.uuid) for gpu in self.inventory.gpus})

    def tenants_on(self, gpu: GpuUuid) -> int:
        """Return how many tenants have processes on a GPU."""
        return sum(gpu in tenant.gpus for tenant in self.registry.tenants.values())

    def placed(self, name: TenantName, gpus: frozenset[GpuUuid]) -> None:
        """A tenant has shown up on a GPU, or left one."""
        if name in self.registry.tenants:
            self.registry.place(name, gpus)
            self._show_gpus()

    def spoiled(self, name: TenantName, reason: str) -> None:
        """A tenant's books cannot be used any more."""
        self.broken[name] = reason
        self.note("books_spoiled", f"gets no GPU time: {reason}", tenant=name, level=logging.ERROR)

    def readable(self, name: TenantName, reason: str) -> None:
        """A tenant's books cannot be read now, or, without a reason, can be again."""
        if reason:
            self.unreadable[name] = reason
            self.note("books_unreadable", f"gets no GPU time: {reason}", tenant=name, level=logging.WARNING)
        elif self.unreadable.pop(name, None) is not None:
            self.note("books_readable", "its books can be read again", tenant=name)

    def problem_of(self, name: TenantName) -> str:
        """Return why a tenant's books cannot be used; "": they can."""
        return self.broken.get(name) or self.unreadable.get(name) or self.survival.unopened.get(name) or ""

    # ---- time passing, beginning and end ----

    def sweep(self, now_ns: int) -> None:
        """Forget tenants whose last process went long ago, and close what nobody looks at."""
        self.survival.retry()
        self.tenancy.close_retired()
        self.survival.open_again()
        self.tenancy.reap_all()
        for name, its in self.tenancy.open_tenants.items():
            if name not in self.broken and not its.usage.is_whole:
                self.spoiled(name, f"{its.usage.name} was cut short")
        self._leave_dead_tenants()
        for tenant in self.registry.empty_tenants(before_ns=now_ns - self.config.settings.linger):
            self._forget_if_dead(tenant)

    def _forget_if_dead(self, tenant: Tenant) -> None:
        """Forget a tenant and remove its segments, unless a process of it lives."""
        if self._has_living(tenant):
            return
        try:
            if not self.tenancy.retire(tenant.name):  # a process is about to join
                return
        except SegmentError as error:
            logger.warning("%s", error)
            return
        self.broken.pop(tenant.name, None)
        self.unreadable.pop(tenant.name, None)
        self.registry.forget(tenant.name)
        self.note("tenant_gone", "has no process left", tenant=tenant.name)
        self.survival.save()

    def reasons_not_ready(self) -> list[str]:
        """Return what keeps the daemon from doing its work."""
        if not self.tenancy.gpus:
            failed = [f"card {card.index}: {card.error}" for card in self.inventory.failed_cards[:1]]
            reason = self.inventory.trouble or "".join(failed) or "NVML has not answered yet"
            return [f"no GPU known: {reason}"]
        return []

    def warnings(self) -> list[str]:
        """Return what operators should know, though the daemon does its work."""
        problem = self.survival.store.problem
        return [f"{problem}; quotas and suspensions set now may not outlive the daemon"] if problem else []

    def close(self) -> None:
        """Stop watching processes."""
        self._processes.close()


def status_of(error: Exception) -> int:
    """Return how a process is refused: for good only where a later try is of no use."""
    return 409 if isinstance(error, SegmentHeld) else 503 if isinstance(error, SegmentFull | OSError) else 500
