# SPDX-License-Identifier: Apache-2.0
"""Simulates a node: usage counters that grow, aggregated by the daemon's own code. Pure: time is an
argument.
"""

from __future__ import annotations

import platform
import random
import zlib
from dataclasses import dataclass, replace
from typing import Any

from hypervisor.metrics import gpus
from hypervisor.metrics.clients import ClientAggregator
from hypervisor.metrics.gpus import Schedulers, gpu_view, mig_view, vgpu_host_view
from hypervisor.metrics.observations import ProcessObservation, TenantObservation, UsageCounters
from hypervisor.metrics.snapshot import ComponentStatus, Identity, SchedulerView, Snapshot
from hypervisor.model import Gpu, GpuSample, TenantName
from hypervisor.scheduler.fair_share import water_fill
from hypervisor.simulator.gpus import MIB, SimulatedCard, Use, card_sample, made_card, part_sample
from hypervisor.simulator.load import LoadDemand, pod_name, wishes
from hypervisor.simulator.spec import Plan
from limiter import about

CONTEXT = 518 * MIB
STRANGER_PID = 666_000
STALE_NS = 300 * 10**9
UNCORRECTABLE = 48
XID_EVERY_S = 40
HOT_C = 93
HW_THERMAL = "hw_thermal"


@dataclass(slots=True)
class SimulatedTenant:
    """A tenant on one GPU."""

    who: Identity
    gpu: Gpu
    wish: LoadDemand
    pid: int
    spent_ns: int = 0
    throttled_ns: int = 0
    got: float = 0.0

    @property
    def quota_bytes(self) -> int:
        return int(self.wish.quota_part * self.gpu.memory_bytes) // MIB * MIB


class SimulatedNode:
    """One node. Its plan and name determine everything."""

    def __init__(self, plan: Plan) -> None:
        dice = random.Random(zlib.crc32(plan.name.encode()))  # noqa: S311
        self.plan = plan
        self.cards = [
            made_card(dice, index, has_vgpu=plan.has_vgpu, has_mig=plan.has_mig and index % 2 == 0)
            for index in range(plan.cards)
        ]
        self.tenants = [] if plan.has_vgpu else [t for card in self.cards for t in self._tenants(dice, card)]
        self._clients, self._schedulers = ClientAggregator(ttl_ns=STALE_NS), Schedulers()
        self._joules = dict.fromkeys((card.gpu.uuid for card in self.cards), 1e6)
        self._looked_at_s: float | None = None
        self._began_at_s = 0.0

    def _tenants(self, dice: random.Random, card: SimulatedCard) -> list[SimulatedTenant]:
        made = []
        for gpu in card.parts:
            for wish in wishes(dice, self.plan.tenants if gpu.mig is None else 1):
                namespace, pod = pod_name(dice)
                who = Identity(
                    f"pod-{dice.getrandbits(32):08x}", namespace, pod, "main", "", "root", "python"
                )
                made.append(SimulatedTenant(who, gpu, wish, dice.randrange(10_000, 600_000)))
        return made

    def step(self, now_s: float) -> Snapshot:
        """Return the node's snapshot at a time, which must grow from call to call."""
        if self._looked_at_s is None:
            self._began_at_s = now_s
        elapsed_s = now_s - self._looked_at_s if self._looked_at_s is not None else 0.0
        self._looked_at_s = now_s
        for gpu in (part for card in self.cards for part in card.parts):
            self._work([t for t in self.tenants if t.gpu is gpu], now_s, elapsed_s)
        looks = [self._look(tenant, now_s) for tenant in self.tenants]
        samples = [self._card(card, looks, now_s, elapsed_s) for card in self.cards]
        whole = [self._told(sample, now_s) for sample in samples]
        parts = [
            self._told(part_sample(gpu, use_of(gpu, looks, self.tenants)), now_s)
            for card in self.cards
            if card.is_parted
            for gpu in card.parts
        ]
        energy: dict[str, float] = {s.gpu.uuid: self._watts(s) * elapsed_s for s in samples}
        views = self._clients.step(
            looks, now_ns=int(now_s * 1e9), elapsed_ns=int(elapsed_s * 1e9), energy=energy
        )
        known = {process.host_pid for look in looks for process in look.processes}
        return Snapshot(
            gpus=tuple(gpu_view(card, looks, known) for card in whole),
            clients=views,
            schedulers=tuple(self._scheduler(card, looks) for card in (*whole, *parts)),
            vgpu_hosts=tuple(filter(None, (vgpu_host_view(card, self.plan.name) for card in whole))),
            mig_gpus=tuple(filter(None, (mig_view(card, looks, self.plan.name) for card in whole))),
            components=self._components(now_s),
            values=self._values(),
            counts={"registrations_total": {"accepted": len(self.tenants)}},
            node=self.plan.name,
            build={"version": about.version(), "python_version": platform.python_version()},
        )

    def _work(self, here: list[SimulatedTenant], now_s: float, elapsed_s: float) -> None:
        """Advance the time on one GPU."""
        wanted = {TenantName(t.who.tenant): t.wish.wanted(now_s) for t in here}
        shares = water_fill({TenantName(t.who.tenant): t.wish.terms for t in here}, wanted)
        for tenant in here:
            name = TenantName(tenant.who.tenant)
            want, got = wanted[name], shares[name]
            tenant.got = got
            tenant.spent_ns += int(got * elapsed_s * 1e9)
            tenant.throttled_ns += int(max(0.0, want - got) * elapsed_s * 1e9)

    def _look(self, tenant: SimulatedTenant, now_s: float) -> TenantObservation:
        wish = tenant.wish
        part = 1.04 if self._has("over-quota") and tenant is self.tenants[0] else wish.memory.at(now_s)
        tracked = max(0, int(part * tenant.quota_bytes) - CONTEXT)
        launches = {"kernel": tenant.spent_ns // 150_000, "graph": tenant.spent_ns // 9_000_000}
        process = ProcessObservation(
            f"w-{tenant.pid}", tenant.pid, 1, "python", tracked, tenant.spent_ns, launches, tracked + CONTEXT
        )
        is_short = wish.wanted(now_s) > tenant.got + 0.01
        return TenantObservation(
            who=tenant.who,
            gpu=tenant.gpu,
            terms=wish.terms,
            memory_quota_bytes=tenant.quota_bytes,
            source="annotation",
            state="enforced",
            counters=UsageCounters(1, tracked + CONTEXT, tenant.spent_ns, tenant.throttled_ns, 0, 0),
            processes=[process],
            waiting=int(is_short),
            granted_ns=tenant.spent_ns if is_short else None,
        )

    def _card(
        self, card: SimulatedCard, looks: list[TenantObservation], now_s: float, elapsed_s: float
    ) -> GpuSample:
        uses: dict[str, Use] = {gpu.uuid: use_of(gpu, looks, self.tenants) for gpu in card.parts}
        busy = sum(use.busy for use in uses.values()) / len(uses)
        pids = {pid: size for use in uses.values() for pid, size in use.pids.items()}
        if self._has("stranger") and card.gpu.index == 0:
            pids[STRANGER_PID] = 1500 * MIB
        uuid = card.gpu.uuid
        made = card_sample(card, Use(busy, pids), uses, now_s=now_s, joules=self._joules[uuid])
        self._joules[uuid] += self._watts(made) * elapsed_s
        if card.gpu.index == 0 and self._has("hot"):
            hot = replace(made.readings, temperature_celsius=HOT_C, throttle_reasons={HW_THERMAL: 1})
            made = replace(made, readings=hot)
        if card.gpu.index == 0 and self._has("lost-gpu"):
            made = replace(made, is_lost=True, error="GPU is lost")
        return made

    @staticmethod
    def _watts(sample: GpuSample) -> float:
        return sample.readings.power_watts or 0.0

    def _told(self, sample: GpuSample, now_s: float) -> gpus.GpuObservation:
        xids, at_s = {}, None
        if self._has("xid") and sample.gpu.index == 0 and sample.gpu.mig is None:
            count = 1 + int(now_s - self._began_at_s) // XID_EVERY_S
            xids, at_s = {UNCORRECTABLE: count}, self._began_at_s + (count - 1) * XID_EVERY_S
        is_fresh = not self._has("nvml-down")
        return gpus.GpuObservation(sample, is_fresh=is_fresh, is_listed=True, xids=xids, last_xid_at_s=at_s)

    def _scheduler(self, card: gpus.GpuObservation, looks: list[TenantObservation]) -> SchedulerView:
        windows, entitled = self._clients.windows, self._clients.entitled
        return self._schedulers.view(card, looks, windows, entitled, overcommit_percent=100, tally=None)

    def _components(self, now_s: float) -> tuple[ComponentStatus, ...]:
        has_nvml = not self._has("nvml-down")
        errors = {} if has_nvml else {"timeout": 1}
        return (
            ComponentStatus("nvml", has_nvml, now_s if has_nvml else self._began_at_s, 0.004, errors),
            ComponentStatus("books", True, now_s, 0.001),
            ComponentStatus("arbitration", True, now_s),
        )

    def _values(self) -> dict[str, float | None]:
        count = len(self.tenants)
        nvml = int(not self._has("nvml-down"))
        return {"up": 1, "nvml_up": nvml, "workers": count, "tenants": count, "longpoll_waiting": count}

    def _has(self, fault: Any) -> bool:
        return fault in self.plan.faults


def use_of(gpu: Gpu, looks: list[TenantObservation], tenants: list[SimulatedTenant]) -> Use:
    """Return the use of a GPU by its tenants."""
    busy = min(1.0, sum(t.got for t in tenants if t.gpu is gpu))
    here = [process for look in looks if look.gpu is gpu for process in look.processes]
    return Use(busy, {process.host_pid: process.nvml_bytes or 0 for process in here})
