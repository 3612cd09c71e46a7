# SPDX-License-Identifier: Apache-2.0
"""Reports of the dispatcher thread, carried out on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVarTuple, Unpack

from hypervisor.model import GpuUuid, TenantName
from hypervisor.node.inventory import Inventory
from hypervisor.node.registry import Registry
from hypervisor.node.segment_health import SegmentHealth

Arguments = TypeVarTuple("Arguments")


class DispatcherReports:
    """The dispatcher thread calls `moved`, `corrupt` and `readable`. Any thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        registry: Registry,
        inventory: Inventory,
        health: SegmentHealth,
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._inventory = inventory
        self._health = health

    def moved(self, name: TenantName, gpus: frozenset[GpuUuid]) -> None:
        """A tenant now has processes on these GPUs."""
        self.on_loop(self._move, name, gpus)

    def corrupt(self, name: TenantName, reason: str) -> None:
        """A tenant's segment is damaged."""
        self.on_loop(self._health.mark_corrupt, name, reason)

    def readable(self, name: TenantName, why_not: str) -> None:
        """A tenant's segment cannot be read now, or, if `why_not` is empty, can be again."""
        self.on_loop(self._health.mark_readable, name, why_not)

    def on_loop(self, call: Callable[[Unpack[Arguments]], object], *arguments: *Arguments) -> None:
        """Call a function on the event loop; do nothing once the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def _move(self, name: TenantName, gpus: frozenset[GpuUuid]) -> None:
        if name in self._registry.tenants:
            self._registry.set_gpus(name, gpus)
            self._inventory.publish(self._registry.tenants_by_gpu())
