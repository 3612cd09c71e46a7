# SPDX-License-Identifier: Apache-2.0
"""Who may use a GPU now, and for how long: weighted deficit round-robin in GPU time.

Tenants that keep the GPU busy take turns: one at a time, a quantum of GPU time each, next the one with the
least GPU time for its part; tenants inside their request go first, higher classes before lower. A turn also
ends when its holder has nothing to do, or after two quanta of wall time, and the next begins when the
holder's queue has run dry. The others slip their work in beside, each paced to its part. Limits cap all of
it. One tenant alone on the GPU is not asked for anything.

A tenant may go while it has spent less than it was granted; time that was granted and not used is taken
back by granting less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler import grants
from hypervisor.scheduler import turn_watch as vigils
from hypervisor.scheduler.entitlements import Parts
from hypervisor.scheduler.entity import LINGER_NS, Standing
from hypervisor.scheduler.preemption import Urgency, is_above
from hypervisor.scheduler.types import (
    MS,
    TURN_IDLE_TIMEOUT_NS,
    Decision,
    Grant,
    Pace,
    Rating,
    Seen,
    Terms,
    UsedUp,
    Vigil,
)

HANDOVER_NS = MS * 7 // 20
"""The next turn begins when so much of the last is still queued: to decide and wake up takes that long."""
EXACT_HANDOVER_NS = MS * 4 // 5
"""The same where nobody slips work in, so that it is known when the queue runs dry: then the next is told
when to begin, and there is time enough to decide.
"""
EARLY_NS = MS * 3 // 50
"""How much earlier than the last one's queue runs dry the next begins: to wake up takes that long."""
SHORT_AHEAD_NS = MS // 2
"""What a holder may have queued where a higher class might want the GPU any time."""
SETTLED_NS = 3 * MS // 10
"""How much later than it seems the last holder's queue has run dry, to be sure."""
IDLE_TICK_NS = 100 * MS
MOST_VIRTUAL_NS = 1e15
CHARGED_WINDOW_NS = 500 * MS
MOST_CHARGED = 4.0
"""GPU time charged by all in a second, in seconds. Tenants measure their work by what passes while it runs,
so more than 1 is charged where work of several overlaps; who is paced by the wall clock must not pay for
that.
"""


class Arbiter:
    """One GPU."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._standings: dict[TenantName, Standing] = {}
        self._holder: TenantName | None = None
        self._turn_from_ns = 0
        self._start_ns = 0
        """The same, if its holder has to know; 0: it began at once."""
        self._turn_spent_ns = 0
        self._turn_queued_ns = 0
        """What its holder had submitted when it began."""
        self._turn_beside_ns = 0
        """What others used during the turn."""
        self._used_up: UsedUp | None = None
        self._draining: TenantName | None = None
        self._exclusive_from_ns = 0
        self._virtual_ns = 0.0
        self._at_ns = 0
        self._charged = 0.0
        self._awake: dict[TenantName, Standing] = {}
        """Those of whom anything can have changed since the last step."""
        self._parts = Parts(pace.quantum_ns)
        self._urgency = Urgency(self._standings, self._parts)

    def step(
        self,
        now_ns: int,
        seen: Mapping[TenantName, Seen],
        terms: Mapping[TenantName, Terms],
        used_up: UsedUp | None = None,
    ) -> Decision:
        """Decide anew from what the tenants on the GPU have used until now. `used_up`: the last decision's
        vigil has found that.
        """
        self._used_up = self._used_up or used_up
        self._take_in(now_ns, seen, terms)
        if len(seen) == 1:
            return self._alone(now_ns)
        standings = self._standings
        contenders = [name for name, standing in standings.items() if standing.contends]
        self._end_turn(now_ns, contenders)
        self._begin_turn(now_ns, contenders)
        self._urgency.decide()
        for name in (self._holder, self._draining):
            if name is not None:
                self._awake[name] = standings[name]
        is_wanted = any(name != self._holder for name in contenders)
        for name, standing in self._awake.items():
            standing.grant = self._grant(name, standing, is_wanted=is_wanted)
            standing.rest()
        self._say_who_is_exclusive(now_ns)
        self._say_how_many_share()
        granted = {name: standing.grant for name, standing in standings.items()}
        vigil = self._vigil(now_ns, is_wanted=is_wanted)
        next_at_ns = self._next_at(now_ns, is_wanted=is_wanted, has_vigil=vigil is not None)
        unheard = self._unheard(vigil)
        holder = self._standings[self._holder] if self._holder is not None else None
        preempting = self._urgency.preempting(holder)
        return Decision(granted, self._holder, next_at_ns, self._watched(), unheard, preempting, vigil)

    def ratings(self) -> dict[TenantName, Rating]:
        """Return what there is to be said of each; nothing of one that is alone."""
        if len(self._standings) == 1:
            return {}
        return {n: Rating(s.takes_turns, s.part, s.rate) for n, s in self._standings.items()}

    def _take_in(
        self, now_ns: int, seen: Mapping[TenantName, Seen], terms: Mapping[TenantName, Terms]
    ) -> None:
        for name in self._standings.keys() - seen.keys():
            del self._standings[name]
            self._parts.forget()
        elapsed_ns, self._at_ns = now_ns - self._at_ns, now_ns
        holder = self._standings.get(self._holder) if self._holder is not None else None
        is_paused = holder is not None and self._urgency.hushes(holder)
        if is_paused:
            self._turn_beside_ns += elapsed_ns
        all_spent_ns = 0
        self._awake = {}
        for name, figures in seen.items():
            standing, its_terms = self._standings.get(name), terms[name]
            if standing is None:
                standing = self._standings[name] = Standing(figures, now_ns)
                standing.virtual_ns = self._virtual_ns
                self._parts.forget()
            elif (
                figures is standing.seen and now_ns < standing.rests_until_ns and its_terms is standing.terms
            ):
                continue
            if its_terms is not standing.terms:
                standing.terms = its_terms
                self._parts.forget()
            self._awake[name] = standing
            spent_ns = standing.take_in(figures, now_ns, charged=self._charged)
            all_spent_ns += spent_ns
            if name == self._holder:
                self._turn_spent_ns += spent_ns
            elif not is_paused:
                self._turn_beside_ns += spent_ns
        self._urgency.note_work(self._awake.values(), all_spent_ns)
        if elapsed_ns > 0:
            gain = 1.0 - math.exp(-elapsed_ns / CHARGED_WINDOW_NS)
            self._charged += (min(all_spent_ns / elapsed_ns, MOST_CHARGED) - self._charged) * gain
        if self._holder not in self._standings:
            self._holder = None
        if self._draining not in self._standings:
            self._draining = None
        self._divide()

    def _divide(self) -> None:
        """Set each one's part, and see to it that nobody who was away has saved up time."""
        active = self._parts.divide(self._standings)
        running = [standing.virtual_ns for standing in active if standing.takes_turns]
        self._virtual_ns = virtual_ns = max(self._virtual_ns, min(running, default=self._virtual_ns))
        for standing in self._standings.values():
            if standing.virtual_ns < virtual_ns - standing.behind_ns:
                standing.virtual_ns = virtual_ns - standing.behind_ns
        self._begin_virtual_time_anew()

    def _begin_virtual_time_anew(self) -> None:
        """Keep virtual times so small that a float tells a microsecond."""
        if self._virtual_ns > MOST_VIRTUAL_NS:
            for standing in self._standings.values():
                standing.virtual_ns -= self._virtual_ns
            self._virtual_ns = 0.0

    def _alone(self, now_ns: int) -> Decision:
        """Nobody to share with: only the limit holds, and the tenant keeps to it itself."""
        self._holder = self._draining = None
        self._exclusive_from_ns = 0
        ((name, standing),) = self._standings.items()
        standing.grant = Grant(standing.grant.granted_ns, 0, is_shared=False)
        standing.rests_until_ns = 0
        return Decision({name: standing.grant}, None, now_ns + IDLE_TICK_NS)

    # ---- turns ----

    def _end_turn(self, now_ns: int, contenders: list[TenantName]) -> None:
        if self._holder is None:
            return
        holder = self._standings[self._holder]
        others = [name for name in contenders if name != self._holder]
        wall_ns = now_ns - self._turn_from_ns
        is_used_up = self._turn_spent_ns >= self._pace.quantum_ns or wall_ns >= 2 * self._pace.quantum_ns
        if is_used_up:
            # When that was so the GPU was still its own; that nobody looked until now is not its fault.
            until = self._used_up or UsedUp(now_ns, holder.queued_ns)
            used_ns = self._turn_queued_ns + self._turn_spent_ns - until.left_ns
            had_ns = until.at_ns - self._turn_from_ns - self._turn_beside_ns
            holder.fill.note(min(1.0, used_ns / max(1, had_ns)), now_ns)
            holder.conclude()
            if not others:
                self._start_counting(now_ns)
        must_end = not holder.may_run or not holder.takes_turns or not holder.has_work
        if must_end or (others and (is_used_up or self._is_outranked(others))):
            self._draining = self._holder
            self._holder = None

    @property
    def _handover_ns(self) -> int:
        slipping = any(s.is_active and not s.takes_turns for s in self._standings.values())
        return HANDOVER_NS if slipping else EXACT_HANDOVER_NS

    def _is_outranked(self, others: Iterable[TenantName]) -> bool:
        """Somebody of a higher class waits inside its request."""
        assert self._holder is not None
        holder = self._standings[self._holder]
        return any(is_above(self._standings[name], holder) for name in others)

    def _begin_turn(self, now_ns: int, contenders: list[TenantName]) -> None:
        last = self._draining
        left_ns = self._standings[last].queued_ns if last is not None else 0
        if left_ns <= self._handover_ns:
            self._draining = None
        if self._holder is not None or not contenders:
            return
        chosen = min(self._candidates(contenders, last), key=self._rank)
        draining = self._standings[self._draining] if self._draining is not None else None
        if chosen == last or is_above(self._standings[chosen], draining):
            left_ns = 0
        elif draining is not None:
            return
        self._holder, self._draining = chosen, None
        self._exclusive_from_ns = 0
        is_exact = self._handover_ns == EXACT_HANDOVER_NS
        self._start_ns = now_ns + left_ns - EARLY_NS if is_exact and left_ns > EARLY_NS else 0
        self._start_counting(max(now_ns, self._start_ns))

    def _candidates(self, contenders: list[TenantName], last: TenantName | None) -> list[TenantName]:
        """Return who may have the next turn: whose turn is just over, too, although it does not wait yet."""
        if last is None or last in contenders:
            return contenders
        standing = self._standings[last]
        is_candidate = standing.takes_turns and standing.may_run and standing.has_work
        return [*contenders, last] if is_candidate else contenders

    def _start_counting(self, now_ns: int) -> None:
        self._turn_from_ns, self._turn_spent_ns, self._turn_beside_ns = now_ns, 0, 0
        self._used_up = None
        self._turn_queued_ns = self._standings[self._holder].queued_ns if self._holder else 0

    def _rank(self, name: TenantName) -> tuple[int, float]:
        """Return what tenants are ordered by: classes inside requests, then least GPU time for its part."""
        standing = self._standings[name]
        return standing.rank, standing.virtual_ns

    # ---- grants ----

    def _grant(self, name: TenantName, standing: Standing, *, is_wanted: bool) -> Grant:
        if not standing.may_run or self._urgency.hushes(standing):
            return grants.held_back(standing)
        if name == self._holder:
            quantum_ns = self._pace.quantum_ns
            left_ns = max(0, quantum_ns - self._turn_spent_ns) if is_wanted else None
            return grants.turn(standing, self._run_ahead_ns(standing), left_ns, quantum_ns, self._start_ns)
        if standing.takes_turns:
            return grants.held_back(standing)
        is_inside = standing.is_inside_request and not self._urgency.may_come_above(standing)
        return grants.slip(standing, is_inside=is_inside)

    def _run_ahead_ns(self, standing: Standing) -> int:
        """Return what each of a holder's threads may have queued: little, if a higher class may come."""
        if self._urgency.may_come_above(standing):
            return min(SHORT_AHEAD_NS, self._pace.run_ahead_ns)
        return self._pace.run_ahead_ns // standing.queues

    def _watched(self) -> frozenset[TenantName]:
        """Return who does not ring when something changes: everybody but those who rest."""
        return frozenset(
            name
            for name, s in self._awake.items()
            if s.queued_ns
            or not (s.waits_for_grant or s.rests_until_ns > self._at_ns)
            or name in (self._holder, self._draining)
        )

    def _unheard(self, vigil: Vigil | None) -> frozenset[TenantName]:
        """Return who waits for what only others or the clock can give, and a holder under a vigil."""
        waiting = [n for n, s in self._standings.items() if s.waits_for_grant and n != self._draining]
        return frozenset(waiting if vigil is None else [*waiting, vigil.tenant])

    def _vigil(self, now_ns: int, *, is_wanted: bool) -> Vigil | None:
        """Return what to look at during a turn."""
        if self._holder is None or self._urgency.rank:
            return None  # while others wait for urgent work, its end is looked for all the time
        holder = self._standings[self._holder]
        granted_ns, spent_ns = holder.grant.granted_ns, holder.seen.spent_ns
        if not is_wanted:  # it is to be granted more before it has used that up
            granted_ns -= min(self._pace.quantum_ns, (granted_ns - spent_ns) // 2)
        vigil = vigils.begin(
            self._holder,
            holder.seen,
            holder.queue_end_ns,
            now_ns,
            until_spent_ns=granted_ns,
            queued_ns=self._handover_ns if is_wanted else vigils.ANY_QUEUE_NS,
        )
        return vigil._replace(used_up_ns=self._used_up.at_ns) if self._used_up else vigil

    def _say_who_is_exclusive(self, now_ns: int) -> None:
        """Tell the holder since when it has had the GPU to itself: its time is measured exactly then, and by
        what its launches cost at other times.
        """
        others = [s for n, s in self._standings.items() if n != self._holder]
        if self._holder is None or any(self._may_slip_in(n) for n in self._standings if n != self._holder):
            self._exclusive_from_ns = 0
        elif not self._exclusive_from_ns:
            queued_ns = max((s.queued_ns for s in others), default=0)
            self._exclusive_from_ns = now_ns + queued_ns + SETTLED_NS
        for name, standing in self._standings.items():
            from_ns = self._exclusive_from_ns if name == self._holder else 0
            if standing.grant.exclusive_from_ns != from_ns:
                standing.grant = standing.grant._replace(exclusive_from_ns=from_ns)

    def _say_how_many_share(self) -> None:
        """Tell each how many processes may have work on the GPU beside its own."""
        beside = [
            s for n, s in self._standings.items() if s.is_active and (n == self._holder or not s.takes_turns)
        ]
        runs = sum(s.seen.processes for s in beside)
        for standing in self._standings.values():
            sharers = runs + (0 if standing in beside else standing.seen.processes)
            standing.slice = standing.seen.processes / max(1, sharers)
            if standing.grant.sharers != sharers:
                standing.grant = standing.grant._replace(sharers=sharers)

    def _may_slip_in(self, name: TenantName) -> bool:
        """Its work may come beside the holder's; that of a class that others wait for is seen at once."""
        standing = self._standings[name]
        if self._holder is not None and is_above(standing, self._standings[self._holder]):
            return standing.is_working
        return standing.is_active and not standing.takes_turns

    def _next_at(self, now_ns: int, *, is_wanted: bool, has_vigil: bool) -> int:
        """Return when something will be due: a queue has run dry, tokens have come together, or the tick."""
        due = [IDLE_TICK_NS]
        active = [s for s in self._standings.values() if s.is_active]
        if active:
            # Those that take turns are looked after or ring; the others should not have to.
            is_quiet = all(s.takes_turns or s.rests_until_ns > now_ns for s in active)
            if not is_quiet or not has_vigil:
                due.append(self._pace.tick_ns * (2 if is_quiet else 1))
        if self._holder is not None and not has_vigil and not self._standings[self._holder].seen.waiting:
            # That it has nothing more to do shows only by looking.
            due.append(self._standings[self._holder].queued_ns + TURN_IDLE_TIMEOUT_NS)
        if self._holder is not None and is_wanted:
            due.append(self._turn_from_ns + 2 * self._pace.quantum_ns - now_ns)
        if self._draining is not None and self._holder is None:
            due.append(self._standings[self._draining].queued_ns - self._handover_ns)
        for standing in self._standings.values():
            # Others wait for these, and they do not ring.
            if standing.holds_up_others:
                due.append(max(MS // 2, standing.seen.outstanding_ns - MS // 2))
            elif self._urgency.rank and standing.rank == self._urgency.rank and standing.is_working:
                due.append(max(0, standing.work_left_ns) + LINGER_NS)
            if not standing.seen.waiting or self._urgency.hushes(standing):
                continue
            if not standing.may_run and not standing.terms.is_suspended:
                due.append(standing.limit_wait_ns())
            elif not standing.takes_turns and standing.grant.granted_ns <= standing.seen.spent_ns:
                due.append(standing.slip.wall_ns_until(standing.piece_ns, standing.part))
        return now_ns + max(MS // 10, min(due))
