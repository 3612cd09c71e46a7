# SPDX-License-Identifier: Apache-2.0
"""The thread that divides GPU time: sleeps on the tenants' doorbells, reads their books, asks the arbiter
of each GPU, publishes what it decides, and beats the daemon's heart, so that a beating heart means that
time is divided.

A thread of its own, since turns last milliseconds and the loop's work must not delay them. It works on a
roster that the loop replaces as a whole; `adopted` tells which one is in use, so that the loop knows when
nobody touches an old segment any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypervisor.core.arbiter import Arbiter
from hypervisor.core.memory_queue import MemoryQueue, MemorySeen
from hypervisor.core.model import GpuUuid, TenantName
from hypervisor.core.pace import Decision, Grant, Pace, Rating, Seen, Terms
from hypervisor.core.turns import Turns
from hypervisor.edge.doorbell import Doorbells
from hypervisor.edge.segments import MOST_DEVICES, PolicySegment, StateSegment, UsageSegment, uuid_bytes
from hypervisor.errors import SegmentError

logger = logging.getLogger(__name__)
BEAT_NS = 100_000_000
MOST_NS = (1 << 64) - 1
"""A tenant that says it has spent this much is granted no more than fits."""
SHOWN_NS = 20_000_000
"""How old what people are shown may be."""
SHORTEST_SLEEP_NS = 150_000
"""Between two looks, however much the bells ring: bounds what tenants can cost."""


@dataclass(frozen=True, slots=True)
class Member:
    """One tenant in the roster."""

    tenant: TenantName
    usage: UsageSegment
    policy: PolicySegment
    terms: Mapping[GpuUuid, Terms]


@dataclass(frozen=True, slots=True)
class Roster:
    """All tenants and GPUs."""

    number: int = 0
    gpus: tuple[GpuUuid, ...] = ()
    """A GPU's place here is its entry in every policy."""
    members: tuple[Member, ...] = ()
    state: StateSegment | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A tenant on one GPU at the last look, for people and metrics."""

    seen: Seen
    grant: Grant
    has_turn: bool
    rating: Rating | None = None
    """None: it is alone."""


@dataclass(slots=True)
class Row:
    """What the thread keeps of a tenant, as long as it has this segment."""

    usage: UsageSegment
    created_ns: int = 0
    seen: dict[GpuUuid, Seen] = field(default_factory=dict)
    memory: dict[GpuUuid, MemorySeen] = field(default_factory=dict)
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
        self._arbiters: dict[GpuUuid, Arbiter] = {}
        self._published: dict[tuple[TenantName, GpuUuid], Grant] = {}
        self._gpus: dict[bytes, GpuUuid] = {}
        self._due_ns: dict[GpuUuid, int] = {}
        self._watched: dict[GpuUuid, frozenset[TenantName]] = {}
        self._shown_at_ns: dict[GpuUuid, int] = {}
        self._beat_at_ns = 0
        self._is_stopping = False
        self.adopted = 0
        self.stepped_at_ns = 0
        self.steps = 0
        self.shares: dict[GpuUuid, dict[TenantName, Share]] = {}
        self.turns: dict[GpuUuid, Turns] = {}
        self.memory: dict[GpuUuid, MemoryQueue] = {}
        self._wanted: dict[tuple[TenantName, GpuUuid], bool] = {}
        self._freed_elsewhere = False

    def memory_freed(self) -> None:
        """Memory came free that is in no living process's books: tell who waits for some. From any thread."""
        if any(queue.tally.waiting for queue in list(self.memory.values())):
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
        rang = set(self._bells.hear())
        is_freed_elsewhere, self._freed_elsewhere = self._freed_elsewhere, False
        is_beat_due = now_ns >= self._beat_at_ns + BEAT_NS or is_freed_elsewhere
        touched = {gpu for gpu in roster.gpus if is_beat_due or self._due_ns.get(gpu, 0) <= now_ns}
        touched.update(gpu for name in rang if name in self._rows for gpu in self._rows[name].seen)
        for member in roster.members:
            row = self._rows.get(member.tenant)
            if (
                is_beat_due
                or row is None
                or member.tenant in rang
                or self._is_watched(member.tenant, row, touched)
            ):
                touched.update(self._look(member, now_ns))
        for entry, gpu in enumerate(roster.gpus):
            if gpu in touched:
                due_ns = self._divide(roster, entry, gpu, now_ns)
                memory_due_ns = self._offer_memory(roster, entry, gpu, now_ns, is_freed_elsewhere)
                self._due_ns[gpu] = min(due_ns, memory_due_ns)
        if is_beat_due:
            self._beat(roster, now_ns)
        self.steps += 1
        self.stepped_at_ns = now_ns
        return min([self._beat_at_ns + BEAT_NS, *(self._due_ns[gpu] for gpu in roster.gpus)])

    def _is_watched(self, tenant: TenantName, row: Row, touched: set[GpuUuid]) -> bool:
        """It is on a GPU whose arbiter wants to hear of it now."""
        return any(gpu in touched and tenant in self._watched.get(gpu, (tenant,)) for gpu in row.seen)

    def _take_over(self) -> Roster:
        """Return the roster in force, and forget those who have left."""
        roster = self._roster
        if roster.number == self.adopted:
            return roster
        names = {member.tenant for member in roster.members}
        for name in self._rows.keys() - names:
            del self._rows[name]
        self._bells.listen({member.tenant: member.usage.bell for member in roster.members})
        self._due_ns = dict.fromkeys(roster.gpus, 0)
        for gpu in self.turns.keys() - set(roster.gpus):
            del self.turns[gpu]
        self._published = {key: grant for key, grant in self._published.items() if key[0] in names}
        self._wanted = {key: wanted for key, wanted in self._wanted.items() if key[0] in names}
        self._beat_at_ns = 0  # newcomers must not wait for their first heartbeat
        self._gpus = {uuid_bytes(gpu): gpu for gpu in roster.gpus}
        self.adopted = roster.number
        return roster

    def _look(self, member: Member, now_ns: int) -> Iterable[GpuUuid]:
        """Read a tenant's books; return the GPUs that it is on, or was until now."""
        row = self._rows.get(member.tenant)
        if row is None or row.usage is not member.usage:
            row = self._rows[member.tenant] = Row(member.usage)
        if row.is_broken:
            return ()
        before = row.seen
        try:
            sample = member.usage.sample()
        except SegmentError as error:
            self._give_up(member, row, str(error))
            return before
        if row.created_ns != sample.created_ns:  # the books were begun anew, and with them the count of time
            row.created_ns = sample.created_ns
            self._published = {k: g for k, g in self._published.items() if k[0] != member.tenant}
        self._bells.looked_at(member.tenant, sample.doorbell, now_ns)
        row.seen = seen_in(sample, self._gpus) if sample.slots else {}
        row.memory = memory_in(sample, self._gpus) if sample.slots else {}
        if row.seen.keys() == before.keys():
            return row.seen
        self._placed(member.tenant, frozenset(row.seen))
        return {**before, **row.seen}

    def _give_up(self, member: Member, row: Row, reason: str) -> None:
        """A tenant that spoils its own books gets no GPU time: nothing of it can be measured any more."""
        row.is_broken = True
        row.seen, row.memory = {}, {}
        self._bells.ignore(member.tenant)
        for entry in range(MOST_DEVICES):
            self._publish(member, entry, Grant(0, 1, is_shared=True))
        self._broken(member.tenant, reason)

    def _divide(self, roster: Roster, entry: int, gpu: GpuUuid, now_ns: int) -> int:
        """Let the arbiter of one GPU decide, and publish it."""
        here = {m.tenant: m for m in roster.members if gpu in self._rows[m.tenant].seen}
        if not here:
            self.shares.pop(gpu, None)
            self._arbiters.pop(gpu, None)
            self._watched.pop(gpu, None)
            return now_ns + BEAT_NS
        arbiter = self._arbiters.setdefault(gpu, Arbiter(self._pace))
        seen = {name: self._rows[name].seen[gpu] for name in here}
        terms = {name: member.terms[gpu] for name, member in here.items()}
        decision = arbiter.step(now_ns, seen, terms)
        # Who loses the GPU hears of it before who gets it.
        for name, member in sorted(here.items(), key=lambda item: item[0] == decision.turn):
            grant = decision.grants[name]
            if self._published.get((name, gpu)) != grant:
                self._publish(member, entry, grant)
                self._published[name, gpu] = grant
        turns = self.turns.get(gpu)
        if turns is None:
            turns = self.turns[gpu] = Turns(self._pace.quantum_ns)
        turns.take(now_ns, seen, terms, decision)
        self._watched[gpu] = decision.watched
        if now_ns - self._shown_at_ns.get(gpu, 0) >= SHOWN_NS or gpu not in self.shares:
            self._shown_at_ns[gpu] = now_ns
            self.shares[gpu] = shares_of(decision, seen)
        return decision.next_at_ns

    def _offer_memory(
        self, roster: Roster, entry: int, gpu: GpuUuid, now_ns: int, is_freed_elsewhere: bool
    ) -> int:
        """Let those who wait for memory of a GPU know when some has come free; return when to look again."""
        here = {m.tenant: m for m in roster.members if gpu in self._rows[m.tenant].memory}
        queue = self.memory.setdefault(gpu, MemoryQueue())
        seen = {name: self._rows[name].memory[gpu] for name in here}
        decision = queue.step(now_ns, seen, freed_elsewhere=is_freed_elsewhere)
        for name, member in here.items():
            try:
                if self._wanted.get((name, gpu), None) != decision.is_wanted:
                    member.policy.want_memory(entry, is_wanted=decision.is_wanted)
                    self._wanted[name, gpu] = decision.is_wanted
                if name in decision.tell:
                    member.usage.memory_changed(seen[name].entry)
            except SegmentError as error:
                logger.warning("%s", error)
        return now_ns + BEAT_NS if queue.is_due_at_ns is None else queue.is_due_at_ns

    def _publish(self, member: Member, entry: int, grant: Grant) -> None:
        try:
            member.policy.grant(
                entry,
                granted_ns=min(grant.granted_ns, MOST_NS),
                run_ahead_ns=grant.run_ahead_ns,
                exclusive_from_ns=grant.exclusive_from_ns,
                is_shared=grant.is_shared,
            )
        except SegmentError as error:
            logger.warning("%s", error)

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


def seen_in(sample: Any, gpus: Mapping[bytes, GpuUuid]) -> dict[GpuUuid, Seen]:
    """Return a tenant's figures on the node's GPUs; other entries, or a second for one, are not heard."""
    found: dict[GpuUuid, Seen] = {}
    for device in sample.device:
        if not device.ready:
            break  # entries are added one after the other and stay
        gpu = gpus.get(bytes(device.uuid))
        if gpu is not None and gpu not in found:
            found[gpu] = Seen(device.spent_ns, device.outstanding_ns, device.waiting, device.queue_end_ns)
    return found


def memory_in(sample: Any, gpus: Mapping[bytes, GpuUuid]) -> dict[GpuUuid, MemorySeen]:
    """Return what a tenant's books say of waiting for memory, on the node's GPUs."""
    found: dict[GpuUuid, MemorySeen] = {}
    for entry, device in enumerate(sample.device):
        if not device.ready:
            break
        gpu = gpus.get(bytes(device.uuid))
        if gpu is not None and gpu not in found:
            found[gpu] = MemorySeen(entry, device.memory_waiting, device.memory_freed, device.memory_waits)
    return found


def shares_of(decision: Decision, seen: Mapping[TenantName, Seen]) -> dict[TenantName, Share]:
    return {
        name: Share(figures, decision.grants[name], decision.turn == name, decision.ratings.get(name))
        for name, figures in seen.items()
    }


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
