# SPDX-License-Identifier: Apache-2.0
"""Scheduler of one GPU: weighted deficit round-robin in GPU time.

Backlogged tenants take turns. One tenant at a time gets a quantum of GPU time. The tenant with the lowest
vruntime is next. Tenants inside their request go first, higher classes before lower ones. A turn also ends
when its holder has no work, or after two quanta of wall time. The next turn begins when the holder's queue
has drained. The other tenants run interleaved, each paced to its share. Limits hold for all tenants. A tenant
that is alone on the GPU needs no grant.

A tenant may launch while it has spent less GPU time than it was granted. A lower grant withdraws granted time
that the tenant has not used.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler import grants, turn_watch
from hypervisor.scheduler.entitlements import Entitlements
from hypervisor.scheduler.entity import LAUNCH_GAP_NS, Entity
from hypervisor.scheduler.preemption import Preemption, outranks
from hypervisor.scheduler.turns import Turns
from hypervisor.scheduler.types import (
    MS,
    TURN_IDLE_TIMEOUT_NS,
    Decision,
    EntityStatus,
    GangSlot,
    Grant,
    QuantumExpiry,
    SchedParams,
    SchedulerConfig,
    TenantUsage,
    TurnWatch,
)
from limiter.quota import PriorityClass

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
must not be charged for that overlap.
"""


class Scheduler:
    """Scheduler of one GPU."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._entities: dict[TenantName, Entity] = {}
        self._turns = Turns(config, self._entities)
        self._exclusive_from_ns = 0
        self._vruntime_ns = 0.0
        self._at_ns = 0
        self._charge_rate = 0.0
        self._changed: dict[TenantName, Entity] = {}
        """Entities whose state may have changed since the last step."""
        self._entitlements = Entitlements(config.quantum_ns)
        self._preemption = Preemption(self._entities, self._entitlements)
        self._slot: GangSlot | None = None
        self.has_cut_in = False
        """True if a tenant of a higher class runs during a gang's turn on this GPU."""

    @property
    def entities(self) -> Mapping[TenantName, Entity]:
        """State of the tenants as of the last `observe`."""
        return self._entities

    def step(
        self,
        now_ns: int,
        seen: Mapping[TenantName, TenantUsage],
        terms: Mapping[TenantName, SchedParams],
        used_up: QuantumExpiry | None = None,
    ) -> Decision:
        """Update all entities and return the next decision. `used_up`: the moment at which the turn watch of
        the last decision found the quantum used up. None if it did not.
        """
        self.observe(now_ns, seen, terms, used_up)
        return self.decide(now_ns)

    def observe(
        self,
        now_ns: int,
        seen: Mapping[TenantName, TenantUsage],
        terms: Mapping[TenantName, SchedParams],
        used_up: QuantumExpiry | None = None,
    ) -> None:
        """Update all entities: the first half of a step."""
        self._turns.used_up = self._turns.used_up or used_up
        self._update_entities(now_ns, seen, terms)

    def decide(self, now_ns: int) -> Decision:
        """Return the next decision: the second half of a step."""
        entities, turns = self._entities, self._turns
        if len(entities) == 1 and not any(entity.is_coordinated for entity in entities.values()):
            return self._run_uncontended(now_ns)
        contenders = [n for n, entity in entities.items() if entity.wants_turn and not entity.is_shut_out]
        turns.end(now_ns, contenders)
        if turns.begin(now_ns, contenders):
            self._exclusive_from_ns = 0
        self._preemption.update()
        for name in (turns.holder, turns.draining, *self._members):
            if name is not None:
                self._changed[name] = entities[name]
        is_wanted = any(name != turns.holder for name in contenders)
        for name, entity in self._changed.items():
            entity.grant = self._grant(name, entity, is_wanted=is_wanted)
            entity.park()
        self._update_exclusive_window(now_ns)
        self._update_sharer_count()
        granted = {name: entity.grant for name, entity in entities.items()}
        watch = self._turn_watch(now_ns, is_wanted=is_wanted)
        next_at_ns = self._next_at(now_ns, is_wanted=is_wanted, is_watched=watch is not None)
        muted = self._muted(watch)
        open_to = self._members if self._slot is not None and self._slot.is_open else frozenset()
        running = turns.holding or next((entities[name] for name in open_to), None)
        preemptors = self._preemption.preemptors(running)
        self.has_cut_in = any(
            turns.holder is not None or self._preemption.is_paused(entities[name]) for name in self._members
        )
        polled = self._polled()
        return Decision(granted, turns.holder, next_at_ns, polled, muted, preemptors, open_to, watch)

    # ---- gangs ----

    @property
    def is_of_one_tenant(self) -> bool:
        """True if no gang has a turn here, and a single tenant has a turn or its queue drains. A step then
        changes nothing for gangs.
        """
        return self._slot is None and (self._turns.holder or self._turns.draining) is not None

    def coordinate(self, coordinated: Collection[TenantName], slot: GangSlot | None) -> None:
        """Set the tenants that get GPU time only in a gang's turn, and the gang's turn on this GPU, if any.
        Call this between `observe` and `decide`.
        """
        for name, entity in self._entities.items():
            if (name in coordinated) != entity.is_coordinated:
                entity.is_coordinated = not entity.is_coordinated
                entity.derive()
                self._changed[name] = entity
                self._entitlements.invalidate()
            may_run = (
                slot is None or name in slot.members or entity.rank < min(slot.rank, 1 - PriorityClass.HIGH)
            )
            entity.is_shut_out = not may_run
        if slot != self._slot:
            self._changed = dict(self._entities)
            if slot is None or self._slot is None or slot.start_ns != self._slot.start_ns or not slot.is_open:
                self._exclusive_from_ns = 0
            self._slot = slot
        self._turns.yield_to_gang()

    @property
    def _members(self) -> frozenset[TenantName]:
        """Tenants here of the gang that has a turn, or whose work drains after its turn."""
        return self._slot.members if self._slot is not None else frozenset()

    @property
    def _sole(self) -> TenantName | None:
        """The tenant that has the GPU to itself, apart from interleaved ones. None if there is none, or if
        several members of a gang run.
        """
        if self._turns.holder is not None or self._slot is None or not self._slot.is_open:
            return self._turns.holder
        return next(iter(self._slot.members)) if len(self._slot.members) == 1 else None

    def statuses(self) -> dict[TenantName, EntityStatus]:
        """Return the status of each tenant. Empty if only one tenant uses the GPU: nothing is shared then."""
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
        turns = self._turns
        holder = self._entities.get(turns.holder) if turns.holder is not None else None
        is_paused = holder is not None and self._preemption.is_paused(holder)
        if is_paused:
            turns.beside_ns += elapsed_ns
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
            if name == turns.holder:
                turns.spent_ns += spent_ns
            elif not is_paused:
                turns.beside_ns += spent_ns
        self._preemption.account_overlap(self._changed.values(), all_spent_ns)
        if elapsed_ns > 0:
            gain = 1.0 - math.exp(-elapsed_ns / CHARGE_RATE_WINDOW_NS)
            self._charge_rate += (min(all_spent_ns / elapsed_ns, MAX_CHARGE_RATE) - self._charge_rate) * gain
        turns.drop_missing()
        self._update_entitlements()

    def _update_entitlements(self) -> None:
        """Set each entity's share. Bound the lag of its vruntime, so that no tenant saves up unused time."""
        active = self._entitlements.update(self._entities)
        turned = (entity for entity in active if entity.takes_turns and not entity.is_coordinated)
        running = [entity.vruntime_ns for entity in turned]
        self._vruntime_ns = vruntime_ns = max(self._vruntime_ns, min(running, default=self._vruntime_ns))
        for entity in self._entities.values():
            if entity.vruntime_ns < vruntime_ns - entity.max_lag_ns:
                entity.vruntime_ns = vruntime_ns - entity.max_lag_ns
        self._rebase_vruntime()

    def _rebase_vruntime(self) -> None:
        """Reduce all vruntimes if they are so large that a float no longer resolves a microsecond."""
        if self._vruntime_ns > MAX_VRUNTIME_NS:
            for entity in self._entities.values():
                entity.vruntime_ns -= self._vruntime_ns
            self._vruntime_ns = 0.0

    def _run_uncontended(self, now_ns: int) -> Decision:
        """Return the decision for the only tenant of the GPU. The library itself enforces its limit."""
        self._turns.clear()
        self._exclusive_from_ns = 0
        ((name, entity),) = self._entities.items()
        entity.grant = Grant(entity.grant.granted_ns, 0, is_shared=False)
        entity.parked_until_ns = 0
        return Decision({name: entity.grant}, None, now_ns + IDLE_TICK_NS)

    # ---- grants ----

    def _grant(self, name: TenantName, entity: Entity, *, is_wanted: bool) -> Grant:
        if not entity.is_runnable or entity.is_shut_out or self._preemption.is_paused(entity):
            return grants.no_grant(entity)
        quantum_ns, slot = self._config.quantum_ns, self._slot
        if name == self._turns.holder:
            left_ns = self._turns.left_ns if is_wanted else None
            start_ns = self._turns.start_ns
            run_ahead_ns = self._run_ahead_ns(entity, self._config.run_ahead_ns // entity.queues)
            return grants.turn_grant(entity, run_ahead_ns, left_ns, quantum_ns, start_ns)
        if slot is not None and slot.is_open and name in slot.members and self._turns.holder is None:
            run_ahead_ns = self._run_ahead_ns(entity, slot.run_ahead_ns)
            return grants.turn_grant(entity, run_ahead_ns, None, quantum_ns, slot.start_ns)
        if entity.takes_turns:
            return grants.no_grant(entity)
        is_inside = entity.is_inside_request and not self._preemption.may_be_preempted(entity)
        return grants.interleaved_grant(entity, is_inside=is_inside)

    def _run_ahead_ns(self, entity: Entity, usual_ns: int) -> int:
        """Return the run-ahead of each thread of a running tenant: `usual_ns`, or less if a higher class may
        preempt the tenant.
        """
        if self._preemption.may_be_preempted(entity):
            return min(PREEMPTIBLE_RUN_AHEAD_NS, self._config.run_ahead_ns)
        return usual_ns

    def _polled(self) -> frozenset[TenantName]:
        """Return the tenants that may change without ringing: those with a turn or with work in flight, and
        those that are neither parked nor waiting for a grant.
        """
        return frozenset(
            name
            for name, s in self._changed.items()
            if s.backlog_ns
            or not (s.waits_for_grant or s.parked_until_ns > self._at_ns)
            or name in (self._turns.holder, self._turns.draining)
            or name in self._members
        )

    def _muted(self, watch: TurnWatch | None) -> frozenset[TenantName]:
        """Return the tenants that wait for a grant, and the holder if a turn watch polls it."""
        drained = self._members | {self._turns.draining}
        waiting = [n for n, s in self._entities.items() if s.waits_for_grant and n not in drained]
        return frozenset(waiting if watch is None else [*waiting, watch.tenant])

    def _turn_watch(self, now_ns: int, *, is_wanted: bool) -> TurnWatch | None:
        """Return the turn watch for the holder. None if there is no turn or a tenant preempts others."""
        holder = self._turns.holding
        if self._turns.holder is None or holder is None or self._preemption.rank:
            return None  # every step checks for the end of the preempting work
        granted_ns, spent_ns = holder.grant.granted_ns, holder.seen.spent_ns
        if not is_wanted:  # expire early, so that the next grant comes before this one is used up
            granted_ns -= min(self._config.quantum_ns, (granted_ns - spent_ns) // 2)
        watch = turn_watch.start(
            self._turns.holder,
            holder.seen,
            holder.queue_end_ns,
            now_ns,
            until_spent_ns=granted_ns,
            queued_ns=self._turns.switch_backlog_ns if is_wanted else turn_watch.ANY_BACKLOG_NS,
        )
        return watch._replace(used_up_ns=self._turns.used_up.at_ns) if self._turns.used_up else watch

    def _update_exclusive_window(self, now_ns: int) -> None:
        """Set the time since which one tenant has had the GPU to itself. From then on its GPU time is
        measured exactly. At other times it is estimated from the learned cost of its launches.
        """
        sole = self._sole
        others = {n: s for n, s in self._entities.items() if n != sole}
        if sole is None or any(self._may_interleave(entity) for entity in others.values()):
            self._exclusive_from_ns = 0
        elif not self._exclusive_from_ns:
            queued_ns = max((s.backlog_ns for s in others.values()), default=0)
            self._exclusive_from_ns = now_ns + queued_ns + DRAIN_MARGIN_NS
        for name, entity in self._entities.items():
            from_ns = self._exclusive_from_ns if name == sole else 0
            if entity.grant.exclusive_from_ns != from_ns:
                entity.grant = entity.grant._replace(exclusive_from_ns=from_ns)

    def _update_sharer_count(self) -> None:
        """Set the number of processes that may have work on the GPU, as each tenant's grant reports it."""
        running = self._members | {self._turns.holder}
        beside = [
            s
            for n, s in self._entities.items()
            if s.is_active and not s.is_shut_out and (n in running or not s.takes_turns)
        ]
        runs = sum(s.seen.processes for s in beside)
        for entity in self._entities.values():
            sharers = runs + (0 if entity in beside else entity.seen.processes)
            entity.hardware_share = entity.seen.processes / max(1, sharers)
            if entity.grant.sharers != sharers:
                entity.grant = entity.grant._replace(sharers=sharers)

    def _may_interleave(self, entity: Entity) -> bool:
        """True if the tenant may run beside the holder. A preempting tenant may while it has work."""
        if entity.is_shut_out:
            return False
        if self._members or outranks(entity, self._turns.holding):
            return entity.has_gpu_work and not entity.is_coordinated
        return entity.is_active and not entity.takes_turns

    def _next_at(self, now_ns: int, *, is_wanted: bool, is_watched: bool) -> int:
        """Return the time of the next step: when a queue drains, when tokens are earned, or the tick."""
        due = [IDLE_TICK_NS]
        active = [s for s in self._entities.values() if s.is_active]
        if active:
            # Tenants that take turns are polled by the turn watch, or they ring. Interleaved tenants should
            # not need to ring.
            is_quiet = all(s.takes_turns or s.parked_until_ns > now_ns for s in active)
            if not is_quiet or not is_watched:
                due.append(self._config.tick_ns * (2 if is_quiet else 1))
        turns, holder = self._turns, self._turns.holding
        if holder is not None and not is_watched and not holder.seen.waiting:
            # An idle holder does not ring: only reading its counters shows it.
            due.append(holder.backlog_ns + TURN_IDLE_TIMEOUT_NS)
        if holder is not None and is_wanted:
            due.append(turns.latest_end_ns - now_ns)
        if turns.draining is not None and holder is None:
            due.append(self._entities[turns.draining].backlog_ns - turns.switch_backlog_ns)
        for entity in self._entities.values():
            # Preempting tenants, for which other tenants are paused, do not ring when their work ends.
            if entity.pauses_others:
                due.append(max(MS // 2, entity.seen.outstanding_ns - MS // 2))
            elif self._preemption.rank and entity.rank == self._preemption.rank and entity.has_gpu_work:
                due.append(max(0, entity.remaining_ns) + LAUNCH_GAP_NS)
            if not entity.seen.waiting or entity.is_shut_out or self._preemption.is_paused(entity):
                continue
            if not entity.is_runnable and not entity.terms.is_suspended:
                due.append(entity.limit_wait_ns())
            elif not entity.takes_turns and entity.grant.granted_ns <= entity.seen.spent_ns:
                due.append(entity.interleave_bucket.wall_ns_until(entity.min_grant_ns, entity.share))
        return now_ns + max(MS // 10, min(due))
