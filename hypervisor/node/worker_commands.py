# SPDX-License-Identifier: Apache-2.0
"""Delivers commands to workers: a worker's request stays open until there is a command for it.

Event loop only.
"""

from __future__ import annotations

import asyncio
import math

from hypervisor.errors import Refused
from hypervisor.model import Worker, WorkerId
from hypervisor.node.commands import Command, CommandName
from hypervisor.node.events import EventLog, record_event
from hypervisor.node.registry import Registry, Tenant
from hypervisor.node.tenant_segments import TenantSegments

LONG_WAIT_S = 10.0
GONE = "no such worker: register again"


class WorkerCommands:
    """Waiting commands, and the open requests for them."""

    def __init__(self, registry: Registry, tenant_segments: TenantSegments, events: EventLog) -> None:
        self._registry = registry
        self._tenant_segments = tenant_segments
        self._events = events
        self._waiting: dict[WorkerId, set[asyncio.Event]] = {}
        self._is_draining = False

    def post(self, tenant: Tenant, name: CommandName) -> None:
        """Post a command to all workers of a tenant."""
        for worker_id in tenant.workers:
            self._registry.queues[worker_id].post(name)
            self.wake(worker_id)
        opened = self._tenant_segments.open_tenants.get(tenant.name)
        if opened is not None:
            opened.policy.command()

    def worker(self, worker_id: WorkerId) -> Worker:
        """Return a worker. Raises Refused if this daemon does not know it."""
        worker = self._registry.workers.get(worker_id)
        if worker is None:
            raise Refused(404, GONE)
        return worker

    async def next(self, worker_id: WorkerId, after: int, wait_s: float) -> Command | None:
        """Return the worker's next command after number `after`; None if there is none within `wait_s`.

        Raises Refused if the worker ends meanwhile.
        """
        command = self._queued(worker_id, after)
        if command is not None or wait_s == 0:
            return command
        if not await self._wait(worker_id, wait_s):
            return None
        self.worker(worker_id)
        return self._queued(worker_id, after)

    def _queued(self, worker_id: WorkerId, after: int) -> Command | None:
        queue = self._registry.queues.get(worker_id)
        return queue.next(after) if queue is not None else None

    async def _wait(self, worker_id: WorkerId, wait_s: float) -> bool:
        """Wait until the worker is woken; False if the time is over."""
        rung = asyncio.Event()
        self._waiting.setdefault(worker_id, set()).add(rung)
        try:
            now_s = asyncio.get_running_loop().time()
            async with asyncio.timeout_at(now_s if self._is_draining else end_of_wait(now_s, wait_s)):
                await rung.wait()
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting[worker_id]
            waiting.discard(rung)
            if not waiting:
                del self._waiting[worker_id]
        return True

    def wake(self, worker_id: WorkerId) -> None:
        """Answer a worker's open requests now: there is a command, or the worker is gone."""
        for rung in self._waiting.get(worker_id, ()):
            rung.set()

    def finished(self, worker_id: WorkerId, number: int, message: str, *, ok: bool) -> None:
        """Record a worker's result of a command. Raises Refused."""
        worker = self.worker(worker_id)
        text = f"command {number} of process {worker.key.host_pid}: {'done' if ok else 'failed'} {message}"
        record_event(
            self._events, "command_done" if ok else "command_failed", text.strip(), tenant=worker.tenant
        )

    def open_requests(self) -> int:
        """Return the number of requests that wait for a command."""
        return sum(len(waiting) for waiting in self._waiting.values())

    def drain(self) -> None:
        """Answer all requests now, and later ones at once: the daemon is about to end."""
        self._is_draining = True
        for waiting in list(self._waiting.values()):
            for rung in waiting:
                rung.set()


def end_of_wait(now_s: float, wait_s: float) -> float:
    """Return the latest time to answer a request. Long waits are rounded to a whole second, to end together.

    Many answers at once cost a quarter of the same answers one by one.
    """
    end_s = now_s + wait_s
    return float(math.floor(end_s)) if wait_s >= LONG_WAIT_S else end_s
