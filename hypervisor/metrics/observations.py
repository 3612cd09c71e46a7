# SPDX-License-Identifier: Apache-2.0
"""Observations of a tenant on a card, from usage segments, quotas and NVML. Pure; all numbers may be
wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hypervisor.metrics.snapshot import NO_GANG, GangMembership, Identity, State
from hypervisor.model import Gpu
from hypervisor.scheduler.types import SchedParams

LAUNCHES = ("kernel", "cooperative", "graph")
MAX_COUNT = 1 << 62
Key = tuple[str, str]
"""(tenant, GPU)."""


@dataclass(frozen=True, slots=True)
class ProcessObservation:
    """One process of a tenant on one card."""

    client_id: str
    host_pid: int
    start_ticks: int
    command: str
    tracked_bytes: int
    """Requested memory that the process holds, without overhead."""
    spent_ns: int = 0
    launches: Mapping[str, int] = field(default_factory=dict)
    nvml_bytes: int | None = None
    memory_waiting: int = 0
    """Threads with an allocation that waits for memory."""


@dataclass(frozen=True, slots=True)
class UsageCounters:
    """A tenant's usage counters of one card."""

    created_ns: int
    used_bytes: int
    spent_ns: int
    throttled_ns: int
    refused: int
    refused_by_card: int


@dataclass(frozen=True, slots=True)
class TenantObservation:
    """One tenant on one card at one moment. `counters` is None if its segment cannot be read."""

    who: Identity
    gpu: Gpu
    terms: SchedParams
    memory_quota_bytes: int
    """0 if there is none."""
    source: str
    state: State
    counters: UsageCounters | None = None
    processes: Sequence[ProcessObservation] = ()
    waiting: int = 0
    outstanding_ns: int = 0
    granted_ns: int | None = None
    """None if the dispatcher does not pace it."""
    has_turn: bool = False
    ratio: float | None = None
    """Number of tenants that share the card, if a source reports it."""
    is_counted: bool = True
    """True if this daemon schedules it."""

    gang: GangMembership = NO_GANG

    @property
    def key(self) -> Key:
        return self.who.tenant, self.gpu.uuid


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Activity of a tenant on a card since the last observation."""

    spent_ns: int = 0
    is_throttled: bool = False
    is_starved: bool = False
    """True if it waited all the time and got no GPU time."""


def tracked_by(observation: TenantObservation) -> int | None:
    """Return the requested memory that a tenant's processes hold; None if the value is impossible."""
    return bounded(
        sum(process.tracked_bytes for process in observation.processes), observation.gpu.memory_bytes
    )


def in_use(observation: TenantObservation) -> int | None:
    """Return a tenant's memory by its usage segment, with overhead; None if the value is impossible."""
    return (
        bounded(observation.counters.used_bytes, observation.gpu.memory_bytes)
        if observation.counters is not None
        else None
    )


def promised_memory(observation: TenantObservation) -> float | None:
    """Return the memory that a tenant may count on: its quota, or its part of the card."""
    if observation.memory_quota_bytes:
        return observation.memory_quota_bytes
    return observation.gpu.memory_bytes / observation.ratio if observation.ratio else None


def nvml_of(processes: Iterable[ProcessObservation]) -> int | None:
    known = [one.nvml_bytes for one in processes if one.nvml_bytes is not None]
    return sum(known) if known else None


def bounded(value: int, most: int) -> int | None:
    return value if 0 <= value <= most else None


def plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def seconds(ns: int) -> float | None:
    return ns / 1e9 if 0 <= ns < MAX_COUNT else None


def launches_of(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: n for kind in LAUNCHES if 0 <= (n := counts.get(kind, 0)) < MAX_COUNT}


def refusals_by_reason(counters: UsageCounters | None) -> dict[str, int]:
    if counters is None:
        return {}
    counts = {"quota": counters.refused, "card": counters.refused_by_card}
    return {reason: count for reason, count in counts.items() if count < MAX_COUNT}
