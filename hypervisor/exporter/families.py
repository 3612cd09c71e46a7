# SPDX-License-Identifier: Apache-2.0
"""Converts a snapshot to families of samples, in the catalogue's order. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hypervisor.exporter import partitions
from hypervisor.exporter.gangs import add_gang_turns, add_gangs
from hypervisor.exporter.guests import add_guest
from hypervisor.exporter.labels import NONE, Labels
from hypervisor.exporter.merge import gpu_labels, merged
from hypervisor.exporter.samples import Family, SampleSet
from hypervisor.metrics.catalogue import CATALOGUE
from hypervisor.metrics.snapshot import (
    STATES,
    ClientView,
    ComponentStatus,
    GpuView,
    KubeView,
    PluginView,
    SchedulerView,
    Snapshot,
)

MAX_CLIENTS = 4096
"""Bound on the series of clients' processes on one page, so that no tenant can make it grow without end."""


def families_of(snapshot: Snapshot, *, has_debug_labels: bool) -> list[Family]:
    """Return all families of a snapshot."""
    sheet = SampleSet()
    for gpu in snapshot.gpus:
        add_gpu(sheet, gpu)
    clients = snapshot.processes if has_debug_labels else snapshot.clients
    for pairs, client in merged(clients[:MAX_CLIENTS]).items():
        add_client(sheet, client, pairs)
    for view in snapshot.schedulers:
        add_scheduler(sheet, view)
    add_pods(sheet, snapshot.clients)
    add_gangs(sheet, snapshot.clients[:MAX_CLIENTS])
    if snapshot.gang_turns is not None:
        add_gang_turns(sheet, snapshot.gang_turns)
    for host in snapshot.vgpu_hosts:
        partitions.add_vgpu_host(sheet, host)
    for card in snapshot.mig_gpus:
        partitions.add_mig_gpu(sheet, card)
    for guest in snapshot.guests:
        add_guest(sheet, guest)
    for component in snapshot.components:
        add_component(sheet, component)
    if snapshot.kubernetes is not None:
        add_kubernetes(sheet, snapshot.kubernetes)
    if snapshot.plugin is not None:
        add_plugin(sheet, snapshot.plugin)
    sheet.put_all(NONE, snapshot.values)
    for (kind, direction), count in snapshot.messages.items():
        sheet.put("scheduler_messages_total", Labels([("type", kind), ("direction", direction)]), count)
    for name, counts in snapshot.counts.items():
        sheet.put_each(name, NONE, CATALOGUE[name].label_names[-1], counts)
    if snapshot.build:
        sheet.put("build_info", Labels(snapshot.build.items()), 1)
    if snapshot.agent:
        sheet.put("guest_agent_info", Labels(snapshot.agent.items()), 1)
    dropped = max(0, len(clients) - MAX_CLIENTS)
    sheet.put("series_dropped_total", NONE.plus("reason", "too_many_clients"), dropped)
    return sheet.families()


def add_gpu(sheet: SampleSet, gpu: GpuView) -> None:
    card = gpu_labels(gpu.uuid, gpu.index)
    labels = Labels(card)
    about = ("gpu_name", gpu.name), ("driver_version", gpu.driver_version or "")
    sheet.put("gpu_info", Labels([*card, *about]), 1)
    sheet.put("gpu_lost", labels, int(gpu.is_lost))
    sheet.put_all(labels, gpu.values)
    sheet.put_each("gpu_clock_hertz", labels, "domain", gpu.clocks_hertz)
    sheet.put_each("gpu_throttle_reason", labels, "reason", gpu.throttle_reasons)
    sheet.put_each("gpu_ecc_errors_total", labels, "kind", gpu.ecc_errors)
    sheet.put_each("gpu_xid_errors_total", labels, "xid", {str(x): n for x, n in gpu.xids.items()})


def add_client(sheet: SampleSet, client: ClientView, pairs: tuple[tuple[str, str], ...]) -> None:
    labels, who = Labels(pairs), client.who
    of_pod = who.tenant if who.pod else ""
    known = ("tenant", of_pod), ("unit", who.unit), ("user", who.user), ("command", who.command)
    sheet.put("client_info", Labels([*pairs, *known, ("mig_profile", client.mig_profile)]), 1)
    sheet.put_all(labels, client.values)
    sheet.put_each("client_launches_total", labels, "kind", client.launches)
    sheet.put_each("client_allocations_denied_total", labels, "reason", client.denied)
    if client.gang.id:
        gang = ("gang", client.gang.id), ("mode", client.gang.mode)
        sheet.put("client_gang_info", Labels([*pairs, *gang]), 1)
    if client.source:
        sheet.put("client_memory_quota_source_info", labels.plus("source", client.source), 1)
    for state in STATES:
        sheet.put("client_enforcement_state", labels.plus("state", state), int(state == client.state))


def add_scheduler(sheet: SampleSet, view: SchedulerView) -> None:
    labels, tally = Labels(gpu_labels(view.gpu_uuid, view.gpu_index)), view.tally
    sheet.put_all(labels, view.values)
    if tally is not None:
        sheet.put("scheduler_rounds_total", labels, tally.rounds)
        sheet.put_each("scheduler_drop_lock_total", labels, "reason", tally.dropped)
        sheet.put("scheduler_turn_seconds", labels, tally.turn)
        sheet.put("scheduler_grant_wait_seconds", labels, tally.grant_wait)
        sheet.put("scheduler_release_seconds", labels, tally.release)


def add_component(sheet: SampleSet, component: ComponentStatus) -> None:
    labels = NONE.plus("sampler", component.name)
    sheet.put("sampler_up", labels, int(component.is_up))
    sheet.put("sampler_last_success_timestamp_seconds", labels, component.last_success_at_s)
    sheet.put("sampler_duration_seconds", labels, component.duration_s)
    sheet.put_each("sampler_errors_total", labels, "code", component.errors)


def add_kubernetes(sheet: SampleSet, view: KubeView) -> None:
    sheet.put("kube_watch_up", NONE, int(view.is_up))
    sheet.put("kube_watch_restarts_total", NONE, view.restarts)
    sheet.put("kube_kubelet_fallback", NONE, int(view.is_fallback))
    sheet.put("kube_pods", NONE, view.pods)
    sheet.put("kube_objects_unreadable_total", NONE, view.unreadable)
    sheet.put_each("kube_events_total", NONE, "result", view.events)
    for namespace, pod in view.invalid[:MAX_CLIENTS]:
        sheet.put("kube_quota_invalid", Labels([("namespace", namespace), ("pod", pod)]), 1)


def add_plugin(sheet: SampleSet, view: PluginView) -> None:
    sheet.put("device_plugin_registrations_total", NONE, view.registrations)
    sheet.put_each("device_plugin_allocations_total", NONE, "result", view.allocations)
    sheet.put("device_plugin_pod_resources_up", NONE, int(view.is_told))
    for card in view.cards:
        labels = Labels([("gpu_uuid", card.uuid), ("gpu_index", str(card.index))])
        sheet.put_each("device_plugin_slices", labels, "state", card.slices)
        sheet.put("device_plugin_card_returns_total", labels, card.returns)


def add_pods(sheet: SampleSet, clients: Iterable[ClientView]) -> None:
    """Add the pod view: the sums over the containers of a pod on one card."""
    rows: dict[tuple[str, str, str, str], list[ClientView]] = {}
    for client in clients:
        who = client.who
        gpu_id = client.gpu_id or str(client.gpu_index)
        key = who.namespace, who.pod, "" if who.pod else who.tenant, gpu_id
        rows.setdefault(key, []).append(client)
    for (namespace, pod, tenant, gpu_id), here in rows.items():
        names = ("namespace", namespace), ("pod", pod), ("tenant", tenant), ("gpu_id", gpu_id)
        labels = Labels(names)
        for name in ("pod_gpu_sm_util", "pod_gpu_memory_used", "pod_total_gpu_memory"):
            known = [value for c in here if (value := c.pod.get(name)) is not None]
            sheet.put(name, labels, sum(known) if known else None)
