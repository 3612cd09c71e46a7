# SPDX-License-Identifier: Apache-2.0
"""Values that `gpulimit top` shows: nodes, their cards, and the tenants and processes on each card.

All are frozen. None means not known: it is shown as a dash and left out of sums. `text.clean` has already
made text safe for a terminal. Ratios are 0-1, memory is in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Now = Literal["runs", "waits", "idle", "suspended", "waits mem", "no procs", "?"]
Health = Literal["up", "partial", "stale", "down", "new"]
"""partial: the node answers, but some component fails. stale: the last answer is shown. down: the last answer
is too old, or there was none. new: the node has not been asked yet."""


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant on a card."""

    key: str
    """The daemon's name for the tenant; empty if the node does not report it."""
    name: str
    """namespace/pod for a pod's tenant, else the tenant's name."""
    now: Now = "?"
    enforcement: str = ""
    """enforced, standalone, degraded or off."""
    problem: str = ""
    due: float | None = None
    got: float | None = None
    limit_percent: float | None = None
    request_percent: float | None = None
    weight: float | None = None
    priority: str = ""
    memory_bytes: float | None = None
    quota_bytes: float | None = None
    """None if not known, or if no quota is set."""
    is_over_quota: bool = False
    is_throttled: bool | None = None
    waited_s: float | None = None
    gpu_s: float | None = None
    denied: int = 0
    source: str = ""
    user: str = ""
    command: str = ""
    processes: int | None = None
    gang: str = ""
    """Name of the tenant's gang on this card. Empty if the tenant is in no gang."""

    @property
    def has_used(self) -> bool:
        """True if the tenant holds memory on the card or has ever run there."""
        return bool(self.memory_bytes or self.gpu_s or self.got)


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process on a card."""

    pid: int
    card: str
    """UUID."""
    card_index: int | None = None
    tenant: str = ""
    """Empty if the process is under no quota."""
    user: str = ""
    command: str = ""
    memory_bytes: float | None = None
    got: float | None = None


@dataclass(frozen=True, slots=True)
class Vgpu:
    """A vGPU on a card."""

    key: str
    type: str = ""
    vm: str = ""
    utilization: float | None = None
    memory_bytes: float | None = None
    total_bytes: float | None = None
    is_active: bool | None = None
    licence: str = ""
    driver: str = ""


@dataclass(frozen=True, slots=True)
class VgpuHostView:
    """Description of a card's vGPU hosting."""

    mode: str = ""
    policy: str = ""
    arr: str = ""
    timeslice_s: float | None = None


@dataclass(frozen=True, slots=True)
class Mig:
    """A MIG device on a card."""

    key: str
    """UUID, or the number of the MIG device on its card if the UUID is not known."""
    profile: str = ""
    gpu_instance: str = ""
    compute_instance: str = ""
    utilization: float | None = None
    memory_bytes: float | None = None
    total_bytes: float | None = None
    tenants: tuple[TenantView, ...] = ()


@dataclass(frozen=True, slots=True)
class CardView:
    """A card of a node."""

    uuid: str
    index: int | None = None
    name: str = ""
    driver: str = ""
    utilization: float | None = None
    memory_busy: float | None = None
    memory_bytes: float | None = None
    total_bytes: float | None = None
    reserved_bytes: float | None = None
    requested: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    clock_hz: float | None = None
    held_down_by: tuple[str, ...] = ()
    """Reasons for reduced clocks, without idleness."""
    is_lost: bool = False
    error: str = ""
    ecc_uncorrected: int = 0
    xids: tuple[tuple[str, int], ...] = ()
    last_xid_at_s: float | None = None
    processes: int | None = None
    unregistered: int | None = None
    tenants: tuple[TenantView, ...] = ()
    vgpu_host: VgpuHostView | None = None
    vgpus: tuple[Vgpu, ...] = ()
    mig_mode: bool | None = None
    migs: tuple[Mig, ...] = ()

    @property
    def memory_ratio(self) -> float | None:
        if self.memory_bytes is None or not self.total_bytes:
            return None
        return self.memory_bytes / self.total_bytes

    @property
    def is_bad(self) -> bool:
        return self.is_lost or bool(self.error)

    def on_parts(self) -> Iterator[tuple[str, tuple[TenantView, ...]]]:
        """Yield the tenants of the card itself and of each MIG device, by UUID."""
        yield self.uuid, self.tenants
        for mig in self.migs:
            yield mig.key, mig.tenants

    def with_tenants(
        self, change: Callable[[str, tuple[TenantView, ...]], tuple[TenantView, ...]]
    ) -> CardView:
        """Return a copy of the card with these tenants on it and on its MIG devices."""
        migs = tuple(replace(mig, tenants=change(mig.key, mig.tenants)) for mig in self.migs)
        return replace(self, tenants=change(self.uuid, self.tenants), migs=migs)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node at one moment. The key of a card is (host, uuid): two hosts may show the same UUID."""

    host: str
    health: Health = "new"
    at_s: float = 0.0
    """CLOCK_MONOTONIC time at which the figures were read."""
    cards: tuple[CardView, ...] = ()
    processes: tuple[ProcessView, ...] = ()
    problems: tuple[str, ...] = ()
    has_daemon: bool = True
    may_change: bool = False
    """True if the daemon lets this user suspend tenants and set quotas."""
    sees_all: bool = True
    """False if the daemon shows this user only the user's own tenants."""
    version: str = ""
    dropped: int = 0
    """Number of the node's samples and texts that were left out."""

    def tenants(self) -> Iterator[tuple[CardView, TenantView]]:
        """Yield all tenants with their card."""
        for card in self.cards:
            for _, tenants in card.on_parts():
                for tenant in tenants:
                    yield card, tenant


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """Sums over nodes; None if no card reports the value."""

    nodes: int = 0
    up: int = 0
    stale: int = 0
    down: int = 0
    cards: int = 0
    bad_cards: int = 0
    tenants: int = 0
    waiting: int = 0
    unregistered: int = 0
    utilization: float | None = None
    """Mean of the cards."""
    memory_bytes: float | None = None
    total_bytes: float | None = None
    power_w: float | None = None
    hottest_c: float | None = None


def totals_of(nodes: tuple[NodeView, ...]) -> ClusterTotals:
    """Return the sums over nodes. A node that is down only counts as down."""
    shown = [node for node in nodes if node.health in ("up", "partial", "stale")]
    cards = [card for node in shown for card in node.cards]
    tenants = [(node.host, tenant) for node in shown for _, tenant in node.tenants()]
    used = [c.utilization for c in cards if c.utilization is not None]
    return ClusterTotals(
        nodes=len(nodes),
        up=sum(node.health in ("up", "partial") for node in nodes),
        stale=sum(node.health == "stale" for node in nodes),
        down=sum(node.health == "down" for node in nodes),
        cards=len(cards),
        bad_cards=sum(card.is_bad for card in cards),
        # A tenant on several cards counts once.
        tenants=len({(host, tenant.name) for host, tenant in tenants}),
        waiting=len({(host, tenant.name) for host, tenant in tenants if tenant.is_throttled}),
        unregistered=sum(card.unregistered or 0 for card in cards),
        utilization=sum(used) / len(used) if used else None,
        memory_bytes=summed([c.memory_bytes for c in cards]),
        total_bytes=summed([c.total_bytes for c in cards]),
        power_w=summed([c.power_w for c in cards]),
        hottest_c=max((c.temperature_c for c in cards if c.temperature_c is not None), default=None),
    )


def summed(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
