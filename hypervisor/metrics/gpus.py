# SPDX-License-Identifier: Apache-2.0
"""Converts NVML's samples to the views of cards, and of the division of their time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from hypervisor.metrics.observations import Key, RateWindow, TenantObservation, in_use, tracked_by
from hypervisor.metrics.snapshot import GpuView, SchedulerView
from hypervisor.model import NO_READINGS, Gpu, GpuSample
from hypervisor.scheduler.memory_wait_queue import MemoryWaitCounters
from hypervisor.scheduler.statistics import SchedulerCounters
from limiter.mig import MigGpu
from limiter.units import PERCENT
from limiter.vgpu import VgpuHost

NO_WAITS = MemoryWaitCounters()


@dataclass(frozen=True, slots=True)
class GpuObservation:
    """A card at one moment. `is_fresh`: NVML answered recently. `is_listed`: that answer has this card."""

    sample: GpuSample
    is_fresh: bool
    is_listed: bool
    xids: Mapping[int, int] = field(default_factory=dict)
    last_xid_at_s: float | None = None

    @property
    def is_lost(self) -> bool:
        return self.sample.is_lost or not self.is_listed


def gpu_view(
    card: GpuObservation, observations: Sequence[TenantObservation], known_pids: Set[int]
) -> GpuView:
    """Return a card's view; values that NVML has not reported recently are None."""
    gpu = card.sample.gpu
    is_good = card.is_fresh and not card.sample.error and card.is_listed
    now = card.sample.readings if is_good else NO_READINGS
    here = [observation for observation in observations if observation.is_counted and is_on(observation, gpu)]
    is_parted = card.sample.mig is not None and card.sample.mig.is_enabled
    requested = None if is_parted else requested_of(here)
    pids = now.processes
    return GpuView(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        driver_version=card.sample.readings.driver_version,
        is_lost=card.is_lost,
        values={
            "gpu_memory_total_bytes": gpu.memory_bytes,
            "gpu_memory_used_bytes": now.memory_used_bytes,
            "gpu_memory_free_bytes": now.memory_free_bytes,
            "gpu_utilization_ratio": now.utilization_ratio,
            "gpu_memory_utilization_ratio": now.memory_utilization_ratio,
            "gpu_process_count": None if pids is None else len(pids),
            "gpu_unregistered_process_count": None if pids is None else len(pids.keys() - known_pids),
            "gpu_encoder_utilization_ratio": now.encoder_utilization_ratio,
            "gpu_decoder_utilization_ratio": now.decoder_utilization_ratio,
            "gpu_power_watts": now.power_watts,
            "gpu_energy_joules_total": now.energy_joules,
            "gpu_temperature_celsius": now.temperature_celsius,
            "gpu_last_xid_timestamp_seconds": card.last_xid_at_s,
            "gpu_compute_requested_ratio": requested,
            "gpu_memory_reserved_bytes": sum(observation.memory_quota_bytes for observation in here),
            "gpu_compute_unallocated_ratio": None if requested is None else max(0.0, 1 - requested),
        },
        clocks_hertz=now.clocks_hertz,
        ecc_errors=now.ecc_errors,
        throttle_reasons=now.throttle_reasons,
        xids=card.xids,
    )


def is_on(observation: TenantObservation, card: Gpu) -> bool:
    """True if a tenant is on a card or on a MIG device of it."""
    return card.uuid in (
        observation.gpu.uuid,
        observation.gpu.mig.card if observation.gpu.mig is not None else "",
    )


def requested_of(observations: Iterable[TenantObservation]) -> float:
    return sum(observation.terms.request_percent for observation in observations) / PERCENT


def vgpu_host_view(card: GpuObservation, node: str) -> VgpuHost | None:
    """Return the view of a card of a vGPU host; None if it is not one."""
    host = card.sample.vgpu if card.is_fresh and card.is_listed else None
    return None if host is None else replace(host, host=node, instance=node)


def mig_view(card: GpuObservation, observations: Sequence[TenantObservation], node: str) -> MigGpu | None:
    """Return the view of a card that supports MIG, with the reservations on each MIG device."""
    mig = card.sample.mig if card.is_fresh and card.is_listed else None
    if mig is None:
        return None
    here: dict[str, list[TenantObservation]] = {}
    for observation in observations:
        if observation.is_counted and observation.gpu.mig is not None:
            here.setdefault(observation.gpu.uuid, []).append(observation)
    instances = tuple(
        replace(
            instance,
            memory_reserved_bytes=sum(
                observation.memory_quota_bytes for observation in here.get(instance.uuid, ())
            ),
            compute_requested_ratio=requested_of(here.get(instance.uuid, ())),
        )
        for instance in mig.instances
    )
    return replace(mig, host=node, instance=node, instances=instances)


class Schedulers:
    """Builds the views of the schedulers, and keeps their peaks."""

    def __init__(self) -> None:
        self._peak_bytes: dict[str, int] = {}

    def view(
        self,
        card: GpuObservation,
        observations: Sequence[TenantObservation],
        windows: Mapping[Key, RateWindow],
        entitled: Mapping[Key, float],
        *,
        overcommit_percent: int,
        tally: SchedulerCounters | None,
        memory_tally: MemoryWaitCounters = NO_WAITS,
    ) -> SchedulerView:
        """Return the division of a card's time and memory."""
        gpu = card.sample.gpu
        here = [observation for observation in observations if observation.gpu.uuid == gpu.uuid]
        memory = sum(tracked_by(observation) or 0 for observation in here)
        used_bytes = sum(in_use(observation) or 0 for observation in here)
        peak = self._peak_bytes[gpu.uuid] = max(memory, self._peak_bytes.get(gpu.uuid, 0))
        safe = gpu.memory_bytes * overcommit_percent // PERCENT
        values = {
            "scheduler_running_clients": sum(bool(windows[x.key].spent_ns) for x in here),
            "scheduler_request_queue_clients": sum(is_held_back(observation) for observation in here),
            "scheduler_wait_queue_clients": sum(
                windows[x.key].is_starved or is_waiting_for_memory(x) for x in here
            ),
            "scheduler_running_memory_bytes": memory,
            "scheduler_peak_running_memory_bytes": peak,
            "scheduler_memory_safe_limit_bytes": safe,
            "scheduler_memory_overloaded": int(used_bytes > min(safe, gpu.memory_bytes)),
            "scheduler_wait_for_mem_total": memory_tally.waits,
            "scheduler_mem_available_total": memory_tally.notified,
            "scheduler_jain_index": jain(here, windows, entitled),
        }
        return SchedulerView(gpu.uuid, gpu.index, values, tally)


def is_waiting_for_memory(observation: TenantObservation) -> bool:
    """True if an allocation of the tenant waits."""
    return any(process.memory_waiting for process in observation.processes)


def is_held_back(observation: TenantObservation) -> bool:
    """True if a process of the tenant waits, and not only for its own work to end."""
    if not observation.waiting or observation.counters is None:
        return False
    return (
        observation.terms.is_suspended
        or observation.granted_ns is None
        or observation.counters.spent_ns >= observation.granted_ns
    )


def jain(
    observations: Iterable[TenantObservation],
    windows: Mapping[Key, RateWindow],
    entitled: Mapping[Key, float],
) -> float | None:
    """Return Jain's index of achieved over entitled shares of tenants that wanted more; None without any."""
    parts = [
        windows[observation.key].spent_ns / entitled[observation.key]
        for observation in observations
        if windows[observation.key].is_throttled
        and not observation.terms.is_suspended
        and entitled.get(observation.key)
    ]
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else None
