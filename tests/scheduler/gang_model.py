# SPDX-License-Identifier: Apache-2.0
"""Several cards of one node in virtual time, with jobs whose ranks wait for each other on the cards.

Tenants, launches and the daemon are those of gpu_model. A rank's collective kernel makes no progress before
the kernels of all ranks of its job run. Until then it spins: it takes its slice of the card, and is charged.
A rank that another one waits for launches without a grant after a moment.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypervisor.model import GpuUuid, TenantName
from hypervisor.scheduler.gang_coordinator import GangCoordinator
from hypervisor.scheduler.gangs import gang_of
from hypervisor.scheduler.scheduler import Scheduler
from hypervisor.scheduler.turn_watch import EXPIRED, poll
from hypervisor.scheduler.types import Decision, SchedParams, SchedulerConfig, TenantUsage, TurnWatch
from tests.scheduler.gpu_model import DAEMON_GAP_NS, MS, US, WAKE_NS, S, Step, Tenant, Work, books_of

OVERDUE_NS = CATCH_UP_AHEAD_NS = MS
MAX_QUEUED = 256
COLLECTIVE = 1
"""Odd lengths are those of collective kernels: the scripts have no other way to say it."""


@dataclass
class Meeting:
    """One collective: the work of each rank that has been launched."""

    works: list[JointWork] = field(default_factory=list)


@dataclass
class JointWork(Work):
    """A rank's kernel of a collective."""

    meeting: Meeting
    ranks: int
    served_ns: float = 0.0
    spun_ns: float = 0.0
    """Wall time at the head of its queue without progress."""


class Process(Tenant):
    """A tenant whose launches wait while the driver's queue is full."""

    def go(self) -> None:
        if len(self.queue) >= MAX_QUEUED:
            self.world.after(MS, self.go)
        else:
            super().go()


class Rank(Process):
    """One process of a job, on one card."""

    def __init__(self, card: Card, name: str, script: Iterator[Step], job: Job) -> None:
        super().__init__(card, name, script)  # type: ignore[arg-type]
        self.card, self.job = card, job
        self.met = self.completed = 0

    def _launch(self) -> None:
        assert self._pending is not None
        if not self._pending & COLLECTIVE:
            super()._launch()
            return
        submit, self.card.submit = self.card.submit, self._submit_joint  # type: ignore[method-assign]
        try:
            super()._launch()
        finally:
            self.card.submit = submit  # type: ignore[method-assign]

    def _submit_joint(self, _: Tenant, work: Work) -> None:
        while len(self.job.meetings) <= self.met:
            self.job.meetings.append(Meeting())
        meeting = self.job.meetings[self.met]
        self.met += 1
        joint = JointWork(work.left_ns, work.charged_ns, work.queued_at_ns, meeting, len(self.job.ranks))
        self.card.node.advance()
        meeting.works.append(joint)
        self.queue.append(joint)
        self.card.node.plan()

    def _wait(self) -> None:
        super()._wait()
        self._catch_up(self._wait_number)

    def _catch_up(self, number: int) -> None:
        """Launch without a grant once a sibling's kernel waits for this rank, as the library lets it."""
        if self.is_dead or not self.waiting or number != self._wait_number:
            return
        awaited = self.job.meetings[self.met].works if len(self.job.meetings) > self.met else ()
        is_overdue = any(work.spun_ns >= OVERDUE_NS for work in awaited)
        if is_overdue and self.outstanding_ns < CATCH_UP_AHEAD_NS:
            self.waiting = 0
            self._launch()
        else:
            self.card.after(OVERDUE_NS // 4, lambda: self._catch_up(number))

    def done(self, work: Work) -> None:
        if isinstance(work, JointWork):
            self.completed += 1
            self.spent_ns += max(0, int(work.served_ns) - work.charged_ns)  # its spin
        super().done(work)


@dataclass
class Job:
    """Ranks of one tenant, or of several, that wait for each other."""

    ranks: list[Rank] = field(default_factory=list)
    meetings: list[Meeting] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Collectives that are done on all cards."""
        return min(rank.completed for rank in self.ranks)


class Card:
    """One card, and the daemon's view of it. A tenant takes it for its world."""

    def __init__(self, node: Node, number: int) -> None:
        self.node, self.gpu = node, GpuUuid(f"GPU-{number}")
        self.scheduler = Scheduler(node.config)
        self.tenants: dict[TenantName, Tenant] = {}
        self.terms: dict[TenantName, SchedParams] = {}
        self.decisions: list[tuple[int, Decision]] = []
        self.busy_ns = 0.0
        self.seen: dict[TenantName, TenantUsage] = {}
        self.in_gang: set[TenantName] = set()
        self.polled: frozenset[TenantName] = frozenset()
        self.muted: frozenset[TenantName] = frozenset()
        self.due_ns = 0
        self.has_news = self.is_touched = True
        self.turn_watch: TurnWatch | None = None
        self._watch_number = 0

    @property
    def now_ns(self) -> int:
        return self.node.now_ns

    def after(self, ns: int, call: Callable[[], None]) -> None:
        self.node.after(ns, call)

    def ring(self, who: TenantName | None = None) -> None:
        self.node.ring(who)

    def submit(self, tenant: Tenant, work: Work) -> None:
        self.node.advance()
        tenant.queue.append(work)
        self.node.plan()

    @property
    def active(self) -> list[Tenant]:
        return [t for t in self.tenants.values() if t.queue]

    def look(self, name: TenantName) -> None:
        figures = books_of(self.tenants[name])._replace(is_in_gang=name in self.in_gang)
        if self.seen.get(name) != figures:
            key = gang_of(name, self.terms[name], figures)
            self.has_news |= name not in self.seen or key is not None
            self.seen[name] = figures

    def observe(self) -> None:
        """Run the first half of a step."""
        used_up = self.turn_watch.used_up if self.turn_watch else None
        seen = {name: self.seen[name] for name in self.tenants}
        self.scheduler.observe(self.now_ns, seen, self.terms, used_up)

    def apply(self, decision: Decision) -> None:
        self.decisions.append((self.now_ns, decision))
        self.polled, self.muted = decision.polled, decision.muted
        self.due_ns = decision.next_at_ns
        self._keep_watch(decision.turn_watch)
        for name, grant in decision.grants.items():
            if name in self.tenants and grant != self.tenants[name].grant:
                self.tenants[name].granted(grant)

    def _keep_watch(self, watch: TurnWatch | None) -> None:
        self.turn_watch = watch
        self._watch_number += 1
        number = self._watch_number
        if watch is not None:
            self.after(watch.next_ns + WAKE_NS // 2 - self.now_ns, lambda: self._poll(number))

    def _poll(self, number: int) -> None:
        if number != self._watch_number or self.turn_watch is None:
            return
        tenant = self.tenants.get(self.turn_watch.tenant)
        if tenant is None:
            return
        watch = poll(self.turn_watch, books_of(tenant), self.now_ns)
        if watch.next_ns == EXPIRED:
            self.turn_watch = watch
            self.due_ns = self.now_ns
            self.node.wake_daemon(self.now_ns)
        else:
            self._keep_watch(watch)


class Node:
    """Cards, tenants and the daemon."""

    def __init__(self, cards: int, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self.now_ns = 0
        self.cards = [Card(self, number) for number in range(cards)]
        self.coordinator = GangCoordinator(self.config)
        self.steps = self.lone_steps = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._advanced_ns = 0
        self._plan_number = 0
        self._step_at_ns: int | None = None
        self._stepped_at_ns = -S
        self._rang: set[TenantName] = set()
        self._beat_at_ns = -S

    def after(self, ns: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ns + max(0, ns), next(self._numbers), call))

    def run(self, until_ns: int) -> None:
        while self._events and self._events[0][0] <= until_ns:
            self.now_ns, _, call = heapq.heappop(self._events)
            call()
        self.now_ns = until_ns
        self.advance()

    # ---- tenants ----

    def add(self, card: int, name: str, script: Iterator[Step], **terms: int) -> Tenant:
        """Add a tenant of one process on one card."""
        tenant = Process(self.cards[card], name, script)  # type: ignore[arg-type]
        self._place(tenant, self.cards[card], SchedParams(**terms))  # type: ignore[arg-type]
        return tenant

    def add_job(
        self,
        cards: list[int],
        name: str,
        script: Callable[[], Iterator[Step]],
        *,
        gang: str = "",
        names: list[str] | None = None,
        seen: bool = True,
        **terms: int,
    ) -> Job:
        """Add a job with a rank on each card: one tenant, or one of each name in `names`."""
        job = Job()
        for place, number in enumerate(cards):
            rank = Rank(self.cards[number], names[place] if names else name, script(), job)
            job.ranks.append(rank)
        for rank in job.ranks:
            if seen and not gang:
                rank.card.in_gang.add(rank.name)
            self._place(rank, rank.card, SchedParams(gang=gang, **terms))  # type: ignore[arg-type]
        return job

    def _place(self, tenant: Tenant, card: Card, terms: SchedParams) -> None:
        card.tenants[tenant.name], card.terms[tenant.name] = tenant, terms
        self.after(0, tenant.go)
        self.ring()

    def kill(self, tenant: Tenant) -> None:
        """End a process: its queue goes with its context."""
        self.advance()
        tenant.is_dead = True
        tenant.queue.clear()
        for card in self.cards:
            if card.tenants.get(tenant.name) is tenant:
                del card.tenants[tenant.name], card.terms[tenant.name]
                card.seen.pop(tenant.name, None)
                card.has_news = True
        self.plan()
        self.ring()

    def restart_daemon(self) -> None:
        """Lose all that the daemon knows. The tenants keep their grants until it decides again."""
        self.coordinator = GangCoordinator(self.config)
        for card in self.cards:
            card.scheduler = Scheduler(self.config)
            card.seen.clear()
            card.polled = card.muted = frozenset()
            card.turn_watch, card.has_news = None, True
        self.ring()

    # ---- the cards ----

    def _rates(self) -> dict[int, float]:
        """Return the progress of each work at the head of a queue, by the identity of the work."""
        slices = {id(t.queue[0]): 1 / len(c.active) for c in self.cards for t in c.active}
        rates = {}
        for card in self.cards:
            for tenant in card.active:
                work = tenant.queue[0]
                rates[id(work)] = slices[id(work)]
                if isinstance(work, JointWork):
                    works = work.meeting.works
                    met = len(works) == work.ranks and all(id(w) in slices for w in works)
                    rates[id(work)] = min(slices[id(w)] for w in works) if met else 0.0
        return rates

    def advance(self) -> None:
        elapsed_ns = self.now_ns - self._advanced_ns
        self._advanced_ns = self.now_ns
        if not elapsed_ns:
            return
        rates = self._rates()
        for card in self.cards:
            active = card.active
            card.busy_ns += elapsed_ns if active else 0
            for tenant in active:
                work = tenant.queue[0]
                work.left_ns -= elapsed_ns * rates[id(work)]
                tenant.ran_ns += elapsed_ns / len(active)
                if isinstance(work, JointWork):
                    work.served_ns += elapsed_ns / len(active)
                    work.spun_ns += 0 if rates[id(work)] else elapsed_ns

    def plan(self) -> None:
        self._plan_number += 1
        number = self._plan_number
        rates = self._rates()
        ends = [
            t.queue[0].left_ns / rates[id(t.queue[0])]
            for c in self.cards
            for t in c.active
            if rates[id(t.queue[0])]
        ]
        if ends:
            self.after(max(1, round(min(ends))), lambda: self._completed(number))

    def _completed(self, number: int) -> None:
        if number != self._plan_number:
            return
        self.advance()
        for card in self.cards:
            for tenant in list(card.tenants.values()):
                while tenant.queue and tenant.queue[0].left_ns <= 1:
                    tenant.done(tenant.queue.popleft())
        self.plan()

    # ---- the daemon ----

    def ring(self, who: TenantName | None = None) -> None:
        names = {name for card in self.cards for name in card.tenants}
        self._rang.update([who] if who is not None else names)
        of_it = [card for card in self.cards if who in card.tenants]
        if who is None or not all(who in card.muted for card in of_it):
            self.wake_daemon(self.now_ns + WAKE_NS)

    def wake_daemon(self, at_ns: int) -> None:
        at_ns = max(at_ns, self._stepped_at_ns + DAEMON_GAP_NS)
        if self._step_at_ns is None or at_ns < self._step_at_ns:
            self._step_at_ns = at_ns
            self.after(at_ns - self.now_ns, lambda: self._step(at_ns))

    def _step(self, planned_ns: int) -> None:
        if planned_ns != self._step_at_ns:
            return
        self._step_at_ns, self._stepped_at_ns = None, self.now_ns
        self.steps += 1
        self._look()
        cards = {card.gpu: card for card in self.cards if card.tenants}
        touched = [card for card in cards.values() if card.is_touched or card.due_ns <= self.now_ns]
        if any(self._is_needed(card) for card in touched):
            touched = list(cards.values())
            self._step_together(touched)
        else:
            for card in touched:
                self._step_one(card)
        for card in touched:
            card.has_news = card.is_touched = False
        self.wake_daemon(min([S + self.now_ns, *(card.due_ns for card in cards.values())]) + WAKE_NS // 2)

    def _is_needed(self, card: Card) -> bool:
        return self.coordinator.is_needed(self.now_ns, card.gpu, card.scheduler, has_news=card.has_news)

    def _step_together(self, cards: list[Card]) -> None:
        for card in cards:
            card.observe()
        due_ns = self.coordinator.step(self.now_ns, {card.gpu: card.scheduler for card in cards})
        decisions = [card.scheduler.decide(self.now_ns) for card in cards]
        for card, decision in zip(cards, decisions, strict=True):
            card.apply(decision)
            card.due_ns = min(card.due_ns, due_ns)

    def _step_one(self, card: Card) -> None:
        self.lone_steps += 1
        card.observe()
        card.apply(card.scheduler.decide(self.now_ns))
        has_ended = not card.scheduler.is_of_one_tenant
        card.due_ns = min(card.due_ns, self.now_ns if has_ended else self.coordinator.due_ns(card.gpu))

    def _look(self) -> None:
        is_beat_due = self.now_ns >= self._beat_at_ns + 100 * MS
        if is_beat_due:
            self._beat_at_ns = self.now_ns
        polled = {name for card in self.cards for name in card.polled}
        for card in self.cards:
            for name in card.tenants:
                card.is_touched |= is_beat_due or name in self._rang
                if is_beat_due or name in self._rang or name in polled or name not in card.seen:
                    card.look(name)
        self._rang.clear()


# ---- scripts ----


def training(kernels: int = 3, kernel_ns: int = 500 * US, collective_ns: int = 500 * US) -> Iterator[Step]:
    """Steps of kernels and a collective, launched without ever waiting."""
    while True:
        for _ in range(kernels):
            yield "launch", kernel_ns & ~COLLECTIVE
        yield "launch", collective_ns | COLLECTIVE


def synced(kernels: int, kernel_ns: int, collective_ns: int, host_ns: int) -> Iterator[Step]:
    """The same with a wait and host work after each step."""
    while True:
        for _ in range(kernels):
            yield "launch", kernel_ns & ~COLLECTIVE
        yield "launch", collective_ns | COLLECTIVE
        yield "sync", 0
        yield "host", host_ns


# ---- figures ----


def speed_alone(cards: int, script: Callable[[], Iterator[Step]], run_ns: int = S) -> float:
    """Return the steps per ns of a job that is alone."""
    node = Node(cards)
    job = node.add_job(list(range(cards)), "alone", script)
    node.run(S // 2)
    before = job.steps
    node.run(S // 2 + run_ns)
    return (job.steps - before) / run_ns


def measure(
    node: Node, jobs: list[Job], singles: list[Tenant], *, warm_ns: int = S, run_ns: int = 4 * S
) -> tuple[list[float], list[float]]:
    """Return the steps per ns of the jobs, and the fraction of a card of the singles, once warm."""
    node.run(warm_ns)
    steps, ran = [job.steps for job in jobs], [single.ran_ns for single in singles]
    node.run(warm_ns + run_ns)
    return (
        [(job.steps - before) / run_ns for job, before in zip(jobs, steps, strict=True)],
        [(single.ran_ns - before) / run_ns for single, before in zip(singles, ran, strict=True)],
    )
