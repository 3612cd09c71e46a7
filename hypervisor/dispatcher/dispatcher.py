# SPDX-License-Identifier: Apache-2.0
"""Thread that divides GPU time.

The dispatcher thread sleeps on the tenants' doorbells, reads their counters and runs the scheduler of each
GPU. It also writes the daemon's heartbeat, so a heartbeat means that GPU time is divided.

Turns last milliseconds. The thread is separate from the event loop, whose work would delay them. The event
loop replaces the thread's tenant list as a whole. `applied_generation` is the generation of the list in use,
so the event loop knows when the thread no longer reads an old segment.

The thread wakes up hundreds of times per second, mostly for one or two tenants. The cost of a step must not
depend on the number of other tenants.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypervisor.dispatcher.doorbells import Doorbells
from hypervisor.dispatcher.gang_steps import GangSteps
from hypervisor.dispatcher.run_queue import HEARTBEAT_NS, RunQueue, TenantHandle, TenantShare, publish
from hypervisor.dispatcher.usage import device_usage
from hypervisor.errors import SegmentError, SegmentFull
from hypervisor.model import GpuUuid, TenantName
from hypervisor.scheduler.gang_statistics import GangStats
from hypervisor.scheduler.memory_wait_queue import MemoryWaitQueue
from hypervisor.scheduler.statistics import SchedulerStats
from hypervisor.scheduler.types import Grant, SchedulerConfig
from hypervisor.shm.segments import MAX_DEVICES, StateSegment, uuid_bytes

logger = logging.getLogger(__name__)
MIN_SLEEP_NS = 150_000
"""Shortest time between two steps. Bounds the CPU time that tenants can cause by ringing doorbells."""


@dataclass(frozen=True, slots=True)
class TenantList:
    """All tenants and GPUs. The event loop passes it to the dispatcher thread."""

    generation: int = 0
    gpus: tuple[GpuUuid, ...] = ()
    """The index of a GPU is its entry in every policy segment."""
    members: tuple[TenantHandle, ...] = ()
    state: StateSegment | None = None


@dataclass(slots=True)
class TenantState:
    """State of a tenant in the dispatcher thread. A tenant with a new usage segment gets a new one."""

    member: TenantHandle
    created_ns: int = 0
    run_queues: list[RunQueue] = field(default_factory=list)
    """Run queues of the GPUs that the tenant uses."""
    gang_devices: int = 0
    """Bit per entry of the usage segment on which the tenant's processes were seen to wait for others. A
    tenant cannot clear a bit.
    """
    is_broken: bool = False
    is_unreadable: bool = False
    """True if the last read of its segment failed for lack of memory."""


class Dispatcher:
    """Work of the dispatcher thread.

    It calls `placed(tenant, gpus)` if a tenant's GPUs have changed, `broken(tenant, reason)` if a segment is
    damaged, and `readable(tenant, why_not)` if a segment can no longer be read, or can again ("").
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        start_ns: int,
        placed: Callable[[TenantName, frozenset[GpuUuid]], None],
        broken: Callable[[TenantName, str], None],
        readable: Callable[[TenantName, str], None] = lambda *_: None,
        poll: bool = False,
    ) -> None:
        self._config = config
        self._start_ns = start_ns
        self._placed = placed
        self._broken = broken
        self._readable = readable
        self._bells = Doorbells(poll=poll)
        self._tenant_list = TenantList()
        self._states: dict[TenantName, TenantState] = {}
        self._run_queues: dict[GpuUuid, RunQueue] = {}
        self._gangs = GangSteps(config)
        self._gpus: dict[bytes, GpuUuid] = {}
        self._beat_at_ns = 0
        self._is_stopping = False
        self._freed_elsewhere = False
        self._moved: set[TenantName] = set()
        """Tenants whose doorbell may have to be muted or unmuted."""
        self.applied_generation = 0
        self.stepped_at_ns = 0
        self.steps = 0

    @property
    def shares(self) -> Mapping[GpuUuid, Mapping[TenantName, TenantShare]]:
        """Shares of the tenants of each GPU in use. Any thread."""
        return {
            gpu: run_queue.shares for gpu, run_queue in list(self._run_queues.items()) if run_queue.shares
        }

    @property
    def turns(self) -> Mapping[GpuUuid, SchedulerStats]:
        """Scheduler counters of each GPU. Any thread."""
        return {gpu: run_queue.turns for gpu, run_queue in list(self._run_queues.items())}

    @property
    def gang_turns(self) -> GangStats:
        """Counters of the turns of gangs. Any thread."""
        return self._gangs.coordinator.stats

    @property
    def memory(self) -> Mapping[GpuUuid, MemoryWaitQueue]:
        """Memory wait queue of each GPU. Any thread."""
        return {gpu: run_queue.memory for gpu, run_queue in list(self._run_queues.items())}

    def memory_freed(self) -> None:
        """Notify tenants that wait for memory: memory was freed that no live process counts. Any thread."""
        if any(queue.counters.waiting for queue in self.memory.values()):
            self._freed_elsewhere = True
            self._bells.ring()

    def replace(self, tenants: TenantList) -> None:
        """Use this tenant list from the next step on. Any thread."""
        self._tenant_list = tenants
        self._bells.ring()

    def stop(self) -> None:
        """End `run`. Any thread."""
        self._is_stopping = True
        self._bells.ring()

    def run(self) -> None:
        """Divide GPU time until stopped."""
        while not self._is_stopping:
            begin_ns = time.monotonic_ns()
            self._bells.wait(self.step(begin_ns))
            # A tenant that rings all the time must not keep this thread busy.
            left_ns = begin_ns + MIN_SLEEP_NS - time.monotonic_ns()
            if left_ns > 0:
                time.sleep(left_ns / 1e9)

    def step(self, now_ns: int) -> int:
        """Process the doorbells that rang and the GPUs that are due; return the time of the next step."""
        self._bells.silence()
        tenants = self._apply_tenant_list()
        rang = self._bells.hear()
        for run_queue in self._run_queues.values():
            if not run_queue.preemptors.isdisjoint(rang):
                run_queue.preempt()
        is_freed_elsewhere, self._freed_elsewhere = self._freed_elsewhere, False
        is_beat_due = now_ns >= self._beat_at_ns + HEARTBEAT_NS or is_freed_elsewhere
        run_queues = self._run_queues.values()
        touched = self._look_around(rang, now_ns, is_beat_due=is_beat_due)
        self._schedule([queue for queue in run_queues if queue in touched], now_ns, is_freed_elsewhere)
        self._update_muting()
        if is_beat_due:
            self._beat(tenants, now_ns)
        self.steps += 1
        self.stepped_at_ns = now_ns
        return min([self._beat_at_ns + HEARTBEAT_NS, *(run_queue.due_ns for run_queue in run_queues)])

    def _schedule(self, touched: list[RunQueue], now_ns: int, is_freed_elsewhere: bool) -> None:
        """Run a step of these run queues: those linked by gangs together, the others one by one."""
        was_muted = {run_queue: run_queue.muted for run_queue in touched}
        expiries = {run_queue: self._bells.quantum_expiry(run_queue.entry) for run_queue in touched}
        linked = self._gangs.linked(now_ns, touched, self._run_queues)
        if linked:
            of_gangs = {queue: used_up for queue, used_up in expiries.items() if queue in linked}
            self._gangs.schedule(now_ns, of_gangs, is_freed_elsewhere=is_freed_elsewhere)
        for run_queue in touched:
            if run_queue not in linked:
                used_up = expiries[run_queue]
                self._gangs.schedule_one(now_ns, run_queue, used_up, is_freed_elsewhere=is_freed_elsewhere)
            self._set_turn_watch(run_queue)
            self._moved |= was_muted[run_queue] ^ run_queue.muted

    def _look_around(self, rang: Iterable[TenantName], now_ns: int, *, is_beat_due: bool) -> set[RunQueue]:
        """Read the counters of all tenants that may have changed. Return the run queues to schedule."""
        looked = set(self._states if is_beat_due else rang)
        touched = {
            d
            for d in self._run_queues.values()
            if is_beat_due
            or d.due_ns <= now_ns
            or (d.turn_watch is not None and self._bells.is_expired(d.entry))
        }
        for name in looked:
            touched.update(self._look(name, now_ns))
        asked: set[RunQueue] = set()
        while more := (touched | self._gangs.linked(now_ns, touched, self._run_queues)) - asked:
            touched |= more
            asked |= more
            for name in {name for run_queue in more for name in run_queue.polled} - looked:
                looked.add(name)
                touched.update(self._look(name, now_ns))
        return touched

    def _set_turn_watch(self, run_queue: RunQueue) -> None:
        turn_watch = run_queue.turn_watch
        if turn_watch is None:
            self._bells.set_turn_watch(run_queue.entry, None)
        else:
            self._bells.set_turn_watch(run_queue.entry, turn_watch, *run_queue.books_of(turn_watch.tenant))

    def _update_muting(self) -> None:
        """Mute the doorbells of tenants that are muted on all of their GPUs, and unmute the other ones."""
        for name in self._moved:
            state = self._states.get(name)
            if state is not None:
                is_muted = bool(state.run_queues) and all(name in d.muted for d in state.run_queues)
                self._bells.mute(name, is_muted=is_muted)
        self._moved.clear()

    def _apply_tenant_list(self) -> TenantList:
        """Return the current tenant list. If it is new, update states and doorbells, and drop old tenants."""
        tenants = self._tenant_list
        if tenants.generation == self.applied_generation:
            return tenants
        run_queues = self._run_queues
        self._run_queues = {
            gpu: run_queues.get(gpu) or RunQueue(self._config, gpu, entry)
            for entry, gpu in enumerate(tenants.gpus)
        }
        states, self._states = self._states, {}
        for member in tenants.members:
            state = states.get(member.tenant)
            if state is not None and state.member.usage is member.usage:
                self._states[member.tenant] = states.pop(member.tenant)
                state.member = member
                state.run_queues = [d for d in state.run_queues if d.gpu in self._run_queues]
            else:
                self._states[member.tenant] = TenantState(member)
        for name in states:  # tenants that left, or have new segments
            for run_queue in self._run_queues.values():
                run_queue.dequeue(name)
                run_queue.forget(name)
        self._bells.clear_turn_watches()
        self._moved.update(self._states)
        self._bells.listen(
            {member.tenant: member.usage.bell for member in tenants.members},
            {member.tenant: member.owner for member in tenants.members if member.owner},
        )
        self._beat_at_ns = 0  # read all tenants now: a new tenant must not wait for the next heartbeat
        self._gpus = {uuid_bytes(gpu): gpu for gpu in tenants.gpus}
        self.applied_generation = tenants.generation
        return tenants

    def _look(self, name: TenantName, now_ns: int) -> Iterable[RunQueue]:
        """Read a tenant's counters. Return the run queues of the GPUs that it uses, or used until now."""
        state = self._states.get(name)
        if state is None or state.is_broken:
            return ()
        member, before = state.member, state.run_queues
        try:
            sample = member.usage.sample()
        except SegmentFull as error:
            self._hold_back(state, str(error))
            return before
        except SegmentError as error:
            self._disable(state, str(error))
            return before
        if state.is_unreadable:
            self._readable(name, "")
        if state.is_unreadable or state.created_ns != sample.created_ns:
            # The published values are void: the segment is new, or its grants were withdrawn meanwhile.
            state.created_ns, state.is_unreadable = sample.created_ns, False
            state.gang_devices = 0
            for run_queue in self._run_queues.values():
                run_queue.forget(name)
        self._bells.looked_at(name, sample.doorbell, now_ns, sample.slots)
        state.gang_devices |= int(sample.gang_devices)
        found = device_usage(sample, self._gpus, state.gang_devices)
        state.run_queues = [self._run_queues[gpu] for gpu in found]
        for run_queue, figures in zip(state.run_queues, found.values(), strict=True):
            run_queue.update(member, figures)
        if state.run_queues == before:
            return before
        for run_queue in before:
            if run_queue not in state.run_queues:
                run_queue.dequeue(name)
        self._moved.add(name)
        self._placed(name, frozenset(found))
        return {*before, *state.run_queues}

    def _disable(self, state: TenantState, reason: str) -> None:
        """Withdraw all GPU time of a tenant with a damaged segment: its GPU time cannot be measured."""
        state.is_broken = True
        self._bells.ignore(state.member.tenant)
        self._withdraw(state)
        self._broken(state.member.tenant, reason)

    def _hold_back(self, state: TenantState, reason: str) -> None:
        """Withdraw all GPU time of a tenant whose segment cannot be read now. Later steps try again."""
        if not state.is_unreadable:
            state.is_unreadable = True
            self._withdraw(state)
            self._readable(state.member.tenant, reason)

    def _withdraw(self, state: TenantState) -> None:
        """Remove a tenant from all run queues and grant it nothing."""
        member, run_queues = state.member, state.run_queues
        state.run_queues = []
        for run_queue in run_queues:
            run_queue.dequeue(member.tenant)
        for entry in range(MAX_DEVICES):
            publish(member, entry, Grant(0, 1, is_shared=True))

    def _beat(self, tenants: TenantList, now_ns: int) -> None:
        self._beat_at_ns = now_ns
        beating: list[Any] = [member.policy for member in tenants.members]
        if tenants.state is not None:
            beating.append(tenants.state)
        for segment in beating:
            try:
                segment.beat(now_ns, self._start_ns)
            except SegmentError as error:
                logger.warning("%s", error)


class DispatcherThread(threading.Thread):
    """Thread that runs a Dispatcher. It calls `failed` with the exception if the Dispatcher raises one."""

    def __init__(self, work: Dispatcher, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name="arbitration", daemon=True)
        self._work = work
        self._failed = failed

    def run(self) -> None:
        try:
            self._work.run()
        except BaseException as error:
            self._failed(error)
