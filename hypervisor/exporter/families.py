# SPDX-License-Identifier: Apache-2.0
"""A snapshot as families of samples, in the catalogue's order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hypervisor.core.turns import Histogram
from hypervisor.exporter.labels import Labels, make
from hypervisor.exporter.snapshot import (
    STATES,
    ClientView,
    GpuView,
    PartView,
    SchedulerView,
    Snapshot,
)
from hypervisor.metrics import CATALOGUE, Metric

Value = float | Histogram
MOST_CLIENTS = 4096
"""Series of clients' processes on one page: no tenant can make it grow without end."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric's samples."""

    name: str
    kind: str
    help: str
    rows: list[tuple[Labels, Value]] = field(default_factory=list)


class Sheet:
    """Collects rows; a name that is not in the catalogue is a mistake."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[Labels, Value]]] = {name: [] for name in CATALOGUE}

    def put(self, name: str, labels: Labels, value: Value | None) -> None:
        """Add a sample; what is not known is left out."""
        if value is not None:
            self._rows[name].append((labels, value))

    def put_all(self, labels: Labels, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:
                self._rows[name].append((labels, value))

    def put_each(self, name: str, labels: Labels, label: str, values: Mapping[str, float]) -> None:
        """Add a sample for each value of one more label."""
        for key, value in values.items():
            self._rows[name].append(((*labels, *make([(label, key)])), value))

    def families(self) -> list[Family]:
        """Return all that have samples."""
        return [family_of(CATALOGUE[name], rows) for name, rows in self._rows.items() if rows]


def family_of(metric: Metric, rows: list[tuple[Labels, Value]]) -> Family:
    return Family(metric.full_name, metric.kind, metric.help, rows)


def families_of(snapshot: Snapshot, *, has_debug_labels: bool) -> list[Family]:
    """Return everything that a snapshot has to show."""
    sheet = Sheet()
    for gpu in snapshot.gpus:
        add_gpu(sheet, gpu)
    clients = snapshot.processes if has_debug_labels else snapshot.clients
    for client in clients[:MOST_CLIENTS]:
        add_client(sheet, client)
    for view in snapshot.schedulers:
        add_scheduler(sheet, view)
    for pod in pods_of(snapshot):
        sheet.put_all(*pod)
    for part in snapshot.parts:
        add_part(sheet, part)
    sheet.put_all((), snapshot.values)
    for (kind, direction), count in snapshot.messages.items():
        sheet.put("scheduler_messages_total", make([("type", kind), ("direction", direction)]), count)
    for name, counts in snapshot.counts.items():
        sheet.put_each(name, (), CATALOGUE[name].label_names[-1], counts)
    if snapshot.build:
        sheet.put("build_info", make(snapshot.build.items()), 1)
    dropped = max(0, len(clients) - MOST_CLIENTS)
    sheet.put("series_dropped_total", make([("reason", "too_many_clients")]), dropped)
    return sheet.families()


def gpu_labels(uuid: str, index: int) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("gpu_uuid", uuid), ("gpu_index", str(index))


def add_gpu(sheet: Sheet, gpu: GpuView) -> None:
    labels = make(gpu_labels(gpu.uuid, gpu.index))
    about = make([("gpu_name", gpu.name), ("driver_version", gpu.driver_version or "")])
    sheet.put("gpu_info", labels + about, 1)
    sheet.put("gpu_lost", labels, gpu.is_lost)
    sheet.put_all(labels, gpu.values)
    sheet.put_each("gpu_clock_hertz", labels, "domain", gpu.clocks_hertz)
    sheet.put_each("gpu_throttle_reason", labels, "reason", gpu.throttle_reasons)
    sheet.put_each("gpu_xid_errors_total", labels, "xid", {str(x): n for x, n in gpu.xids.items()})


def client_labels(client: ClientView) -> Labels:
    """Return a client's labels: of a pod, its names; otherwise the tenant's."""
    who = client.who
    return make(
        (
            ("namespace", who.namespace),
            ("pod", who.pod),
            ("container", who.container),
            ("tenant", "" if who.pod else who.tenant),
            *gpu_labels(client.gpu_uuid, client.gpu_index),
            ("client_id", client.client_id),
            ("host_pid", str(client.host_pid or "")),
        )
    )


def add_client(sheet: Sheet, client: ClientView) -> None:
    labels, who = client_labels(client), client.who
    known = (("unit", who.unit), ("user", who.user), ("command", who.command))
    of_pod = [("tenant", who.tenant)] if who.pod else []
    sheet.put("client_info", labels + make([*of_pod, *known]), 1)
    sheet.put_all(labels, client.values)
    sheet.put_each("client_launches_total", labels, "kind", client.launches)
    sheet.put_each("client_allocations_denied_total", labels, "reason", client.denied)
    if client.source:
        sheet.put("client_memory_quota_source_info", labels + make([("source", client.source)]), 1)
    states: dict[str, float] = {state: float(state == client.state) for state in STATES}
    sheet.put_each("client_enforcement_state", labels, "state", states)


def add_scheduler(sheet: Sheet, view: SchedulerView) -> None:
    labels, tally = make(gpu_labels(view.gpu_uuid, view.gpu_index)), view.tally
    sheet.put_all(labels, view.values)
    if tally is not None:
        sheet.put("scheduler_rounds_total", labels, tally.rounds)
        sheet.put_each("scheduler_drop_lock_total", labels, "reason", tally.dropped)
        sheet.put("scheduler_turn_seconds", labels, tally.turn)
        sheet.put("scheduler_grant_wait_seconds", labels, tally.grant_wait)
        sheet.put("scheduler_release_seconds", labels, tally.release)


def add_part(sheet: Sheet, part: PartView) -> None:
    labels = make([("sampler", part.name)])
    sheet.put("sampler_up", labels, part.is_up)
    sheet.put("sampler_last_success_timestamp_seconds", labels, part.last_success_at_s)
    sheet.put("sampler_duration_seconds", labels, part.duration_s)
    sheet.put_each("sampler_errors_total", labels, "code", part.errors)


def pods_of(snapshot: Snapshot) -> Iterator[tuple[Labels, Mapping[str, float | None]]]:
    """Yield the pod view: the containers of a pod on one card added up."""
    rows: dict[Labels, list[ClientView]] = {}
    for client in snapshot.clients:
        who = client.who
        names = (("namespace", who.namespace), ("pod", who.pod), ("tenant", "" if who.pod else who.tenant))
        rows.setdefault(make([*names, ("gpu_id", str(client.gpu_index))]), []).append(client)
    for labels, clients in rows.items():
        yield (
            labels,
            {
                "pod_gpu_sm_util": sum_of(clients, "pod_gpu_sm_util"),
                "pod_gpu_memory_used": sum_of(clients, "pod_gpu_memory_used"),
                "pod_total_gpu_memory": sum_of(clients, "pod_total_gpu_memory"),
            },
        )


def sum_of(clients: Iterable[ClientView], name: str) -> float | None:
    known = [value for c in clients if (value := c.pod.get(name)) is not None]
    return sum(known) if known else None
