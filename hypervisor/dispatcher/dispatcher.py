# SPDX-License-Identifier: Apache-2.0
"""The thread that divides GPU time: sleeps on the tenants' doorbells, reads their books, lets the division of
each GPU decide, and beats the daemon's heart, so that a beating heart means that time is divided.

A thread of its own, since turns last milliseconds and the loop's work must not delay them. It works on a
roster that the loop replaces as a whole; `adopted` tells which one is in use, so that the loop knows when
nobody touches an old segment any more.

It wakes up hundreds of times a second, mostly because of one or two tenants: what a step costs must not
depend on how many others there are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypervisor.dispatcher.doorbells import Doorbells
from hypervisor.dispatcher.run_queue import HEARTBEAT_NS, RunQueue, TenantHandle, TenantShare, publish
from hypervisor.dispatcher.usage import device_usage
from hypervisor.errors import SegmentError, SegmentFull
from hypervisor.model import GpuUuid, TenantName
from hypervisor.scheduler.memory_wait_queue import MemoryWaitQueue
from hypervisor.scheduler.statistics import SchedulerStats
from hypervisor.scheduler.types import Grant, SchedulerConfig
from hypervisor.shm.segments import MOST_DEVICES, StateSegment, uuid_bytes

logger = logging.getLogger(__name__)
MIN_SLEEP_NS = 150_000
"""Between two looks, however much the bells ring: bounds what tenants can cost."""


@dataclass(frozen=True, slots=True)
class TenantList:
    """All tenants and GPUs."""

    generation: int = 0
    gpus: tuple[GpuUuid, ...] = ()
    """A GPU's place here is its entry in every policy."""
    members: tuple[TenantHandle, ...] = ()
    state: StateSegment | None = None


@dataclass(slots=True)
class TenantState:
    """What the thread keeps of a tenant, as long as it has this segment."""

    member: TenantHandle
    created_ns: int = 0
    run_queues: list[RunQueue] = field(default_factory=list)
    """Of the GPUs that it is on."""
    is_broken: bool = False
    is_unreadable: bool = False
    """Its books could not be read at the last look, for want of memory."""


class Dispatcher:
    """The thread's work. `placed(tenant, gpus)`, `broken(tenant, reason)` and `readable(tenant, why_not)` are
    called from the thread.
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
        self._gpus: dict[bytes, GpuUuid] = {}
        self._beat_at_ns = 0
        self._is_stopping = False
        self._freed_elsewhere = False
        self._moved: set[TenantName] = set()
        """Those of whom it is to be said anew whether their bells are heard."""
        self.applied_generation = 0
        self.stepped_at_ns = 0
        self.steps = 0

    @property
    def shares(self) -> Mapping[GpuUuid, Mapping[TenantName, TenantShare]]:
        """Who has what of each GPU that somebody is on. This and the next two from any thread."""
        return {
            gpu: run_queue.shares for gpu, run_queue in list(self._run_queues.items()) if run_queue.shares
        }

    @property
    def turns(self) -> Mapping[GpuUuid, SchedulerStats]:
        """Counts of each GPU."""
        return {gpu: run_queue.turns for gpu, run_queue in list(self._run_queues.items())}

    @property
    def memory(self) -> Mapping[GpuUuid, MemoryWaitQueue]:
        """Who waits for memory of each GPU."""
        return {gpu: run_queue.memory for gpu, run_queue in list(self._run_queues.items())}

    def memory_freed(self) -> None:
        """Memory came free that is in no living process's books: tell who waits for some. From any thread."""
        if any(queue.counters.waiting for queue in self.memory.values()):
            self._freed_elsewhere = True
            self._bells.ring()

    def replace(self, tenants: TenantList) -> None:
        """Work with another roster from the next look on."""
        self._tenant_list = tenants
        self._bells.ring()

    def stop(self) -> None:
        """End `run`."""
        self._is_stopping = True
        self._bells.ring()

    def run(self) -> None:
        """Divide GPU time until stopped."""
        while not self._is_stopping:
            begin_ns = time.monotonic_ns()
            self._bells.wait(self.step(begin_ns))
            # Not too soon again, so that tenants who ring all the time cannot wear us out.
            left_ns = begin_ns + MIN_SLEEP_NS - time.monotonic_ns()
            if left_ns > 0:
                time.sleep(left_ns / 1e9)

    def step(self, now_ns: int) -> int:
        """Look at who has rung and at GPUs that are due; return when to look again if no bell rings."""
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
        for run_queue in run_queues:
            if run_queue in touched:
                was_muted = run_queue.muted
                used_up = self._bells.quantum_expiry(run_queue.entry)
                run_queue.schedule(now_ns, used_up=used_up, is_freed_elsewhere=is_freed_elsewhere)
                self._set_turn_watch(run_queue)
                self._moved |= was_muted ^ run_queue.muted
        self._update_muting()
        if is_beat_due:
            self._beat(tenants, now_ns)
        self.steps += 1
        self.stepped_at_ns = now_ns
        return min([self._beat_at_ns + HEARTBEAT_NS, *(run_queue.due_ns for run_queue in run_queues)])

    def _look_around(self, rang: Iterable[TenantName], now_ns: int, *, is_beat_due: bool) -> set[RunQueue]:
        """Look at all tenants that there can be news of; return which GPUs are to be divided anew."""
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
        while more := touched - asked:
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
        """Hear those no more whose rings are no news on any of their GPUs."""
        for name in self._moved:
            state = self._states.get(name)
            if state is not None:
                is_muted = bool(state.run_queues) and all(name in d.muted for d in state.run_queues)
                self._bells.mute(name, is_muted=is_muted)
        self._moved.clear()

    def _apply_tenant_list(self) -> TenantList:
        """Return the roster in force, and forget those who have left."""
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
        for name in states:  # gone, or with other segments
            for run_queue in self._run_queues.values():
                run_queue.dequeue(name)
                run_queue.forget(name)
        self._bells.clear_turn_watches()
        self._moved.update(self._states)
        self._bells.listen({member.tenant: member.usage.bell for member in tenants.members})
        self._beat_at_ns = 0  # looks at everybody: newcomers must not wait for their first heartbeat
        self._gpus = {uuid_bytes(gpu): gpu for gpu in tenants.gpus}
        self.applied_generation = tenants.generation
        return tenants

    def _look(self, name: TenantName, now_ns: int) -> Iterable[RunQueue]:
        """Read a tenant's books; return the divisions of the GPUs that it is on, or was until now."""
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
            # What was published counts no more: a new segment, or nothing was granted meanwhile.
            state.created_ns, state.is_unreadable = sample.created_ns, False
            for run_queue in self._run_queues.values():
                run_queue.forget(name)
        self._bells.looked_at(name, sample.doorbell, now_ns)
        found = device_usage(sample, self._gpus)
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
        """A tenant that spoils its own books gets no GPU time: nothing of it can be measured any more."""
        state.is_broken = True
        self._bells.ignore(state.member.tenant)
        self._withdraw(state)
        self._broken(state.member.tenant, reason)

    def _hold_back(self, state: TenantState, reason: str) -> None:
        """A tenant whose books cannot be read now gets no GPU time until they can: it is looked at again."""
        if not state.is_unreadable:
            state.is_unreadable = True
            self._withdraw(state)
            self._readable(state.member.tenant, reason)

    def _withdraw(self, state: TenantState) -> None:
        """Take a tenant off all GPUs, and grant it nothing."""
        member, run_queues = state.member, state.run_queues
        state.run_queues = []
        for run_queue in run_queues:
            run_queue.dequeue(member.tenant)
        for entry in range(MOST_DEVICES):
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
    """Runs a Dispatcher; `failure` is why it ended, if it did on its own."""

    def __init__(self, work: Dispatcher, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name="arbitration", daemon=True)
        self._work = work
        self._failed = failed

    def run(self) -> None:
        try:
            self._work.run()
        except BaseException as error:
            self._failed(error)
