# SPDX-License-Identifier: Apache-2.0
"""Extraction of a tenant's counters per GPU from a sample of its usage segment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from limiter._native import ffi

from hypervisor.model import GpuUuid
from hypervisor.scheduler.memory_wait_queue import MemoryWaitState
from hypervisor.scheduler.types import TenantUsage


class DeviceUsage(NamedTuple):
    """Counters of one tenant on one GPU."""

    time: TenantUsage
    memory: MemoryWaitState


def device_usage(sample: Any, gpus: Mapping[bytes, GpuUuid], gang_devices: int) -> dict[GpuUuid, DeviceUsage]:
    """Return the counters by GPU. Entries of unknown GPUs, and repeated entries of a GPU, are ignored.

    `gang_devices`: bit per entry on which the tenant's processes wait for others.
    """
    found: dict[GpuUuid, DeviceUsage] = {}
    if not sample.slots:
        return found
    for entry, device in enumerate(sample.device):
        if not device.ready:
            break  # entries are added in order and never removed
        gpu = gpus.get(ffi.buffer(device.uuid)[:])
        if gpu is not None and gpu not in found:
            found[gpu] = DeviceUsage(
                TenantUsage(
                    device.spent_ns,
                    device.outstanding_ns,
                    device.waiting,
                    device.queue_end_ns,
                    device.processes,
                    bool(gang_devices >> entry & 1),
                ),
                MemoryWaitState(entry, device.memory_waiting, device.memory_freed, device.memory_waits),
            )
    return found
