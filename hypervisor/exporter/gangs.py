# SPDX-License-Identifier: Apache-2.0
"""Gangs as samples: their tenants, GPUs and turns, and launches that were let go for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypervisor.exporter.labels import NONE, Labels
from hypervisor.exporter.merge import Pairs
from hypervisor.exporter.samples import SampleSet
from hypervisor.metrics.snapshot import ClientView
from hypervisor.scheduler.gang_statistics import GangCounters


@dataclass(slots=True)
class GangExtent:
    """The tenants and the GPUs of a gang."""

    tenants: set[str] = field(default_factory=set)
    gpus: set[str] = field(default_factory=set)


def add_gangs(sheet: SampleSet, clients: Iterable[ClientView]) -> None:
    """Add the gangs, and what is counted per tenant and not per GPU."""
    gangs: dict[str, GangExtent] = {}
    released: dict[str, tuple[ClientView, int]] = {}
    for client in clients:
        if client.gang.id:
            extent = gangs.setdefault(client.gang.id, GangExtent())
            extent.tenants.add(client.who.tenant)
            extent.gpus.add(client.gpu_uuid)
        if client.gang.released is not None:
            released[client.who.tenant] = client, client.gang.released
    for gang, extent in gangs.items():
        labels = Labels([("gang", gang)])
        sheet.put("gang_members", labels, len(extent.tenants))
        sheet.put("gang_gpus", labels, len(extent.gpus))
    add_released(sheet, released.values())


def add_gang_turns(sheet: SampleSet, counters: GangCounters) -> None:
    """Add the turns of all gangs."""
    sheet.put_each("gang_turns_total", NONE, "reason", counters.ended)
    sheet.put("gang_turn_seconds", NONE, counters.turn)
    sheet.put("gang_drain_seconds", NONE, counters.drain)


def add_released(sheet: SampleSet, counts: Iterable[tuple[ClientView, int]]) -> None:
    """Add the launches let go by each tenant; tenants that a page cannot tell apart are one."""
    totals: dict[Pairs, int] = {}
    for client, count in counts:
        who = client.who
        names = ("namespace", who.namespace), ("pod", who.pod), ("container", who.container)
        pairs: Pairs = (*names, ("tenant", "" if who.pod else who.tenant))
        totals[pairs] = totals.get(pairs, 0) + count
    for pairs, total in totals.items():
        sheet.put("client_gang_released_total", Labels(pairs), total)
