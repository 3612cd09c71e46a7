# SPDX-License-Identifier: Apache-2.0
"""State of the node at one moment, for a scrape. All frozen; None: not known, and then not served."""

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
    """A card."""

    uuid: str
    index: int
    name: str = ""
    driver_version: str | None = None
    is_lost: bool = False
    values: Mapping[str, float | None] = field(default_factory=dict)
    """By metric's name, for those without further labels."""
    clocks_hertz: Mapping[str, float] = field(default_factory=dict)
    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    throttle_reasons: Mapping[str, int] = field(default_factory=dict)
    xids: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a client, as far as that is known."""

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
    """Empty: none on this GPU."""
    mode: str = "auto"
    """auto, off or named."""
    released: int | None = None
    """Launches of the tenant, on all its GPUs, let go since running work waited for them."""


NO_GANG = GangMembership()


@dataclass(frozen=True, slots=True)
class ClientView:
    """A tenant on a card, or one process of it on that card where `client_id` is set."""

    who: Identity
    gpu_uuid: str
    gpu_index: int
    values: Mapping[str, float | None] = field(default_factory=dict)
    """By metric's name, for those without further labels."""
    launches: Mapping[str, int] = field(default_factory=dict)
    denied: Mapping[str, int] = field(default_factory=dict)
    pod: Mapping[str, float | None] = field(default_factory=dict)
    """Its part of its pod's figures, by metric's name."""
    source: str = ""
    state: State = "enforced"
    client_id: str = ""
    host_pid: int = 0
    gpu_id: str = ""
    """NVML's index as text, of a MIG device with its number in the card; "": as `gpu_index`."""
    mig_profile: str = ""
    gang: GangMembership = NO_GANG


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """Division of a card's time."""

    gpu_uuid: str
    gpu_index: int
    values: Mapping[str, float | None] = field(default_factory=dict)
    tally: SchedulerCounters | None = None


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """A part of the daemon that does something again and again."""

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
    """(namespace, name) of pods whose quotas cannot be followed."""
    unreadable: int = 0
    events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlicesView:
    """A card as the kubelet is offered it."""

    uuid: str
    index: int
    slices: Mapping[str, int]
    """By state."""
    returns: int = 0


@dataclass(frozen=True, slots=True)
class PluginView:
    """State of the link to the kubelet."""

    registrations: int = 0
    allocations: Mapping[str, int] = field(default_factory=dict)
    cards: tuple[SlicesView, ...] = ()
    is_told: bool = False
    """The kubelet answers which pods have which devices."""


@dataclass(frozen=True, slots=True)
class GuestGpu:
    """A GPU as a virtual machine describes it, checked."""

    index: int
    uuid: str
    name: str
    values: Mapping[str, float]
    """By metric's name without `kubevirt_vmi_gpu_`."""


@dataclass(frozen=True, slots=True)
class GuestView:
    """A virtual machine. Who it is comes from where the collector was told to connect."""

    namespace: str
    name: str
    node: str
    is_up: bool
    duration_s: float | None = None
    last_success_at_s: float | None = None
    agent_status: float | None = None
    """0, or NVML's number of the error in the guest; None: it has another exporter."""
    gpus: tuple[GuestGpu, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything."""

    gpus: tuple[GpuView, ...] = ()
    clients: tuple[ClientView, ...] = ()
    """Tenants; always there."""
    processes: tuple[ClientView, ...] = ()
    """Their processes; only where debug labels are wanted, and then served instead."""
    schedulers: tuple[SchedulerView, ...] = ()
    vgpu_hosts: tuple[VgpuHost, ...] = ()
    mig_gpus: tuple[MigGpu, ...] = ()
    guests: tuple[GuestView, ...] = ()
    components: tuple[ComponentStatus, ...] = ()
    kubernetes: KubeView | None = None
    """None: not in a cluster."""
    plugin: PluginView | None = None
    """None: no cards are offered to a kubelet."""
    gang_turns: GangCounters | None = None
    """None: no GPU time is divided here."""
    values: Mapping[str, float | None] = field(default_factory=dict)
    messages: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By (type, direction)."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By metric's name and the value of its only label."""
    agent: Mapping[str, str] = field(default_factory=dict)
    """Labels of the info of a guest's agent."""
    build: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    """This node's name."""
