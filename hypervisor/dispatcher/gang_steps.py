# SPDX-License-Identifier: Apache-2.0
"""Scheduling steps of GPUs that gangs use: one step covers all GPUs of a gang. Dispatcher thread only."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hypervisor.dispatcher.run_queue import RunQueue
from hypervisor.model import GpuUuid
from hypervisor.scheduler.gang_coordinator import GangCoordinator
from hypervisor.scheduler.gangs import GangKey
from hypervisor.scheduler.types import QuantumExpiry, SchedulerConfig


class GangSteps:
    """Coordinator of the node's gangs, and the run queues that it steps together."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.coordinator = GangCoordinator(config)

    def linked(
        self, now_ns: int, touched: Collection[RunQueue], run_queues: Mapping[GpuUuid, RunQueue]
    ) -> set[RunQueue]:
        """Return the run queues of all gangs that share a run queue with `touched`, directly or through other
        gangs. A run queue in `touched` where a step changes nothing for its gangs is no start of a chain.
        """
        places = self._places(run_queues)
        if not places:
            return set()
        found: set[RunQueue] = set()
        keys: set[GangKey] = set()
        new = {queue for queue in touched if self._is_needed(now_ns, queue)}
        while new:
            found |= new
            more = {key for key, queues in places.items() if key not in keys and not queues.isdisjoint(new)}
            keys |= more
            new = {queue for key in more for queue in places[key]} - found
        return {queue for key in keys for queue in places[key]}

    def _is_needed(self, now_ns: int, queue: RunQueue) -> bool:
        has_news = queue.has_gang_news or queue.is_empty
        return self.coordinator.is_needed(now_ns, queue.gpu, queue.scheduler, has_news=has_news)

    def _places(self, run_queues: Mapping[GpuUuid, RunQueue]) -> dict[GangKey, set[RunQueue]]:
        """Return the run queues of each gang: those that it uses now, and those of its last step."""
        places: dict[GangKey, set[RunQueue]] = {}
        for run_queue in run_queues.values():
            if run_queue.gangs:
                for key in run_queue.gangs.values():
                    places.setdefault(key, set()).add(run_queue)
        for key, gang in self.coordinator.gangs.items():
            was_there = {run_queues[gpu] for gpu in gang.seats if gpu in run_queues}
            places[key] = places.get(key, set()) | was_there
        return places

    def schedule_one(
        self, now_ns: int, queue: RunQueue, used_up: QuantumExpiry | None, *, is_freed_elsewhere: bool
    ) -> None:
        """Run a step of one run queue that has no gang, or where the step changes nothing for its gangs."""
        had_turn = queue.scheduler.is_of_one_tenant
        queue.observe(now_ns, used_up)
        queue.decide(now_ns)
        queue.withdraw()
        queue.settle(now_ns, is_freed_elsewhere=is_freed_elsewhere)
        if queue.gangs:
            has_ended = had_turn and not queue.scheduler.is_of_one_tenant
            queue.due_ns = min(queue.due_ns, now_ns if has_ended else self.coordinator.due_ns(queue.gpu))

    def schedule(
        self,
        now_ns: int,
        expiries: Mapping[RunQueue, QuantumExpiry | None],
        *,
        is_freed_elsewhere: bool,
    ) -> None:
        """Run a step of the run queues in `expiries`. The values are the moments at which their turn watches
        found the quantum used up. Grants are withdrawn on all GPUs before new ones are published.
        """
        for run_queue, used_up in expiries.items():
            run_queue.observe(now_ns, used_up)
        schedulers = {queue.gpu: queue.scheduler for queue in expiries if not queue.is_empty}
        empty = {queue.gpu for queue in expiries if queue.is_empty}
        due_ns = self.coordinator.step(now_ns, schedulers, empty)
        for run_queue in expiries:
            run_queue.decide(now_ns)
        for run_queue in expiries:
            run_queue.withdraw()
        for run_queue in expiries:
            run_queue.settle(now_ns, is_freed_elsewhere=is_freed_elsewhere)
            run_queue.due_ns = min(run_queue.due_ns, due_ns)
