# SPDX-License-Identifier: Apache-2.0
"""The values that the parts of the daemon pass to each other. All frozen; units are in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType

from limiter.mig import MigGpu
from limiter.quota import DEFAULT_WEIGHT, Priority, Quota
from limiter.vgpu import VgpuHost

TenantName = NewType("TenantName", str)
WorkerId = NewType("WorkerId", str)
GpuUuid = NewType("GpuUuid", str)
"""As NVML says it: "GPU-3430f778-…", or of a MIG device "MIG-4c6b71e0-…"."""

Source = Literal["pod", "api", "config", "slices", "default", "environment"]
"""Who said the quota that holds, strongest first."""

NO_QUOTA = Quota()


Admission = Literal["propose", "fixed", "deny"]


@dataclass(frozen=True, slots=True)
class Readings:
    """One card at one moment; None: not known."""

    memory_total_bytes: float | None = None
    memory_used_bytes: float | None = None
    memory_free_bytes: float | None = None
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    encoder_utilization_ratio: float | None = None
    decoder_utilization_ratio: float | None = None
    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    """Corrected and uncorrected, since the driver was loaded."""
    clocks_hertz: Mapping[str, float] = field(default_factory=dict)
    throttle_reasons: Mapping[str, int] = field(default_factory=dict)
    processes: Mapping[int, int | None] | None = None
    """By host pid, bytes."""
    driver_version: str | None = None


NONE = Readings()


@dataclass(frozen=True, slots=True)
class MigLocation:
    """Where a MIG device is."""

    card: GpuUuid
    index: int
    """NVML's number of it within its card."""
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the node: a card, or a MIG device, which has tenants, quotas and GPU time of its own."""

    uuid: GpuUuid
    index: int
    """In NVML's order; of a MIG device, its card's."""
    memory_bytes: int
    name: str = ""
    minor: int | None = None
    """Of its device file, /dev/nvidia<minor>; None: not known."""
    mig: MigLocation | None = None

    @property
    def digits(self) -> str:
        """The UUID without what it begins with: CUDA and the books do not tell cards from MIG devices."""
        return self.uuid.partition("-")[2]

    @property
    def quota_index(self) -> int | None:
        """The number by which a quota can name it: numbers name cards, never a MIG device of theirs."""
        return None if self.mig is not None else self.index

    @property
    def label(self) -> str:
        """Return "0", or of a MIG device "0:2", its number in its card."""
        return f"{self.index}:{self.mig.index}" if self.mig is not None else str(self.index)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What NVML says about a GPU at one moment."""

    gpu: Gpu
    memory_used_bytes: int
    utilisation_percent: int | None
    """None: not supported."""
    pids: tuple[tuple[int, int], ...]
    """(host pid, bytes) of processes on it."""
    error: str = ""
    """What went wrong, if it did; then the rest is of the last good answer."""
    is_lost: bool = False
    """NVML says that the card has fallen off the bus."""
    readings: Readings = NONE
    """All that it says, checked, for metrics."""
    vgpu: VgpuHost | None = None
    """Of a card that virtual machines have parts of."""
    mig: MigGpu | None = None
    """Of a card that knows MIG, in that mode or not."""
    mig_error: str = ""
    """Why MIG devices of it cannot be read."""
    memory_source: str = "nvml"
    """Source of the card's memory total: "nvml", or where that has none "cuda" or "option"."""


@dataclass(frozen=True, slots=True)
class FailedCard:
    """A card that NVML counts and of which no sample can be had: no tenant gets anything of it."""

    index: int
    uuid: GpuUuid
    """Empty if not even that is known."""
    error: str
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """A process, told apart from a later one with the same pid."""

    host_pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a process comes from, by the kernel's word."""

    uid: int
    gid: int
    container_id: str | None = None
    pod_uid: str | None = None
    cgroup: str = ""
    """Its path; tells a service or login session from another."""
    unknown_group: str = ""
    """The path of it that an unknown runtime's container may have; empty: it has none, or is in one."""

    @property
    def is_contained(self) -> bool:
        """It is in a pod or container, whose tenant it then is, whatever user it runs as."""
        return self.pod_uid is not None or self.container_id is not None


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a connection, by the kernel's word: it lived when this was made."""

    key: ProcessKey
    origin: Origin
    groups: frozenset[int] = frozenset()
    is_of_the_node: bool = False
    """It runs in no pod and no container, but for the daemon's own, in its pid and user namespaces."""
    namespace_pid: int = 0
    """The pid that it has in its own, innermost namespace."""


@dataclass(frozen=True, slots=True)
class ClientHints:
    """What a process says about itself: hints, and a quota that it proposes."""

    pid: int = 0
    """In its own namespace."""
    name: str = ""
    tenant: str = ""
    quota: Quota = NO_QUOTA
    is_view: bool = False
    """It only asks NVML so far."""
    start_ticks: int = 0
    """When it started; where the kernel does not say who is calling, it is found by this and its pid."""


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod as the cluster calls it, or one container of it that has a quota of its own."""

    tenant: TenantName
    namespace: str
    pod: str
    container: str = ""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """A process that wants to be registered."""

    key: ProcessKey
    origin: Origin
    wish: ClientHints = ClientHints()
    place: PodRef | None = None
    """Where the cluster says that it runs."""
    at_s: float = 0.0
    """Unix time at which it came; 0 if not known."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a registered process is told."""

    worker: WorkerId
    host_pid: int
    tenant: TenantName
    usage: str
    policy: str
    source: str
    """Who said the quota: "environment" is the process's own, which then has had its say; "tenant"
    another's.
    """


@dataclass(frozen=True, slots=True)
class Worker:
    """A registered process."""

    id: WorkerId
    key: ProcessKey
    tenant: TenantName
    origin: Origin
    pid: int
    name: str
    registered_at_ns: int
    is_view: bool = False


@dataclass(frozen=True, slots=True)
class EffectiveQuota:
    """A quota, and who said it."""

    quota: Quota
    source: Source


@dataclass(frozen=True, slots=True)
class DeviceQuota:
    """A quota on one GPU, with nothing left open."""

    memory_bytes: int
    """The card's whole memory: no limit."""
    is_memory_limited: bool
    compute_percent: int
    request_percent: int
    weight: int
    priority: Priority
    memory_wait_ns: int = 0
    """How long an allocation may wait for memory; 0: it is refused at once."""


def device_quota(quota: Quota, gpu: Gpu) -> DeviceQuota:
    """Return what a quota means on one GPU."""
    memory = quota.memory_bytes(gpu.memory_bytes, index=gpu.quota_index, uuid=gpu.uuid)
    return DeviceQuota(
        memory_bytes=gpu.memory_bytes if memory is None else memory,
        is_memory_limited=memory is not None,
        compute_percent=quota.compute_percent(index=gpu.quota_index, uuid=gpu.uuid),
        request_percent=quota.request_percent or 0,
        weight=quota.weight or DEFAULT_WEIGHT,
        priority=quota.priority or "normal",
        memory_wait_ns=(quota.memory_wait_s or 0) * 1_000_000_000,
    )
