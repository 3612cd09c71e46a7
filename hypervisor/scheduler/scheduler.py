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
from hypervisor.scheduler import grants, turn_watch
from hypervisor.scheduler.entitlements import Entitlements
from hypervisor.scheduler.entity import LAUNCH_GAP_NS, Entity
from hypervisor.scheduler.preemption import Preemption, outranks
from hypervisor.scheduler.types import (
    MS,
    TURN_IDLE_TIMEOUT_NS,
    Decision,
    EntityStatus,
    Grant,
    QuantumExpiry,
    SchedParams,
    SchedulerConfig,
    TenantUsage,
    TurnWatch,
)

SWITCH_BACKLOG_NS = MS * 7 // 20
"""The next turn begins when so much of the last is still queued: to decide and wake up takes that long."""
EXCLUSIVE_SWITCH_BACKLOG_NS = MS * 4 // 5
"""The same where nobody slips work in, so that it is known when the queue runs dry: then the next is told
when to begin, and there is time enough to decide.
"""
WAKEUP_LEAD_NS = MS * 3 // 50
"""How much earlier than the last one's queue runs dry the next begins: to wake up takes that long."""
PREEMPTIBLE_RUN_AHEAD_NS = MS // 2
"""What a holder may have queued where a higher class might want the GPU any time."""
DRAIN_MARGIN_NS = 3 * MS // 10
"""How much later than it seems the last holder's queue has run dry, to be sure."""
IDLE_TICK_NS = 100 * MS
MAX_VRUNTIME_NS = 1e15
CHARGE_RATE_WINDOW_NS = 500 * MS
MAX_CHARGE_RATE = 4.0
"""GPU time charged by all in a second, in seconds. Tenants measure their work by what passes while it runs,
so more than 1 is charged where work of several overlaps; who is paced by the wall clock must not pay for
that.
"""


class Scheduler:
    """One GPU."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._entities: dict[TenantName, Entity] = {}
        self._holder: TenantName | None = None
        self._turn_from_ns = 0
        self._start_ns = 0
        """The same, if its holder has to know; 0: it began at once."""
        self._turn_spent_ns = 0
        self._turn_queued_ns = 0
        """What its holder had submitted when it began."""
        self._turn_beside_ns = 0
        """What others used during the turn."""
        self._used_up: QuantumExpiry | None = None
        self._draining: TenantName | None = None
        self._exclusive_from_ns = 0
        self._vruntime_ns = 0.0
        self._at_ns = 0
        self._charge_rate = 0.0
        self._changed: dict[TenantName, Entity] = {}
        """Those of whom anything can have changed since the last step."""
        self._entitlements = Entitlements(config.quantum_ns)
        self._preemption = Preemption(self._entities, self._entitlements)

    def step(
        self,
        now_ns: int,
        seen: Mapping[TenantName, TenantUsage],
        terms: Mapping[TenantName, SchedParams],
        used_up: QuantumExpiry | None = None,
    ) -> Decision:
        """Decide anew from what the tenants on the GPU have used until now. `used_up`: the last decision's
        vigil has found that.
        """
        self._used_up = self._used_up or used_up
        self._update_entities(now_ns, seen, terms)
        if len(seen) == 1:
            return self._run_uncontended(now_ns)
        entities = self._entities
        contenders = [name for name, entity in entities.items() if entity.wants_turn]
        self._end_turn(now_ns, contenders)
        self._begin_turn(now_ns, contenders)
        self._preemption.update()
        for name in (self._holder, self._draining):
            if name is not None:
                self._changed[name] = entities[name]
        is_wanted = any(name != self._holder for name in contenders)
        for name, entity in self._changed.items():
            entity.grant = self._grant(name, entity, is_wanted=is_wanted)
            entity.park()
        self._update_exclusive_window(now_ns)
        self._update_sharer_count()
        granted = {name: entity.grant for name, entity in entities.items()}
        watch = self._turn_watch(now_ns, is_wanted=is_wanted)
        next_at_ns = self._next_at(now_ns, is_wanted=is_wanted, is_watched=watch is not None)
        muted = self._muted(watch)
        holder = self._entities[self._holder] if self._holder is not None else None
        preemptors = self._preemption.preemptors(holder)
        return Decision(granted, self._holder, next_at_ns, self._polled(), muted, preemptors, watch)

    def statuses(self) -> dict[TenantName, EntityStatus]:
        """Return what there is to be said of each; nothing of one that is alone."""
        if len(self._entities) == 1:
            return {}
        return {n: EntityStatus(s.takes_turns, s.share, s.rate) for n, s in self._entities.items()}

    def _update_entities(
        self, now_ns: int, seen: Mapping[TenantName, TenantUsage], terms: Mapping[TenantName, SchedParams]
    ) -> None:
        for name in self._entities.keys() - seen.keys():
            del self._entities[name]
            self._entitlements.invalidate()
        elapsed_ns, self._at_ns = now_ns - self._at_ns, now_ns
        holder = self._entities.get(self._holder) if self._holder is not None else None
        is_paused = holder is not None and self._preemption.is_paused(holder)
        if is_paused:
            self._turn_beside_ns += elapsed_ns
        all_spent_ns = 0
        self._changed = {}
        for name, figures in seen.items():
            entity, its_terms = self._entities.get(name), terms[name]
            if entity is None:
                entity = self._entities[name] = Entity(figures, now_ns)
                entity.vruntime_ns = self._vruntime_ns
                self._entitlements.invalidate()
            elif figures is entity.seen and now_ns < entity.parked_until_ns and its_terms is entity.terms:
                continue
            if its_terms is not entity.terms:
                entity.terms = its_terms
                self._entitlements.invalidate()
            self._changed[name] = entity
            spent_ns = entity.update(figures, now_ns, charge_rate=self._charge_rate)
            all_spent_ns += spent_ns
            if name == self._holder:
                self._turn_spent_ns += spent_ns
            elif not is_paused:
                self._turn_beside_ns += spent_ns
        self._preemption.account_overlap(self._changed.values(), all_spent_ns)
        if elapsed_ns > 0:
            gain = 1.0 - math.exp(-elapsed_ns / CHARGE_RATE_WINDOW_NS)
            self._charge_rate += (min(all_spent_ns / elapsed_ns, MAX_CHARGE_RATE) - self._charge_rate) * gain
        if self._holder not in self._entities:
            self._holder = None
        if self._draining not in self._entities:
            self._draining = None
        self._update_entitlements()

    def _update_entitlements(self) -> None:
        """Set each one's part, and see to it that nobody who was away has saved up time."""
        active = self._entitlements.update(self._entities)
        running = [entity.vruntime_ns for entity in active if entity.takes_turns]
        self._vruntime_ns = vruntime_ns = max(self._vruntime_ns, min(running, default=self._vruntime_ns))
        for entity in self._entities.values():
            if entity.vruntime_ns < vruntime_ns - entity.max_lag_ns:
                entity.vruntime_ns = vruntime_ns - entity.max_lag_ns
        self._rebase_vruntime()

    def _rebase_vruntime(self) -> None:
        """Keep virtual times so small that a float tells a microsecond."""
        if self._vruntime_ns > MAX_VRUNTIME_NS:
            for entity in self._entities.values():
                entity.vruntime_ns -= self._vruntime_ns
            self._vruntime_ns = 0.0

    def _run_uncontended(self, now_ns: int) -> Decision:
        """Nobody to share with: only the limit holds, and the tenant keeps to it itself."""
        self._holder = self._draining = None
        self._exclusive_from_ns = 0
        ((name, entity),) = self._entities.items()
        entity.grant = Grant(entity.grant.granted_ns, 0, is_shared=False)
        entity.parked_until_ns = 0
        return Decision({name: entity.grant}, None, now_ns + IDLE_TICK_NS)

    # ---- turns ----

    def _end_turn(self, now_ns: int, contenders: list[TenantName]) -> None:
        if self._holder is None:
            return
        holder = self._entities[self._holder]
        others = [name for name in contenders if name != self._holder]
        wall_ns = now_ns - self._turn_from_ns
        is_used_up = self._turn_spent_ns >= self._config.quantum_ns or wall_ns >= 2 * self._config.quantum_ns
        if is_used_up:
            # When that was so the GPU was still its own; that nobody looked until now is not its fault.
            until = self._used_up or QuantumExpiry(now_ns, holder.backlog_ns)
            used_ns = self._turn_queued_ns + self._turn_spent_ns - until.left_ns
            had_ns = until.at_ns - self._turn_from_ns - self._turn_beside_ns
            holder.utilization.record_turn(min(1.0, used_ns / max(1, had_ns)), now_ns)
            holder.derive()
            if not others:
                self._start_counting(now_ns)
        must_end = not holder.is_runnable or not holder.takes_turns or not holder.has_work
        if must_end or (others and (is_used_up or self._is_outranked(others))):
            self._draining = self._holder
            self._holder = None

    @property
    def _switch_backlog_ns(self) -> int:
        has_interleaved = any(s.is_active and not s.takes_turns for s in self._entities.values())
        return SWITCH_BACKLOG_NS if has_interleaved else EXCLUSIVE_SWITCH_BACKLOG_NS

    def _is_outranked(self, others: Iterable[TenantName]) -> bool:
        """Somebody of a higher class waits inside its request."""
        assert self._holder is not None
        holder = self._entities[self._holder]
        return any(outranks(self._entities[name], holder) for name in others)

    def _begin_turn(self, now_ns: int, contenders: list[TenantName]) -> None:
        last = self._draining
        left_ns = self._entities[last].backlog_ns if last is not None else 0
        if left_ns <= self._switch_backlog_ns:
            self._draining = None
        if self._holder is not None or not contenders:
            return
        chosen = min(self._candidates(contenders, last), key=self._rank)
        draining = self._entities[self._draining] if self._draining is not None else None
        if chosen == last or outranks(self._entities[chosen], draining):
            left_ns = 0
        elif draining is not None:
            return
        self._holder, self._draining = chosen, None
        self._exclusive_from_ns = 0
        is_exact = self._switch_backlog_ns == EXCLUSIVE_SWITCH_BACKLOG_NS
        self._start_ns = now_ns + left_ns - WAKEUP_LEAD_NS if is_exact and left_ns > WAKEUP_LEAD_NS else 0
        self._start_counting(max(now_ns, self._start_ns))

    def _candidates(self, contenders: list[TenantName], last: TenantName | None) -> list[TenantName]:
        """Return who may have the next turn: whose turn is just over, too, although it does not wait yet."""
        if last is None or last in contenders:
            return contenders
        entity = self._entities[last]
        is_candidate = entity.takes_turns and entity.is_runnable and entity.has_work
        return [*contenders, last] if is_candidate else contenders

    def _start_counting(self, now_ns: int) -> None:
        self._turn_from_ns, self._turn_spent_ns, self._turn_beside_ns = now_ns, 0, 0
        self._used_up = None
        self._turn_queued_ns = self._entities[self._holder].backlog_ns if self._holder else 0

    def _rank(self, name: TenantName) -> tuple[int, float]:
        """Return what tenants are ordered by: classes inside requests, then least GPU time for its part."""
        entity = self._entities[name]
        return entity.rank, entity.vruntime_ns

    # ---- grants ----

    def _grant(self, name: TenantName, entity: Entity, *, is_wanted: bool) -> Grant:
        if not entity.is_runnable or self._preemption.is_paused(entity):
            return grants.no_grant(entity)
        if name == self._holder:
            quantum_ns = self._config.quantum_ns
            left_ns = max(0, quantum_ns - self._turn_spent_ns) if is_wanted else None
            return grants.turn_grant(entity, self._run_ahead_ns(entity), left_ns, quantum_ns, self._start_ns)
        if entity.takes_turns:
            return grants.no_grant(entity)
        is_inside = entity.is_inside_request and not self._preemption.may_be_preempted(entity)
        return grants.interleaved_grant(entity, is_inside=is_inside)

    def _run_ahead_ns(self, entity: Entity) -> int:
        """Return what each of a holder's threads may have queued: little, if a higher class may come."""
        if self._preemption.may_be_preempted(entity):
            return min(PREEMPTIBLE_RUN_AHEAD_NS, self._config.run_ahead_ns)
        return self._config.run_ahead_ns // entity.queues

    def _polled(self) -> frozenset[TenantName]:
        """Return who does not ring when something changes: everybody but those who rest."""
        return frozenset(
            name
            for name, s in self._changed.items()
            if s.backlog_ns
            or not (s.waits_for_grant or s.parked_until_ns > self._at_ns)
            or name in (self._holder, self._draining)
        )

    def _muted(self, watch: TurnWatch | None) -> frozenset[TenantName]:
        """Return who waits for what only others or the clock can give, and a holder under a vigil."""
        waiting = [n for n, s in self._entities.items() if s.waits_for_grant and n != self._draining]
        return frozenset(waiting if watch is None else [*waiting, watch.tenant])

    def _turn_watch(self, now_ns: int, *, is_wanted: bool) -> TurnWatch | None:
        """Return what to look at during a turn."""
        if self._holder is None or self._preemption.rank:
            return None  # while others wait for urgent work, its end is looked for all the time
        holder = self._entities[self._holder]
        granted_ns, spent_ns = holder.grant.granted_ns, holder.seen.spent_ns
        if not is_wanted:  # it is to be granted more before it has used that up
            granted_ns -= min(self._config.quantum_ns, (granted_ns - spent_ns) // 2)
        watch = turn_watch.start(
            self._holder,
            holder.seen,
            holder.queue_end_ns,
            now_ns,
            until_spent_ns=granted_ns,
            queued_ns=self._switch_backlog_ns if is_wanted else turn_watch.ANY_BACKLOG_NS,
        )
        return watch._replace(used_up_ns=self._used_up.at_ns) if self._used_up else watch

    def _update_exclusive_window(self, now_ns: int) -> None:
        """Tell the holder since when it has had the GPU to itself: its time is measured exactly then, and by
        what its launches cost at other times.
        """
        others = [s for n, s in self._entities.items() if n != self._holder]
        if self._holder is None or any(self._may_interleave(n) for n in self._entities if n != self._holder):
            self._exclusive_from_ns = 0
        elif not self._exclusive_from_ns:
            queued_ns = max((s.backlog_ns for s in others), default=0)
            self._exclusive_from_ns = now_ns + queued_ns + DRAIN_MARGIN_NS
        for name, entity in self._entities.items():
            from_ns = self._exclusive_from_ns if name == self._holder else 0
            if entity.grant.exclusive_from_ns != from_ns:
                entity.grant = entity.grant._replace(exclusive_from_ns=from_ns)

    def _update_sharer_count(self) -> None:
        """Tell each how many processes may have work on the GPU beside its own."""
        beside = [
            s for n, s in self._entities.items() if s.is_active and (n == self._holder or not s.takes_turns)
        ]
        runs = sum(s.seen.processes for s in beside)
        for entity in self._entities.values():
            sharers = runs + (0 if entity in beside else entity.seen.processes)
            entity.hardware_share = entity.seen.processes / max(1, sharers)
            if entity.grant.sharers != sharers:
                entity.grant = entity.grant._replace(sharers=sharers)

    def _may_interleave(self, name: TenantName) -> bool:
        """Its work may come beside the holder's; that of a class that others wait for is seen at once."""
        entity = self._entities[name]
        if self._holder is not None and outranks(entity, self._entities[self._holder]):
            return entity.has_gpu_work
        return entity.is_active and not entity.takes_turns

    def _next_at(self, now_ns: int, *, is_wanted: bool, is_watched: bool) -> int:
        """Return when something will be due: a queue has run dry, tokens have come together, or the tick."""
        due = [IDLE_TICK_NS]
        active = [s for s in self._entities.values() if s.is_active]
        if active:
            # Those that take turns are looked after or ring; the others should not have to.
            is_quiet = all(s.takes_turns or s.parked_until_ns > now_ns for s in active)
            if not is_quiet or not is_watched:
                due.append(self._config.tick_ns * (2 if is_quiet else 1))
        if self._holder is not None and not is_watched and not self._entities[self._holder].seen.waiting:
            # That it has nothing more to do shows only by looking.
            due.append(self._entities[self._holder].backlog_ns + TURN_IDLE_TIMEOUT_NS)
        if self._holder is not None and is_wanted:
            due.append(self._turn_from_ns + 2 * self._config.quantum_ns - now_ns)
        if self._draining is not None and self._holder is None:
            due.append(self._entities[self._draining].backlog_ns - self._switch_backlog_ns)
        for entity in self._entities.values():
            # Others wait for these, and they do not ring.
            if entity.pauses_others:
                due.append(max(MS // 2, entity.seen.outstanding_ns - MS // 2))
            elif self._preemption.rank and entity.rank == self._preemption.rank and entity.has_gpu_work:
                due.append(max(0, entity.remaining_ns) + LAUNCH_GAP_NS)
            if not entity.seen.waiting or self._preemption.is_paused(entity):
                continue
            if not entity.is_runnable and not entity.terms.is_suspended:
                due.append(entity.limit_wait_ns())
            elif not entity.takes_turns and entity.grant.granted_ns <= entity.seen.spent_ns:
                due.append(entity.interleave_bucket.wall_ns_until(entity.min_grant_ns, entity.share))
        return now_ns + max(MS // 10, min(due))
