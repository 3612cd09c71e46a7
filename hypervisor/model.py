# SPDX-License-Identifier: Apache-2.0
"""Values that the daemon's packages pass to each other. All are frozen; units are in the names."""

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
"""NVML's UUID: "GPU-3430f778-…" for a card, "MIG-4c6b71e0-…" for a MIG device."""

Source = Literal["pod", "api", "config", "slices", "default", "environment"]
"""Origin of the quota in force, strongest first."""

NO_QUOTA = Quota()


Admission = Literal["propose", "fixed", "deny"]


@dataclass(frozen=True, slots=True)
class Readings:
    """NVML's readings of one card at one moment. None if not known."""

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
    """Corrected and uncorrected errors since the driver was loaded."""
    clocks_hertz: Mapping[str, float] = field(default_factory=dict)
    throttle_reasons: Mapping[str, int] = field(default_factory=dict)
    processes: Mapping[int, int | None] | None = None
    """Bytes of each process by host pid; bytes are None if not known."""
    driver_version: str | None = None


NO_READINGS = Readings()


@dataclass(frozen=True, slots=True)
class MigLocation:
    """Card and place of a MIG device."""

    card: GpuUuid
    index: int
    """NVML's number of the MIG device on its card."""
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the node: a card or a MIG device. Each has its own tenants, quotas and GPU time."""

    uuid: GpuUuid
    index: int
    """Index in NVML's order; for a MIG device, its card's index."""
    memory_bytes: int
    name: str = ""
    minor: int | None = None
    """Number of its device file, /dev/nvidia<minor>; None if not known."""
    mig: MigLocation | None = None

    @property
    def uuid_digits(self) -> str:
        """UUID without its prefix: CUDA and the segments do not distinguish cards from MIG devices."""
        return self.uuid.partition("-")[2]

    @property
    def quota_index(self) -> int | None:
        """Number by which a quota can name this GPU; None for a MIG device: numbers only name cards."""
        return None if self.mig is not None else self.index

    @property
    def label(self) -> str:
        """Return "0" for card 0, "0:2" for MIG device 2 of card 0."""
        return f"{self.index}:{self.mig.index}" if self.mig is not None else str(self.index)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """NVML's answer about a GPU at one moment."""

    gpu: Gpu
    memory_used_bytes: int
    utilisation_percent: int | None
    """None if not supported."""
    pids: tuple[tuple[int, int], ...]
    """(host pid, bytes) of the processes on the GPU."""
    error: str = ""
    """Failure of the last reading, or ""; after a failure, the other fields hold the last good answer."""
    is_lost: bool = False
    """True if NVML reports that the card has fallen off the bus."""
    readings: Readings = NO_READINGS
    """Checked readings for metrics."""
    vgpu: VgpuHost | None = None
    """vGPUs of the card; None if it hosts none."""
    mig: MigGpu | None = None
    """MIG state of a card that supports MIG, whether the mode is on or off; None for other cards."""
    mig_error: str = ""
    """Reason that the card's MIG devices cannot be read, or ""."""
    memory_source: str = "nvml"
    """Source of the card's memory total: "nvml", or where that has none "cuda" or "option"."""


@dataclass(frozen=True, slots=True)
class FailedCard:
    """A card that NVML counts but cannot sample. No tenant can use it."""

    index: int
    uuid: GpuUuid
    """Empty if not known either."""
    error: str
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """Identity of a process, distinct from a later process with the same pid."""

    host_pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Origin:
    """User, pod, container and cgroup of a process, as the kernel reports them."""

    uid: int
    gid: int
    container_id: str | None = None
    pod_uid: str | None = None
    cgroup: str = ""
    """Path of its cgroup, which distinguishes services and login sessions."""
    unknown_group: str = ""
    """Cgroup path that may belong to a container of an unknown runtime; empty if the origin is certain."""

    @property
    def is_contained(self) -> bool:
        """True if the process is in a pod or container. Its tenant is then the pod's, whatever its user."""
        return self.pod_uid is not None or self.container_id is not None


@dataclass(frozen=True, slots=True)
class Peer:
    """Process at the other end of a connection, as the kernel reports it. It was alive at that moment."""

    key: ProcessKey
    origin: Origin
    groups: frozenset[int] = frozenset()
    is_of_the_node: bool = False
    """True if it runs outside pods and containers, or in the daemon's own, in the daemon's pid and user
    namespaces."""
    namespace_pid: int = 0
    """Pid in its own, innermost pid namespace."""


@dataclass(frozen=True, slots=True)
class ClientHints:
    """Claims of a process about itself: hints, and a proposed quota."""

    pid: int = 0
    """Pid in the process's own namespace."""
    name: str = ""
    tenant: str = ""
    quota: Quota = NO_QUOTA
    is_nvml_only: bool = False
    """True if the process has only used NVML so far."""
    start_ticks: int = 0
    """Start time. Together with the pid it identifies the caller where the kernel does not name it (TCP)."""


@dataclass(frozen=True, slots=True)
class PodRef:
    """The cluster's name of a pod, or of one of its containers that has its own quota."""

    tenant: TenantName
    namespace: str
    pod: str
    container: str = ""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """A process's request to be registered."""

    key: ProcessKey
    origin: Origin
    hints: ClientHints = ClientHints()
    pod: PodRef | None = None
    """The cluster's name of the process's pod; None if it is in none."""
    at_s: float = 0.0
    """Unix time of the request; 0 if not known."""


@dataclass(frozen=True, slots=True)
class Registration:
    """Answer to a registered process."""

    worker: WorkerId
    host_pid: int
    tenant: TenantName
    usage: str
    policy: str
    source: str
    """Origin of the quota. "environment": the process's own environment set it, and later changes replace it.
    "tenant": another process's environment set it.
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
    is_nvml_only: bool = False


@dataclass(frozen=True, slots=True)
class EffectiveQuota:
    """The quota in force, and its source."""

    quota: Quota
    source: Source
    gang_source: Source | None = None
    """Source of the gang; None: none is said, so it is automatic."""


@dataclass(frozen=True, slots=True)
class DeviceQuota:
    """A quota on one GPU, with every field set."""

    memory_bytes: int
    """The card's whole memory if there is no limit."""
    is_memory_limited: bool
    compute_percent: int
    request_percent: int
    weight: int
    priority: Priority
    memory_wait_ns: int = 0
    """Longest time that an allocation may wait for memory; 0 if it is refused at once."""


def device_quota(quota: Quota, gpu: Gpu) -> DeviceQuota:
    """Return a quota applied to one GPU."""
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
