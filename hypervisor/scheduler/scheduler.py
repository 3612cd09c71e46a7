# SPDX-License-Identifier: Apache-2.0
"""Scheduler of one GPU: weighted deficit round-robin in GPU time.

Backlogged tenants take turns. One tenant at a time gets a quantum of GPU time; next is the one with the
lowest vruntime. Tenants inside their request go first, higher classes before lower ones. A turn also ends
when its holder has no work, or after two quanta of wall time. The next turn begins when the holder's queue
has drained. The other tenants run interleaved, each paced to its share. Limits cap all tenants. A tenant
that is alone on the GPU needs no grant.

A tenant may launch while it has spent less GPU time than it was granted. A lower grant takes back time that
was granted and not used.
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
"""Backlog of the last holder at which the next turn begins: a step and a wake-up take that long."""
EXCLUSIVE_SWITCH_BACKLOG_NS = MS * 4 // 5
"""The same while no tenant runs interleaved. The end of the queue is then known, and the next holder is told
when to begin.
"""
WAKEUP_LEAD_NS = MS * 3 // 50
"""Time before the end of the last holder's queue at which the next turn begins: a wake-up takes that long."""
PREEMPTIBLE_RUN_AHEAD_NS = MS // 2
"""Run-ahead of a holder that a higher class may preempt at any time."""
DRAIN_MARGIN_NS = 3 * MS // 10
"""Safety margin after the expected end of the last holder's queue."""
IDLE_TICK_NS = 100 * MS
MAX_VRUNTIME_NS = 1e15
CHARGE_RATE_WINDOW_NS = 500 * MS
MAX_CHARGE_RATE = 4.0
"""Upper bound of the GPU time charged to all tenants per wall time. Tenants measure their work by elapsed
time, so the rate exceeds 1 where work of several tenants overlaps. A tenant that is paced by the wall clock
must not pay for that.
"""


class Scheduler:
    """Scheduler of one GPU."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._entities: dict[TenantName, Entity] = {}
        self._holder: TenantName | None = None
        self._turn_from_ns = 0
        self._start_ns = 0
        """Start of the turn as the holder is told. 0 if the turn began at once."""
        self._turn_spent_ns = 0
        self._turn_queued_ns = 0
        """Backlog of the holder at the start of the turn."""
        self._turn_beside_ns = 0
        """GPU time that other tenants used during the turn."""
        self._used_up: QuantumExpiry | None = None
        self._draining: TenantName | None = None
        self._exclusive_from_ns = 0
        self._vruntime_ns = 0.0
        self._at_ns = 0
        self._charge_rate = 0.0
        self._changed: dict[TenantName, Entity] = {}
        """Entities that can have changed since the last step."""
        self._entitlements = Entitlements(config.quantum_ns)
        self._preemption = Preemption(self._entities, self._entitlements)

    def step(
        self,
        now_ns: int,
        seen: Mapping[TenantName, TenantUsage],
        terms: Mapping[TenantName, SchedParams],
        used_up: QuantumExpiry | None = None,
    ) -> Decision:
        """Update all entities and return the next decision. `used_up`: the moment at which the turn watch of
        the last decision found the quantum used up, None if it did not.
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
        """Return the status of each tenant. Empty if one tenant is alone: nothing is shared then."""
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
        """Set each entity's share, and bound the lag of its vruntime: an absent tenant saves no time up."""
        active = self._entitlements.update(self._entities)
        running = [entity.vruntime_ns for entity in active if entity.takes_turns]
        self._vruntime_ns = vruntime_ns = max(self._vruntime_ns, min(running, default=self._vruntime_ns))
        for entity in self._entities.values():
            if entity.vruntime_ns < vruntime_ns - entity.max_lag_ns:
                entity.vruntime_ns = vruntime_ns - entity.max_lag_ns
        self._rebase_vruntime()

    def _rebase_vruntime(self) -> None:
        """Keep vruntimes so small that a float resolves a microsecond."""
        if self._vruntime_ns > MAX_VRUNTIME_NS:
            for entity in self._entities.values():
                entity.vruntime_ns -= self._vruntime_ns
            self._vruntime_ns = 0.0

    def _run_uncontended(self, now_ns: int) -> Decision:
        """Return the decision for a tenant that is alone. The library itself enforces its limit."""
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
            # The quantum may have been used up before this step; until then the GPU was the holder's.
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
        """True if a tenant of a higher class waits inside its request."""
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
        """Return the tenants that may get the next turn, including the last holder if it still has work."""
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
        """Return the sort key of a tenant: class inside its request first, then vruntime."""
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
        """Return the run-ahead of each of the holder's threads. Short if a higher class may preempt it."""
        if self._preemption.may_be_preempted(entity):
            return min(PREEMPTIBLE_RUN_AHEAD_NS, self._config.run_ahead_ns)
        return self._config.run_ahead_ns // entity.queues

    def _polled(self) -> frozenset[TenantName]:
        """Return the tenants that do not ring on a change: all but the parked and waiting ones."""
        return frozenset(
            name
            for name, s in self._changed.items()
            if s.backlog_ns
            or not (s.waits_for_grant or s.parked_until_ns > self._at_ns)
            or name in (self._holder, self._draining)
        )

    def _muted(self, watch: TurnWatch | None) -> frozenset[TenantName]:
        """Return the tenants that wait for a grant, and the holder if a turn watch polls it."""
        waiting = [n for n, s in self._entities.items() if s.waits_for_grant and n != self._draining]
        return frozenset(waiting if watch is None else [*waiting, watch.tenant])

    def _turn_watch(self, now_ns: int, *, is_wanted: bool) -> TurnWatch | None:
        """Return the turn watch for the holder. None without a turn and while preemption needs every step."""
        if self._holder is None or self._preemption.rank:
            return None  # the end of preempting work is looked for at every step
        holder = self._entities[self._holder]
        granted_ns, spent_ns = holder.grant.granted_ns, holder.seen.spent_ns
        if not is_wanted:  # the holder gets its next grant before it has used up this one
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
        """Set the time since which the holder has had the GPU to itself. From then on its use is measured
        exactly; at other times it is estimated from the learned cost of its launches.
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
        """Set the number of processes that may have work on the GPU, as each tenant's grant reports it."""
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
        """True if the tenant may run beside the holder. A preempting class counts while it has work."""
        entity = self._entities[name]
        if self._holder is not None and outranks(entity, self._entities[self._holder]):
            return entity.has_gpu_work
        return entity.is_active and not entity.takes_turns

    def _next_at(self, now_ns: int, *, is_wanted: bool, is_watched: bool) -> int:
        """Return the time of the next step: a queue drains, tokens are earned, or the tick."""
        due = [IDLE_TICK_NS]
        active = [s for s in self._entities.values() if s.is_active]
        if active:
            # Tenants that take turns are watched or ring. Interleaved ones should not need to ring.
            is_quiet = all(s.takes_turns or s.parked_until_ns > now_ns for s in active)
            if not is_quiet or not is_watched:
                due.append(self._config.tick_ns * (2 if is_quiet else 1))
        if self._holder is not None and not is_watched and not self._entities[self._holder].seen.waiting:
            # An idle holder does not ring: only reading its counters shows it.
            due.append(self._entities[self._holder].backlog_ns + TURN_IDLE_TIMEOUT_NS)
        if self._holder is not None and is_wanted:
            due.append(self._turn_from_ns + 2 * self._config.quantum_ns - now_ns)
        if self._draining is not None and self._holder is None:
            due.append(self._entities[self._draining].backlog_ns - self._switch_backlog_ns)
        for entity in self._entities.values():
            # Other tenants are paused for these, and these do not ring when their work ends.
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
