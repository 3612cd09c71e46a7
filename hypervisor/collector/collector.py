# SPDX-License-Identifier: Apache-2.0
"""Collects one metrics snapshot per period and publishes it to the exporter.

Event loop only, so no segment is closed while it is read. It works tenant by tenant, so that other tasks
never wait long. Read-only.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hypervisor.collector.ratio_file import RatioFile
from hypervisor.collector.tenants import TenantCollector, standalone_names
from hypervisor.config.settings import Settings
from hypervisor.dispatcher.dispatcher import Dispatcher
from hypervisor.metrics.clients import ClientAggregator
from hypervisor.metrics.gpus import NO_WAITS, GpuObservation, Schedulers, gpu_view, mig_view, vgpu_host_view
from hypervisor.metrics.observations import TenantObservation
from hypervisor.metrics.snapshot import ComponentStatus, KubeView, PluginView, SchedulerView, Snapshot
from hypervisor.model import PodRef
from hypervisor.node.node import Node
from hypervisor.node.registry import Tenant
from hypervisor.nvml.client import Nvml, max_age_s
from limiter import about

logger = logging.getLogger(__name__)
ARBITRATION_FRESH_S = 1.0
T = TypeVar("T")
BUILD = {"version": about.version(), "python_version": platform.python_version()}


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """The collector's settings."""

    period_s: float
    ttl_ns: int
    overcommit_percent: int
    has_debug_labels: bool
    ratio_file: str = ""
    node: str = ""
    """Name of this node, for labels."""

    @classmethod
    def of(cls, settings: Settings) -> CollectorOptions:
        return cls(
            period_s=settings.nvml_interval / 1e9,
            ttl_ns=settings.metrics_stale_ttl,
            overcommit_percent=settings.memory_overcommit,
            has_debug_labels=settings.metrics_debug_labels,
            ratio_file=settings.metrics_ratio_file,
            node=settings.node_name or platform.node(),
        )


class PodSource(Protocol):
    """The cluster's side: names for tenants, a view for metrics, and a hearer of what was collected."""

    def pod_of(self, tenant: Tenant) -> PodRef | None: ...
    def view(self) -> KubeView | None: ...
    def on_collected(self, observations: Iterable[TenantObservation]) -> None: ...


class PluginSource(Protocol):
    """The device plugin's side."""

    def components(self) -> tuple[ComponentStatus, ...]: ...
    def view(self) -> PluginView | None: ...


class Collector:
    """Makes snapshots. `rejected` counts unusable shared-memory files by reason."""

    def __init__(
        self,
        node: Node,
        dispatcher: Dispatcher,
        nvml: Nvml,
        options: CollectorOptions,
        *,
        pods: PodSource,
        plugin: PluginSource,
        messages: Mapping[tuple[str, str], int],
        registrations: Mapping[str, int],
        rejected: Mapping[str, int],
        add_guests: Callable[[Snapshot], Snapshot],
        publish: Callable[[Snapshot], None],
    ) -> None:
        self._node = node
        self._dispatcher = dispatcher
        self._nvml = nvml
        self._options = options
        self._messages = messages
        self._registrations = registrations
        self._add_guests = add_guests
        self._publish = publish
        self._tenants = TenantCollector(node, dispatcher, RatioFile(options.ratio_file), pods.pod_of)
        self._pods = pods
        self._plugin = plugin
        self._clients = ClientAggregator(ttl_ns=options.ttl_ns)
        self._schedulers = Schedulers()
        self._energy: dict[str, float] = {}
        self._collected_at_ns: int | None = None
        self._last_success_at_s: float | None = None
        self._duration_s: float | None = None
        self._errors: Counter[str] = Counter()
        self._rejected = rejected

    async def run(self) -> None:
        """Collect periodically until cancelled. A failed collection is counted and does not stop the next
        one.
        """
        while True:
            begin = time.monotonic()
            try:
                await self.collect_once()
            except Exception:
                self._errors["failed"] += 1
                logger.exception("cannot look at everything for metrics")
            await asyncio.sleep(
                max(self._options.period_s / 2, begin + self._options.period_s - time.monotonic())
            )

    async def collect_once(self) -> None:
        """Collect once, and publish the snapshot."""
        begin = time.monotonic()
        cards = self.cards()
        nvml = {
            card.sample.gpu.uuid: card.sample.readings.processes or {}
            for card in cards
            if card.is_fresh and not card.sample.error
        }
        observations: list[TenantObservation] = []
        own = frozenset(self._node.tenant_segments.open_tenants)
        names = await asyncio.to_thread(standalone_names, own)
        for of_tenant in self._tenants.tenants(nvml, names):
            observations += of_tenant
            await asyncio.sleep(0)
        self._pods.on_collected(observations)
        snapshot = self._snapshot(observations, cards)
        self._last_success_at_s = time.time()
        self._duration_s = time.monotonic() - begin
        self._publish(self._add_guests(snapshot))

    def _snapshot(self, observations: list[TenantObservation], cards: list[GpuObservation]) -> Snapshot:
        now_ns = time.monotonic_ns()
        elapsed_ns = now_ns - self._collected_at_ns if self._collected_at_ns is not None else 0
        self._collected_at_ns = now_ns
        views = self._clients.step(
            observations, now_ns=now_ns, elapsed_ns=elapsed_ns, energy=self._energy_since(cards)
        )
        known = {process.host_pid for observation in observations for process in observation.processes}
        known |= {worker.key.host_pid for worker in self._node.registry.workers.values()}
        listed = {pid for card in cards for pid in card.sample.readings.processes or ()}
        known |= self._node.exits.departed.among(listed - known)
        whole, node = [card for card in cards if card.sample.gpu.mig is None], self._options.node
        return Snapshot(
            gpus=tuple(gpu_view(card, observations, known) for card in whole),
            clients=views,
            processes=self._clients.processes(observations, views) if self._options.has_debug_labels else (),
            schedulers=tuple(self._scheduler(card, observations) for card in cards),
            vgpu_hosts=known_of(vgpu_host_view(card, node) for card in whole),
            mig_gpus=known_of(mig_view(card, observations, node) for card in whole),
            components=self.components(),
            gang_turns=self._dispatcher.gang_turns.counters(),
            values=self._own_values(),
            messages=dict(self._messages),
            counts=self._counts(),
            kubernetes=self._pods.view(),
            plugin=self._plugin.view(),
            build=BUILD,
            node=node,
        )

    def _scheduler(self, card: GpuObservation, observations: list[TenantObservation]) -> SchedulerView:
        turns = self._dispatcher.turns.get(card.sample.gpu.uuid)
        queue = self._dispatcher.memory.get(card.sample.gpu.uuid)
        return self._schedulers.view(
            card,
            observations,
            self._clients.windows,
            self._clients.entitled,
            overcommit_percent=self._options.overcommit_percent,
            tally=turns.counters() if turns is not None else None,
            memory_tally=queue.counters if queue is not None else NO_WAITS,
        )

    # ---- cards ----

    def cards(self) -> list[GpuObservation]:
        """Return all cards ever seen, and the current MIG devices."""
        health, inventory, is_fresh = self._nvml.health, self._node.inventory, self._nvml.is_fresh()
        cards = []
        for gpu in inventory.present:
            at_ns = health.last_xid_at_ns.get(gpu.uuid)
            cards.append(
                GpuObservation(
                    sample=inventory.samples[gpu.uuid],
                    is_fresh=is_fresh,
                    is_listed=gpu.uuid in health.listed,
                    xids={xid: count for (uuid, xid), count in health.xids.items() if uuid == gpu.uuid},
                    last_xid_at_s=None if at_ns is None else at_ns / 1e9,
                )
            )
        return cards

    def _energy_since(self, cards: list[GpuObservation]) -> dict[str, float]:
        """Return the energy that each card has used since the last collection, in joules."""
        used: dict[str, float] = {}
        for card in cards:
            now = card.sample.readings.energy_joules
            if now is None or not card.is_fresh:
                continue
            uuid = card.sample.gpu.uuid
            used[uuid] = max(0.0, now - self._energy.get(uuid, now))
            self._energy[uuid] = now
        return used

    # ---- the daemon itself ----

    def _own_values(self) -> dict[str, float | None]:
        registry = self._node.registry
        return {
            "up": int(
                any(component.name == "arbitration" and component.is_up for component in self.components())
            ),
            "nvml_up": int(self._nvml.is_fresh()),
            "gpus_failed": len(self._nvml.health.failed),
            "workers": len(registry.workers),
            "tenants": sum(bool(tenant.workers) for tenant in registry.tenants.values()),
            "longpoll_waiting": self._node.commands.open_requests(),
        }

    def _counts(self) -> dict[str, Mapping[str, int]]:
        events = self._node.events.counts
        gone = {"exited": events["exited"], "spoiled": events["books_spoiled"]}
        return {
            "scheduler_client_disconnect_total": gone,
            "registrations_total": dict(self._registrations),
            "shm_rejected_total": {**self._rejected, "spoiled": events["books_spoiled"]},
        }

    def components(self) -> tuple[ComponentStatus, ...]:
        """Return the status of each component."""
        health, store = self._nvml.health, self._node.recovery.store
        stepped_ago_s = (time.monotonic_ns() - self._dispatcher.stepped_at_ns) / 1e9
        at_s = self._last_success_at_s
        period_s = self._options.period_s
        return (
            ComponentStatus(
                "nvml",
                self._nvml.is_fresh(),
                None if health.last_success_at_ns is None else health.last_success_at_ns / 1e9,
                health.duration_s,
                dict(health.errors),
            ),
            ComponentStatus(
                "books",
                at_s is not None and time.time() - at_s <= max_age_s(period_s),
                at_s,
                self._duration_s,
                dict(self._errors + self._tenants.errors),
            ),
            ComponentStatus(
                "arbitration",
                self._dispatcher.steps > 0 and stepped_ago_s <= ARBITRATION_FRESH_S,
                time.time() - stepped_ago_s if self._dispatcher.steps else None,
            ),
            ComponentStatus("state", not store.problem, store.saved_at_s, None, {"write": store.failures}),
            *self._plugin.components(),
        )

    def reasons_not_ready(self) -> list[str]:
        """Return one line for each component that does not work."""
        silent = [component.name for component in self.components() if not component.is_up]
        reasons = {"state": "; ".join(self._node.warnings())}
        return [f"{name}: {reasons.get(name) or 'has not done its work lately'}" for name in silent]


def known_of(values: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(value for value in values if value is not None)
