# SPDX-License-Identifier: Apache-2.0
"""State of the node at one moment, for a scrape. All classes are frozen. A value of None is not known and is
not exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hypervisor.scheduler.gang_statistics import GangCounters
from hypervisor.scheduler.statistics import SchedulerCounters
from limiter.mig import MigGpu
from limiter.vgpu import VgpuHost

State = Literal["enforced", "standalone", "degraded", "off"]
STATES: tuple[State, ...] = ("enforced", "standalone", "degraded", "off")


@dataclass(frozen=True, slots=True)
class GpuView:
    """Figures of one card."""

    uuid: str
    index: int
    name: str = ""
    driver_version: str | None = None
    is_lost: bool = False
    values: Mapping[str, float | None] = field(default_factory=dict)
    """Values of metrics without further labels, by metric name."""
    clocks_hertz: Mapping[str, float] = field(default_factory=dict)
    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    throttle_reasons: Mapping[str, int] = field(default_factory=dict)
    xids: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a client. A field is empty if it is not known."""

    tenant: str
    namespace: str = ""
    pod: str = ""
    container: str = ""
    unit: str = ""
    user: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class GangMembership:
    """A tenant's gang on one GPU."""

    id: str = ""
    """Empty if the tenant is in no gang on this GPU."""
    mode: str = "auto"
    """auto, off or named."""
    released: int | None = None
    """Number of the tenant's launches, on all GPUs, that started regardless of limit and turn because other
    work waited for them.
    """


NO_GANG = GangMembership()


@dataclass(frozen=True, slots=True)
class ClientView:
    """A tenant on a card. If `client_id` is set, one process of the tenant on that card."""

    who: Identity
    gpu_uuid: str
    gpu_index: int
    values: Mapping[str, float | None] = field(default_factory=dict)
    """Values of metrics without further labels, by metric name."""
    launches: Mapping[str, int] = field(default_factory=dict)
    denied: Mapping[str, int] = field(default_factory=dict)
    pod: Mapping[str, float | None] = field(default_factory=dict)
    """The client's part of its pod's values, by metric name."""
    source: str = ""
    state: State = "enforced"
    client_id: str = ""
    host_pid: int = 0
    gpu_id: str = ""
    """NVML's index as text. For a MIG device, with its number on the card. Empty: same as `gpu_index`."""
    mig_profile: str = ""
    gang: GangMembership = NO_GANG


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """Values and counters of one card's scheduler."""

    gpu_uuid: str
    gpu_index: int
    values: Mapping[str, float | None] = field(default_factory=dict)
    tally: SchedulerCounters | None = None


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """Health of a component of the daemon that works periodically."""

    name: str
    is_up: bool
    last_success_at_s: float | None = None
    duration_s: float | None = None
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubeView:
    """State of the link to the cluster."""

    is_up: bool
    is_fallback: bool = False
    restarts: int = 0
    pods: int = 0
    invalid: tuple[tuple[str, str], ...] = ()
    """(namespace, name) of pods whose quotas are invalid."""
    unreadable: int = 0
    events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlicesView:
    """Slices of a card that the device plugin offers to the kubelet."""

    uuid: str
    index: int
    slices: Mapping[str, int]
    """Number of slices by state."""
    returns: int = 0


@dataclass(frozen=True, slots=True)
class PluginView:
    """State of the link to the kubelet."""

    registrations: int = 0
    allocations: Mapping[str, int] = field(default_factory=dict)
    cards: tuple[SlicesView, ...] = ()
    is_told: bool = False
    """True if the kubelet reports which pods have which devices."""


@dataclass(frozen=True, slots=True)
class GuestGpu:
    """A GPU as a virtual machine reports it, after checks."""

    index: int
    uuid: str
    name: str
    values: Mapping[str, float]
    """Values by metric name without the prefix `kubevirt_vmi_gpu_`."""


@dataclass(frozen=True, slots=True)
class GuestView:
    """A virtual machine. Its identity is that of the configured target, never a label of its page."""

    namespace: str
    name: str
    node: str
    is_up: bool
    duration_s: float | None = None
    last_success_at_s: float | None = None
    agent_status: float | None = None
    """0, or the number of NVML's error in the guest. None if the guest runs another exporter."""
    gpus: tuple[GuestGpu, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All values of one scrape."""

    gpus: tuple[GpuView, ...] = ()
    clients: tuple[ClientView, ...] = ()
    """Tenants. Always filled."""
    processes: tuple[ClientView, ...] = ()
    """Processes of the tenants. Filled only with debug labels, and then exported instead of `clients`."""
    schedulers: tuple[SchedulerView, ...] = ()
    vgpu_hosts: tuple[VgpuHost, ...] = ()
    mig_gpus: tuple[MigGpu, ...] = ()
    guests: tuple[GuestView, ...] = ()
    components: tuple[ComponentStatus, ...] = ()
    kubernetes: KubeView | None = None
    """None if the node is not in a cluster."""
    plugin: PluginView | None = None
    """None if no cards are offered to a kubelet."""
    gang_turns: GangCounters | None = None
    """None if this daemon divides no GPU time."""
    values: Mapping[str, float | None] = field(default_factory=dict)
    messages: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of messages by (type, direction)."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Counts by metric name and the value of the metric's only label."""
    agent: Mapping[str, str] = field(default_factory=dict)
    """Labels of the info metric of the guest agent."""
    build: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    """Name of this node."""
