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
from hypervisor.dispatcher.run_queue import BEAT_NS, Division, Member, Share, publish
from hypervisor.dispatcher.usage import figures_in
from hypervisor.errors import SegmentError
from hypervisor.model import GpuUuid, TenantName
from hypervisor.scheduler.memory_wait_queue import MemoryQueue
from hypervisor.scheduler.statistics import Turns
from hypervisor.scheduler.types import Grant, Pace
from hypervisor.shm.segments import MOST_DEVICES, StateSegment, uuid_bytes

logger = logging.getLogger(__name__)
SHORTEST_SLEEP_NS = 150_000
"""Between two looks, however much the bells ring: bounds what tenants can cost."""


@dataclass(frozen=True, slots=True)
class Roster:
    """All tenants and GPUs."""

    number: int = 0
    gpus: tuple[GpuUuid, ...] = ()
    """A GPU's place here is its entry in every policy."""
    members: tuple[Member, ...] = ()
    state: StateSegment | None = None


@dataclass(slots=True)
class Row:
    """What the thread keeps of a tenant, as long as it has this segment."""

    member: Member
    created_ns: int = 0
    divisions: list[Division] = field(default_factory=list)
    """Of the GPUs that it is on."""
    is_broken: bool = False


class Arbitration:
    """The thread's work. `placed(tenant, gpus)` and `broken(tenant, reason)` are called from the thread."""

    def __init__(
        self,
        pace: Pace,
        *,
        start_ns: int,
        placed: Callable[[TenantName, frozenset[GpuUuid]], None],
        broken: Callable[[TenantName, str], None],
        poll: bool = False,
    ) -> None:
        self._pace = pace
        self._start_ns = start_ns
        self._placed = placed
        self._broken = broken
        self._bells = Doorbells(poll=poll)
        self._roster = Roster()
        self._rows: dict[TenantName, Row] = {}
        self._divisions: dict[GpuUuid, Division] = {}
        self._gpus: dict[bytes, GpuUuid] = {}
        self._beat_at_ns = 0
        self._is_stopping = False
        self._freed_elsewhere = False
        self._moved: set[TenantName] = set()
        """Those of whom it is to be said anew whether their bells are heard."""
        self.adopted = 0
        self.stepped_at_ns = 0
        self.steps = 0

    @property
    def shares(self) -> Mapping[GpuUuid, Mapping[TenantName, Share]]:
        """Who has what of each GPU that somebody is on. This and the next two from any thread."""
        return {gpu: division.shares for gpu, division in list(self._divisions.items()) if division.shares}

    @property
    def turns(self) -> Mapping[GpuUuid, Turns]:
        """Counts of each GPU."""
        return {gpu: division.turns for gpu, division in list(self._divisions.items())}

    @property
    def memory(self) -> Mapping[GpuUuid, MemoryQueue]:
        """Who waits for memory of each GPU."""
        return {gpu: division.memory for gpu, division in list(self._divisions.items())}

    def memory_freed(self) -> None:
        """Memory came free that is in no living process's books: tell who waits for some. From any thread."""
        if any(queue.tally.waiting for queue in self.memory.values()):
            self._freed_elsewhere = True
            self._bells.ring()

    def replace(self, roster: Roster) -> None:
        """Work with another roster from the next look on."""
        self._roster = roster
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
            left_ns = begin_ns + SHORTEST_SLEEP_NS - time.monotonic_ns()
            if left_ns > 0:
                time.sleep(left_ns / 1e9)

    def step(self, now_ns: int) -> int:
        """Look at who has rung and at GPUs that are due; return when to look again if no bell rings."""
        self._bells.silence()
        roster = self._take_over()
        rang = self._bells.hear()
        for division in self._divisions.values():
            if not division.preempting.isdisjoint(rang):
                division.make_room()
        is_freed_elsewhere, self._freed_elsewhere = self._freed_elsewhere, False
        is_beat_due = now_ns >= self._beat_at_ns + BEAT_NS or is_freed_elsewhere
        divisions = self._divisions.values()
        touched = self._look_around(rang, now_ns, is_beat_due=is_beat_due)
        for division in divisions:
            if division in touched:
                was_unheard = division.unheard
                used_up = self._bells.used_up(division.entry)
                division.divide(now_ns, used_up=used_up, is_freed_elsewhere=is_freed_elsewhere)
                self._keep_vigil(division)
                self._moved |= was_unheard ^ division.unheard
        self._hush()
        if is_beat_due:
            self._beat(roster, now_ns)
        self.steps += 1
        self.stepped_at_ns = now_ns
        return min([self._beat_at_ns + BEAT_NS, *(division.due_ns for division in divisions)])

    def _look_around(self, rang: Iterable[TenantName], now_ns: int, *, is_beat_due: bool) -> set[Division]:
        """Look at all tenants that there can be news of; return which GPUs are to be divided anew."""
        looked = set(self._rows if is_beat_due else rang)
        touched = {
            d
            for d in self._divisions.values()
            if is_beat_due or d.due_ns <= now_ns or (d.vigil is not None and self._bells.is_over(d.entry))
        }
        for name in looked:
            touched.update(self._look(name, now_ns))
        asked: set[Division] = set()
        while more := touched - asked:
            asked |= more
            for name in {name for division in more for name in division.watched} - looked:
                looked.add(name)
                touched.update(self._look(name, now_ns))
        return touched

    def _keep_vigil(self, division: Division) -> None:
        vigil = division.vigil
        if vigil is None:
            self._bells.keep_vigil(division.entry, None)
        else:
            self._bells.keep_vigil(division.entry, vigil, *division.books_of(vigil.tenant))

    def _hush(self) -> None:
        """Hear those no more whose rings are no news on any of their GPUs."""
        for name in self._moved:
            row = self._rows.get(name)
            if row is not None:
                is_unheard = bool(row.divisions) and all(name in d.unheard for d in row.divisions)
                self._bells.hush(name, is_unheard=is_unheard)
        self._moved.clear()

    def _take_over(self) -> Roster:
        """Return the roster in force, and forget those who have left."""
        roster = self._roster
        if roster.number == self.adopted:
            return roster
        divisions = self._divisions
        self._divisions = {
            gpu: divisions.get(gpu) or Division(self._pace, gpu, entry)
            for entry, gpu in enumerate(roster.gpus)
        }
        rows, self._rows = self._rows, {}
        for member in roster.members:
            row = rows.get(member.tenant)
            if row is not None and row.member.usage is member.usage:
                self._rows[member.tenant] = rows.pop(member.tenant)
                row.member = member
                row.divisions = [d for d in row.divisions if d.gpu in self._divisions]
            else:
                self._rows[member.tenant] = Row(member)
        for name in rows:  # gone, or with other segments
            for division in self._divisions.values():
                division.leave(name)
                division.forget(name)
        self._bells.end_vigils()
        self._moved.update(self._rows)
        self._bells.listen({member.tenant: member.usage.bell for member in roster.members})
        self._beat_at_ns = 0  # looks at everybody: newcomers must not wait for their first heartbeat
        self._gpus = {uuid_bytes(gpu): gpu for gpu in roster.gpus}
        self.adopted = roster.number
        return roster

    def _look(self, name: TenantName, now_ns: int) -> Iterable[Division]:
        """Read a tenant's books; return the divisions of the GPUs that it is on, or was until now."""
        row = self._rows.get(name)
        if row is None or row.is_broken:
            return ()
        member, before = row.member, row.divisions
        try:
            sample = member.usage.sample()
        except SegmentError as error:
            self._give_up(row, str(error))
            return before
        if row.created_ns != sample.created_ns:  # the books were begun anew, and with them the count of time
            row.created_ns = sample.created_ns
            for division in self._divisions.values():
                division.forget(name)
        self._bells.looked_at(name, sample.doorbell, now_ns)
        found = figures_in(sample, self._gpus)
        row.divisions = [self._divisions[gpu] for gpu in found]
        for division, figures in zip(row.divisions, found.values(), strict=True):
            division.note(member, figures)
        if row.divisions == before:
            return before
        for division in before:
            if division not in row.divisions:
                division.leave(name)
        self._moved.add(name)
        self._placed(name, frozenset(found))
        return {*before, *row.divisions}

    def _give_up(self, row: Row, reason: str) -> None:
        """A tenant that spoils its own books gets no GPU time: nothing of it can be measured any more."""
        row.is_broken = True
        member, divisions = row.member, row.divisions
        row.divisions = []
        for division in divisions:
            division.leave(member.tenant)
        self._bells.ignore(member.tenant)
        for entry in range(MOST_DEVICES):
            publish(member, entry, Grant(0, 1, is_shared=True))
        self._broken(member.tenant, reason)

    def _beat(self, roster: Roster, now_ns: int) -> None:
        self._beat_at_ns = now_ns
        beating: list[Any] = [member.policy for member in roster.members]
        if roster.state is not None:
            beating.append(roster.state)
        for segment in beating:
            try:
                segment.beat(now_ns, self._start_ns)
            except SegmentError as error:
                logger.warning("%s", error)


class ArbitrationThread(threading.Thread):
    """Runs an Arbitration; `failure` is why it ended, if it did on its own."""

    def __init__(self, work: Arbitration, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name="arbitration", daemon=True)
        self._work = work
        self._failed = failed

    def run(self) -> None:
        try:
            self._work.run()
        except BaseException as error:
            self._failed(error)
