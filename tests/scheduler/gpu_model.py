# SPDX-License-Identifier: Apache-2.0
"""A model of a card, its tenants and the daemon in virtual time, for tests of the arbiter.

The card runs the work of each tenant in order and divides its time equally between tenants that have work,
as real cards do. Tenants launch, wait and look at their finished work as the library does; the daemon wakes
up late, as threads do. Nothing here sleeps: seconds of virtual time take a fraction of a second.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypervisor.model import TenantName
from hypervisor.scheduler.scheduler import Scheduler
from hypervisor.scheduler.turn_watch import EXPIRED, poll
from hypervisor.scheduler.types import Decision, Grant, SchedParams, SchedulerConfig, TenantUsage, TurnWatch

US, MS, S = 1_000, 1_000_000, 1_000_000_000
LAUNCH_NS = 4 * US
WAKE_NS = 60 * US
"""From a futex's wake to the first instruction, daemon and tenants alike."""
DAEMON_GAP_NS = 150 * US

Step = tuple[str, int]
"""("launch", ns of GPU time), ("host", ns), ("sync", 0), ("mark", n): told to the test."""


@dataclass
class Work:
    left_ns: float
    charged_ns: int
    queued_at_ns: int


class Tenant:
    """One process of one tenant, driven by a script of steps."""

    def __init__(self, world: World, name: str, script: Iterator[Step], cost: float = 1.0) -> None:
        self.world, self.name, self.script = world, TenantName(name), script
        self.cost = cost
        """What the library takes a kernel's length for, over what it is."""
        self.spent_ns = self.outstanding_ns = self.waiting = 0
        self.queue: deque[Work] = deque()
        self.finished: list[int] = []
        self._finished_at_ns = 0
        self.ran_ns = 0.0
        self.grant = Grant(0, 0, is_shared=True)
        self.is_dead = False
        self.marks: list[tuple[int, int]] = []
        self.launched_at_ns: list[int] = []
        self._collected_at_ns = self._rang_at_ns = self.queue_end_ns = 0
        self._may_trust = False
        """The library relies once on when its queue should run dry, until a mark is reached."""
        self._syncing = False
        self._pending: int | None = None
        self._has_rung = False
        self._wait_number = 0

    def go(self) -> None:
        """Do the next steps of the script until one takes time."""
        while not self.is_dead:
            if self._pending is None:
                step = next(self.script, None)
                if step is None:
                    return
                kind, amount = step
                if kind == "mark":
                    self.marks.append((self.world.now_ns, amount))
                    continue
                if kind == "host":
                    self.world.after(amount, self.go)
                    return
                if kind == "sync":
                    if self.queue:
                        self._syncing = True
                        return
                    continue
                self._pending = amount
            if not self._is_open():
                self._wait()
                return
            self._launch()
            return

    def _is_open(self) -> bool:
        if self.world.now_ns - self._collected_at_ns > MS:
            self._collect()
        if not self.grant.is_shared:
            return True
        ahead = self.grant.run_ahead_ns
        if self.spent_ns >= self.grant.granted_ns or self.world.now_ns < self.grant.start_ns:
            return False
        return not ahead or self.outstanding_ns < ahead or self._trusts(ahead)

    def _left_ns(self) -> int | None:
        """How long the queue lasts still, where that is known."""
        from_ns = self.grant.exclusive_from_ns
        if not from_ns or self.world.now_ns < from_ns or not self._may_trust:
            return None
        return max(0, self.queue_end_ns - self.world.now_ns)

    def _trusts(self, ahead_ns: float) -> bool:
        left_ns = self._left_ns()
        if left_ns is None or left_ns > ahead_ns:
            return False
        self._may_trust = False
        return True

    def _launch(self) -> None:
        assert self._pending is not None
        ns, self._pending = self._pending, None
        charged = int(ns * self.cost)
        now = self.world.now_ns
        is_ours = self.grant.is_shared and self.grant.exclusive_from_ns
        has_paused = bool(self.launched_at_ns) and now - self.launched_at_ns[-1] >= MS
        self.queue_end_ns = max(self.queue_end_ns, now) + charged
        if (self.outstanding_ns == 0 or has_paused) and now - self._rang_at_ns > MS and not is_ours:
            self._rang_at_ns = now
            self.world.ring(self.name)
        self.spent_ns += charged
        self.outstanding_ns += charged
        self.launched_at_ns.append(now)
        self.world.submit(self, Work(ns, charged, now))
        self.world.after(LAUNCH_NS, self.go)

    def _wait(self) -> None:
        self.waiting = 1
        self._has_rung = False
        self._wait_number += 1
        self._look(self._wait_number)

    def _look(self, number: int) -> None:
        """Look again while waiting, as gl_bucket_wait does."""
        if self.is_dead or not self.waiting or number != self._wait_number:
            return
        before = self.outstanding_ns
        self._collect()
        if before and not self.outstanding_ns:
            self.world.ring(self.name)
        half = self.grant.run_ahead_ns / 2
        is_granted = not self.grant.is_shared or self.spent_ns < self.grant.granted_ns
        if not is_granted and not self._has_rung:
            self._has_rung = True
            self.world.ring(self.name)
        if is_granted and self.grant.is_shared and self.world.now_ns < self.grant.start_ns:
            self.world.after(self.grant.start_ns + WAKE_NS - self.world.now_ns, lambda: self._look(number))
            return
        is_over = not self.grant.is_shared or not half or self.outstanding_ns <= half
        if is_granted and (is_over or self._trusts(half)):
            self.waiting = 0
            self._launch()
            return
        if self.outstanding_ns:
            left_ns = self._left_ns()
            ahead = self.outstanding_ns if left_ns is None else left_ns
            ahead = ahead - half if is_granted else self.outstanding_ns / 2
            self.world.after(int(min(max(ahead, 50 * US), 500 * US)), lambda: self._look(number))

    def _collect(self) -> None:
        self._collected_at_ns = self.world.now_ns
        if self.finished:
            self.outstanding_ns -= sum(self.finished)
            self.queue_end_ns = self._finished_at_ns + self.outstanding_ns
            self._may_trust = True
        self.finished.clear()

    def _synced(self) -> None:
        """It has waited for the card, and those that others wait for say so."""
        self._collect()
        is_high = self.world.terms[self.name].priority >= 3
        if not self.is_dead and is_high and self.world.now_ns - self._rang_at_ns > MS:
            self._rang_at_ns = self.world.now_ns
            self.world.ring(self.name)
        self.go()

    def granted(self, grant: Grant) -> None:
        """The policy changed."""
        self.grant = grant
        if self.waiting:
            number = self._wait_number
            self.world.after(WAKE_NS, lambda: self._look(number))

    def done(self, work: Work) -> None:
        self.finished.append(work.charged_ns)
        self._finished_at_ns = self.world.now_ns
        if self._syncing and not self.queue:
            self._syncing = False
            self.world.after(10 * US, self._synced)


@dataclass
class World:
    """Card, tenants and daemon."""

    config: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        self.now_ns = 0
        self.tenants: dict[TenantName, Tenant] = {}
        self.terms: dict[TenantName, SchedParams] = {}
        self.scheduler = Scheduler(self.config)
        self.busy_ns = 0.0
        self.decisions: list[tuple[int, Decision]] = []
        self.steps = self.changes = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._card_at_ns = 0
        self._card_number = 0
        self._step_at_ns: int | None = None
        self._stepped_at_ns = -S
        self._seen: dict[TenantName, TenantUsage] = {}
        self._rang: set[TenantName] = set()
        self._polled: frozenset[TenantName] = frozenset()
        self._muted: frozenset[TenantName] = frozenset()
        self._turn_watch: TurnWatch | None = None
        self._watch_number = 0
        self._beat_at_ns = -S

    def after(self, ns: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ns + max(0, ns), next(self._numbers), call))

    def add(self, name: str, script: Iterator[Step], cost: float = 1.0, **terms: int) -> Tenant:
        tenant = Tenant(self, name, script, cost)
        self.tenants[tenant.name] = tenant
        self.terms[tenant.name] = SchedParams(**terms)  # type: ignore[arg-type]
        self.after(0, tenant.go)
        self.ring()
        return tenant

    def kill(self, tenant: Tenant) -> None:
        """A process dies: its queue goes with its context, and the daemon hears of it."""
        self._advance()
        tenant.is_dead = True
        tenant.queue.clear()
        del self.tenants[tenant.name]
        self._plan()
        self.ring()

    def run(self, until_ns: int) -> None:
        while self._events and self._events[0][0] <= until_ns:
            self.now_ns, _, call = heapq.heappop(self._events)
            call()
        self.now_ns = until_ns
        self._advance()

    # the card

    def submit(self, tenant: Tenant, work: Work) -> None:
        self._advance()
        tenant.queue.append(work)
        self._plan()

    def _advance(self) -> None:
        """Let the card run until now: no head of a queue ends before, since that is an event of its own."""
        elapsed = self.now_ns - self._card_at_ns
        self._card_at_ns = self.now_ns
        active = [t for t in self.tenants.values() if t.queue]
        if not active or not elapsed:
            return
        self.busy_ns += elapsed
        for tenant in active:
            tenant.queue[0].left_ns -= elapsed / len(active)
            tenant.ran_ns += elapsed / len(active)

    def _plan(self) -> None:
        active = [t for t in self.tenants.values() if t.queue]
        self._card_number += 1
        if active:
            number = self._card_number
            first = min(t.queue[0].left_ns for t in active) * len(active)
            self.after(max(1, round(first)), lambda: self._completed(number))

    def _completed(self, number: int) -> None:
        if number != self._card_number:
            return
        self._advance()
        for tenant in list(self.tenants.values()):
            while tenant.queue and tenant.queue[0].left_ns <= 1:
                tenant.done(tenant.queue.popleft())
        self._plan()

    # the daemon

    def ring(self, who: TenantName | None = None) -> None:
        """Somebody rings, or the daemon looks at all of them by itself."""
        self._rang.update([who] if who is not None else self.tenants)
        if who not in self._muted:
            self._wake_daemon(max(self.now_ns + WAKE_NS, self._stepped_at_ns + DAEMON_GAP_NS))

    def _wake_daemon(self, at_ns: int) -> None:
        if self._step_at_ns is None or at_ns < self._step_at_ns:
            self._step_at_ns = at_ns
            self.after(at_ns - self.now_ns, lambda: self._step(at_ns))

    def _step(self, planned_ns: int) -> None:
        if planned_ns != self._step_at_ns:
            return
        self._step_at_ns = None
        self._stepped_at_ns = self.now_ns
        self.steps += 1
        if not self.tenants:
            return
        self._look()
        seen = {name: self._seen[name] for name in self.tenants}
        used_up = self._turn_watch.used_up if self._turn_watch else None
        decision = self.scheduler.step(self.now_ns, seen, self.terms, used_up)
        self._polled, self._muted = decision.polled, decision.muted
        self._start_watch(decision.turn_watch)
        self.decisions.append((self.now_ns, decision))
        for name, grant in decision.grants.items():
            if grant != self.tenants[name].grant:
                self.changes += 1
                self.tenants[name].granted(grant)
        self._wake_daemon(max(decision.next_at_ns + WAKE_NS // 2, self.now_ns + DAEMON_GAP_NS))

    def _start_watch(self, turn_watch: TurnWatch | None) -> None:
        self._turn_watch = turn_watch
        self._watch_number += 1
        number = self._watch_number
        if turn_watch is not None:
            late_ns = turn_watch.next_ns + WAKE_NS // 2 - self.now_ns
            self.after(late_ns, lambda: self._look_at_the_holder(number))

    def _look_at_the_holder(self, number: int) -> None:
        if number != self._watch_number or self._turn_watch is None:
            return
        t = self.tenants.get(self._turn_watch.tenant)
        if t is None:
            return
        turn_watch = poll(self._turn_watch, books_of(t), self.now_ns)
        if turn_watch.next_ns == EXPIRED:
            self._turn_watch = turn_watch
            self._wake_daemon(max(self.now_ns, self._stepped_at_ns + DAEMON_GAP_NS))
        else:
            self._start_watch(turn_watch)

    def _look(self) -> None:
        """Read the books of who has rung or is watched, and now and then of everybody."""
        is_beat_due = self.now_ns >= self._beat_at_ns + 100 * MS
        if is_beat_due:
            self._beat_at_ns = self.now_ns
        for t in self.tenants.values():
            if is_beat_due or t.name in self._rang or t.name in self._polled or t.name not in self._seen:
                self._seen[t.name] = books_of(t)
        self._rang.clear()


def books_of(t: Tenant) -> TenantUsage:
    return TenantUsage(t.spent_ns, t.outstanding_ns, t.waiting, t.queue_end_ns)


# scripts


def saturating(kernel_ns: int = 500 * US) -> Iterator[Step]:
    """Launch without ever waiting."""
    while True:
        yield "launch", kernel_ns


def host_bound(host_ns: int, kernels: int, kernel_ns: int) -> Iterator[Step]:
    """A training step: launches spread over host work, then a wait for all of it."""
    while True:
        for _ in range(kernels):
            yield "host", host_ns // kernels
            yield "launch", kernel_ns
        yield "sync", 0


def shallow(kernels: int, kernel_ns: int) -> Iterator[Step]:
    """Work that keeps the card busy with little queued: a wait after every few launches."""
    while True:
        for _ in range(kernels):
            yield "launch", kernel_ns
        yield "sync", 0


def ahead(host_ns: int, kernels: int, kernel_ns: int) -> Iterator[Step]:
    """Steps of launches spread over host work, without ever waiting."""
    while True:
        for _ in range(kernels):
            yield "host", host_ns // kernels
            yield "launch", kernel_ns


def bursty(period_ns: int, kernels: int, kernel_ns: int) -> Iterator[Step]:
    """A request every period: marks its begin and its end."""
    for number in itertools.count():
        yield "mark", number
        for _ in range(kernels):
            yield "launch", kernel_ns
        yield "sync", 0
        yield "mark", number
        yield "host", period_ns - kernels * kernel_ns


def once(*steps: Step) -> Iterator[Step]:
    return iter(steps)


def shares(world: World, tenants: list[Tenant], *, warm_ns: int, run_ns: int) -> tuple[list[float], float]:
    """Return each one's part of the time that they got in sum, and how busy the card was, once warm."""
    world.run(warm_ns)
    before, busy = [t.ran_ns for t in tenants], world.busy_ns
    world.run(warm_ns + run_ns)
    ran = [t.ran_ns - b for t, b in zip(tenants, before, strict=True)]
    return [r / sum(ran) for r in ran], (world.busy_ns - busy) / run_ns


def latencies(tenant: Tenant) -> list[int]:
    """Return how long each request took."""
    begins: dict[int, int] = {}
    taken = []
    for at_ns, number in tenant.marks:
        if number in begins:
            taken.append(at_ns - begins.pop(number))
        else:
            begins[number] = at_ns
    return taken
