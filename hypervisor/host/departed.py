# SPDX-License-Identifier: Apache-2.0
"""Registered processes that have ended, for as long as the driver may still list them.

NVML's last answer may be older than the end of a process, and a zombie keeps its pid. Neither is a process
under no quota. A later process with the same pid is.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.host.process_files import stat_of
from hypervisor.model import ProcessKey

MAX_DEPARTED = 4096


class DepartedProcesses:
    """Event loop only."""

    def __init__(self) -> None:
        self._start_ticks: dict[int, int] = {}
        """Start times by host pid, oldest first."""

    def add(self, key: ProcessKey) -> None:
        """Keep a process that was registered and has ended."""
        self._start_ticks.pop(key.host_pid, None)
        self._start_ticks[key.host_pid] = key.start_ticks
        if len(self._start_ticks) > MAX_DEPARTED:
            del self._start_ticks[next(iter(self._start_ticks))]

    def among(self, pids: Iterable[int]) -> set[int]:
        """Return the pids that are of ended registered processes."""
        return {pid for pid in pids if pid in self._start_ticks and self._is_over(pid)}

    def _is_over(self, pid: int) -> bool:
        try:
            stat = stat_of(pid)
        except OSError:
            return True
        return stat.is_ending and stat.start_ticks == self._start_ticks[pid]
