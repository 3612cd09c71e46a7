# SPDX-License-Identifier: Apache-2.0
"""Detects the end of registered processes, and releases everything that they held. Event loop only."""

from __future__ import annotations

import logging
import time

from hypervisor.host.departed import DepartedProcesses
from hypervisor.host.processes import Processes
from hypervisor.model import ProcessKey, Worker
from hypervisor.node.events import EventLog, record_event
from hypervisor.node.registry import Registry
from hypervisor.node.tenant_segments import TenantSegments
from hypervisor.node.worker_commands import WorkerCommands


class ProcessExits:
    """Watches registered processes by pidfd."""

    def __init__(
        self, registry: Registry, tenant_segments: TenantSegments, commands: WorkerCommands, events: EventLog
    ) -> None:
        self._registry = registry
        self._tenant_segments = tenant_segments
        self._commands = commands
        self._events = events
        self._processes = Processes()
        self.departed = DepartedProcesses()

    def watch(self, key: ProcessKey, pidfd: int) -> None:
        """Start to watch this process for its end. Raises OSError."""
        self._processes.watch(key, pidfd, self._ended)

    def unwatch(self, key: ProcessKey) -> None:
        """Stop watching this process."""
        self._processes.unwatch(key)

    def notice(self) -> bool:
        """Handle processes that have ended since the last call; return True if there were any."""
        ended = self._processes.ended()
        for key in ended:
            self._ended(key)
        return bool(ended)

    def _ended(self, key: ProcessKey) -> None:
        worker = self._registry.worker_of(key)
        if worker is not None:
            self._registry.remove(worker.id, now_ns=time.monotonic_ns())
            self.clean_up(worker)

    def clean_up(self, worker: Worker) -> None:
        """Release everything of a worker that has left the registry."""
        self._processes.unwatch(worker.key)
        self.departed.add(worker.key)
        self._commands.wake(worker.id)
        self._tenant_segments.reap(worker.tenant)
        text = f"process {worker.key.host_pid} ({worker.name})"
        record_event(self._events, "exited", text, tenant=worker.tenant, level=logging.DEBUG)

    def close(self) -> None:
        """Stop watching."""
        self._processes.close()
