# SPDX-License-Identifier: Apache-2.0
"""Turns of one GPU: the tenant that has the GPU, the one whose queue drains, and the next one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypervisor.model import TenantName
from hypervisor.scheduler.entity import Entity
from hypervisor.scheduler.preemption import outranks
from hypervisor.scheduler.types import MS, QuantumExpiry, SchedulerConfig

SWITCH_BACKLOG_NS = MS * 7 // 20
"""Backlog of the last holder at which the next turn begins: the length of a step and a wake-up."""
EXCLUSIVE_SWITCH_BACKLOG_NS = MS * 4 // 5
"""The same while no tenant runs interleaved. The end of the queue is then known, and the next holder's grant
holds the time at which it may begin.
"""
WAKEUP_LEAD_NS = MS * 3 // 50
"""Time before the end of the last holder's queue at which the next turn begins: the length of a wake-up."""


class Turns:
    """Exclusive turns of the tenants of one GPU."""

    def __init__(self, config: SchedulerConfig, entities: Mapping[TenantName, Entity]) -> None:
        self._config = config
        self._entities = entities
        self.holder: TenantName | None = None
        self.draining: TenantName | None = None
        """Last holder, whose queue has not drained."""
        self.start_ns = 0
        """Start of the turn as published in the holder's grant. 0 if the turn began at once."""
        self.used_up: QuantumExpiry | None = None
        """Moment at which the turn watch found the quantum used up."""
        self.spent_ns = 0
        """GPU time that the holder used during the turn."""
        self.beside_ns = 0
        """GPU time that other tenants used during the turn."""
        self._from_ns = 0
        self._queued_ns = 0
        """Backlog of the holder at the start of the turn."""

    @property
    def holding(self) -> Entity | None:
        """Entity of the holder."""
        return self._entities[self.holder] if self.holder is not None else None

    @property
    def latest_end_ns(self) -> int:
        """Time at which the turn ends although its quantum is not used up."""
        return self._from_ns + 2 * self._config.quantum_ns

    @property
    def left_ns(self) -> int:
        """Remaining GPU time of the quantum."""
        return max(0, self._config.quantum_ns - self.spent_ns)

    def drop_missing(self) -> None:
        """End the turn of a tenant that has left."""
        if self.holder not in self._entities:
            self.holder = None
        if self.draining not in self._entities:
            self.draining = None

    def yield_to_gang(self) -> None:
        """End the turn of a tenant that is shut out by a gang's turn, or whose own gang now takes turns."""
        for name in (self.holder, self.draining):
            if name is not None and (self._entities[name].is_shut_out or self._entities[name].is_coordinated):
                self.clear()

    def clear(self) -> None:
        """End the turn without waiting for the holder's queue."""
        self.holder = self.draining = None

    def end(self, now_ns: int, contenders: list[TenantName]) -> None:
        """End the turn if its holder has used up the quantum, does not use the turn, or is outranked."""
        holder = self.holding
        if holder is None:
            return
        others = [name for name in contenders if name != self.holder]
        wall_ns, quantum_ns = now_ns - self._from_ns, self._config.quantum_ns
        is_used_up = self.spent_ns >= quantum_ns or wall_ns >= 2 * quantum_ns
        if is_used_up:
            # The quantum may have been used up before this step. The utilization counts only until then.
            until = self.used_up or QuantumExpiry(now_ns, holder.backlog_ns)
            used_ns = self._queued_ns + self.spent_ns - until.left_ns
            had_ns = until.at_ns - self._from_ns - self.beside_ns
            holder.utilization.record_turn(min(1.0, used_ns / max(1, had_ns)), now_ns)
            holder.derive()
            if not others:
                self._start_counting(now_ns)
        must_end = not holder.is_runnable or not holder.takes_turns or not holder.has_work
        if must_end or (others and (is_used_up or self._is_outranked(holder, others))):
            self.draining = self.holder
            self.holder = None

    @property
    def switch_backlog_ns(self) -> int:
        """Backlog of the last holder at which the next turn begins."""
        has_interleaved = any(s.is_active and not s.takes_turns for s in self._entities.values())
        return SWITCH_BACKLOG_NS if has_interleaved else EXCLUSIVE_SWITCH_BACKLOG_NS

    def _is_outranked(self, holder: Entity, others: Iterable[TenantName]) -> bool:
        """True if a tenant of a higher class waits inside its request."""
        return any(outranks(self._entities[name], holder) for name in others)

    def begin(self, now_ns: int, contenders: list[TenantName]) -> bool:
        """Begin the next turn if the GPU is free. Return True if a turn begins."""
        last = self.draining
        left_ns = self._entities[last].backlog_ns if last is not None else 0
        if left_ns <= self.switch_backlog_ns:
            self.draining = None
        if self.holder is not None or not contenders:
            return False
        chosen = min(self._candidates(contenders, last), key=self._rank)
        draining = self._entities[self.draining] if self.draining is not None else None
        if chosen == last or outranks(self._entities[chosen], draining):
            left_ns = 0
        elif draining is not None:
            return False
        self.holder, self.draining = chosen, None
        is_exact = self.switch_backlog_ns == EXCLUSIVE_SWITCH_BACKLOG_NS
        self.start_ns = now_ns + left_ns - WAKEUP_LEAD_NS if is_exact and left_ns > WAKEUP_LEAD_NS else 0
        self._start_counting(max(now_ns, self.start_ns))
        return True

    def _candidates(self, contenders: list[TenantName], last: TenantName | None) -> list[TenantName]:
        """Return the tenants that may get the next turn, including the last holder if it still has work."""
        if last is None or last in contenders:
            return contenders
        entity = self._entities[last]
        is_candidate = entity.takes_turns and entity.is_runnable and entity.has_work
        is_candidate = is_candidate and not entity.is_coordinated and not entity.is_shut_out
        return [*contenders, last] if is_candidate else contenders

    def _start_counting(self, now_ns: int) -> None:
        self._from_ns, self.spent_ns, self.beside_ns = now_ns, 0, 0
        self.used_up = None
        holder = self.holding
        self._queued_ns = holder.backlog_ns if holder is not None else 0

    def _rank(self, name: TenantName) -> tuple[int, float]:
        """Return the sort key of a tenant: its rank, then its vruntime. The lowest is next."""
        entity = self._entities[name]
        return entity.rank, entity.vruntime_ns
