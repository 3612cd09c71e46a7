# SPDX-License-Identifier: Apache-2.0
"""Converts another node's metrics into facts in the shape of a daemon's `observed` data. Pure.

Metric names are gpulimit's, nvshare's or all-smi's. If a page has several of them, gpulimit's win. Host
labels of a page are ignored: the scraped address identifies the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from hypervisor.exporter.compat import ALIASES
from hypervisor.exporter.merge import BIGGEST
from hypervisor.metrics.catalogue import CATALOGUE, CLIENT_SECTION, GPU_SECTION, POD_SECTION
from hypervisor.scraper.parser import Page
from limiter.partition_metrics import PartitionReader

MAX_CARDS, MAX_CLIENTS, MAX_PROCESSES = 256, 4096, 4096
MIG = "MIG-"
HOST = "the host that was asked"
"""Replaces the host in collected instances, so that their host labels are ignored."""
Labels = dict[str, str]
Key = tuple[str, ...]
ALL_SMI_GPU = {
    "all_smi_gpu_info": ("gpu_info", 1.0),
    "all_smi_gpu_utilization": ("gpu_utilization_ratio", 0.01),
    "all_smi_gpu_memory_used_bytes": ("gpu_memory_used_bytes", 1.0),
    "all_smi_gpu_memory_total_bytes": ("gpu_memory_total_bytes", 1.0),
    "all_smi_gpu_temperature_celsius": ("gpu_temperature_celsius", 1.0),
    "all_smi_gpu_power_consumption_watts": ("gpu_power_watts", 1.0),
    "all_smi_gpu_frequency_mhz": ("gpu_clock_hertz", 1e6),
}


def translations() -> list[dict[str, tuple[str, float]]]:
    """Return tables from an exporter's name to the catalogue's name and a factor, in order of preference."""
    own = {metric.full_name: (name, 1.0) for name, metric in CATALOGUE.items()}
    nvshare = {alias.name: (alias.source, 1 / alias.scale) for alias in ALIASES["nvshare"]}
    return [own, nvshare, ALL_SMI_GPU]


TRANSLATIONS = translations()
SECTIONS = {
    name: section.title
    for section in (
        GPU_SECTION,
        CLIENT_SECTION,
        POD_SECTION,
    )
    for name, *_ in section.rows
}


@dataclass(slots=True)
class Facts:
    """Facts of one page, and the counts of samples left out, by reason."""

    observed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    processes: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    """Values of the node as a whole, by name."""
    version: str = ""
    dropped: Counter[str] = field(default_factory=Counter)


class Shelf:
    """A bounded map. Keys of the previous page have priority over new ones."""

    def __init__(self, most: int, reason: str, dropped: Counter[str], before: Collection[Key] = ()) -> None:
        self.things: dict[Key, dict[str, Any]] = {}
        self._before = set(before)
        self._room = most - len(self._before)
        self._reason, self._dropped = reason, dropped

    def get(self, key: Key, fresh: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Return the value of a key. If there is no room for it, count it as dropped and return None."""
        subject = self.things.get(key)
        if subject is None:
            if key not in self._before:
                if self._room <= 0:
                    self._dropped[self._reason] += 1
                    return None
                self._room -= 1
            subject = self.things[key] = fresh()
        return subject


class PageReading:
    """Parser state of one page. `known` holds the cards of the previous page."""

    def __init__(self, known: Collection[str] = ()) -> None:
        self.facts = Facts()
        dropped = self.facts.dropped
        self._cards = Shelf(MAX_CARDS, "too_many_cards", dropped, [(uuid,) for uuid in known])
        self._clients = Shelf(MAX_CLIENTS, "too_many_clients", dropped)
        self._processes = Shelf(MAX_PROCESSES, "too_many_processes", dropped)
        self._pods: list[tuple[str, Labels, float]] = []
        self._take: dict[str, Callable[[str, Labels, float], None]] = {
            GPU_SECTION.title: self._gpu,
            CLIENT_SECTION.title: self._client,
            POD_SECTION.title: self._pod,
        }

    def read(self, page: Page) -> Facts:
        """Return the facts of the page."""
        others = [table for table in TRANSLATIONS[1:] if not table.keys().isdisjoint(page.samples)]
        done: set[tuple[str, str]] = set()
        """Pairs of card and name that a preferred table has set."""
        for table in (TRANSLATIONS[0], *others):
            told: set[tuple[str, str]] = set()
            for said, series in page.samples.items():
                if said not in table:
                    continue
                name, scale = table[said]
                take = self._take.get(SECTIONS.get(name, ""), self._node)
                for pairs, raw in series.items():
                    if raw != raw:
                        continue  # NaN means not known
                    labels = dict(pairs)
                    if others:
                        where = name, uuid_in(labels)
                        if where in done:
                            continue
                        told.add(where)
                    take(name, labels, raw * scale)
            done |= told
        partitions = self._partitions(page)
        self._add_pods(partitions["mig_gpus"])
        self.facts.observed = {
            "gpus": list(self._cards.things.values()),
            "clients": list(self._clients.things.values()),
            **partitions,
        }
        self.facts.processes = list(self._processes.things.values())
        return self.facts

    def _card(self, labels: Labels) -> dict[str, Any] | None:
        uuid = uuid_in(labels)
        if not uuid:
            self.facts.dropped["no_card"] += 1
            return None
        return self._cards.get((uuid,), lambda: fresh_card(uuid, labels))

    def _gpu(self, name: str, labels: Labels, value: float) -> None:
        card = self._card(labels)
        if card is None:
            return
        if name == "gpu_info":
            card["name"] = labels.get("gpu_name") or labels.get("gpu") or card["name"]
            card["driver_version"] = labels.get("driver_version", "")
        elif name == "gpu_clock_hertz":
            card["clocks_hertz"][labels.get("domain", "sm")] = value
        elif name == "gpu_throttle_reason":
            card["throttle_reasons"] += [labels.get("reason", "")] if value else []
        elif name == "gpu_ecc_errors_total":
            card["ecc_errors"][labels.get("kind", "")] = value
        elif name == "gpu_xid_errors_total":
            card["xids"][labels.get("xid", "")] = value
        elif name == "gpu_lost":
            card["lost"] = value > 0
        else:
            card["values"][name] = value

    def _client(self, name: str, labels: Labels, value: float) -> None:
        key = client_key(uuid_in(labels), labels)
        client = self._clients.get(key, lambda: fresh_client(key[0], labels))
        if client is None or not (key[0].startswith(MIG) or self._card(labels)):
            return
        if name == "client_info":
            for label in ("tenant", "user", "command"):
                client[label] = labels.get(label, "")
        elif name == "client_enforcement_state":
            client["state"] = labels.get("state", "") if value else client["state"]
        elif name == "client_memory_quota_source_info":
            client["source"] = labels.get("source", "")
        elif name == "client_gang_info":
            client["gang"] = labels.get("gang", "")
        elif name == "client_allocations_denied_total":
            reason = labels.get("reason", "")
            client["denied"][reason] = client["denied"].get(reason, 0) + value
        elif name != "client_launches_total":
            add(client["values"], name, value)
        if "host_pid" in labels:
            self._process(name, labels, value)

    def _process(self, name: str, labels: Labels, value: float) -> None:
        """Add a process. Only pages with debug labels contain processes."""
        pid = labels["host_pid"]
        uuid = uuid_in(labels)
        process = self._processes.get(
            (uuid, pid), lambda: {"uuid": uuid, "host_pid": pid, "client": client_key(uuid, labels)}
        )
        if process is not None and name == "client_info":
            process |= {"user": labels.get("user", ""), "command": labels.get("command", "")}
        elif process is not None and name in ("client_nvml_used_bytes", "client_gpu_seconds_total"):
            process[name] = value

    def _pod(self, name: str, labels: Labels, value: float) -> None:
        self._pods.append((name, labels, value))

    def _add_pods(self, mig_gpus: list[dict[str, Any]]) -> None:
        """Add the pod metrics: they name cards by index, MIG devices by two indexes, and sum containers."""
        uuids = {str(card["index"]): key[0] for key, card in self._cards.things.items()}
        uuids |= {f"{g['gpu_index']}:{m['index']}": m["uuid"] for g in mig_gpus for m in g["instances"]}
        clients: dict[Key, list[dict[str, Any]]] = {}
        for key, client in self._clients.things.items():
            clients.setdefault((*key[:3], key[4]), []).append(client)
        for name, labels, value in self._pods:
            key = client_key(uuids.get(labels.get("gpu_id", ""), ""), labels)
            here = clients.get((*key[:3], key[4]), [])
            if len(here) == 1:
                here[0]["values"].setdefault(name, value)

    def _partitions(self, page: Page) -> dict[str, list[dict[str, Any]]]:
        """Return vGPUs and MIG devices."""
        reader = PartitionReader(HOST)
        for name, series in page.samples.items():
            if "vgpu_" in name or "mig_" in name:
                reader.take((name, dict(labels), value) for labels, value in series.items())
        if reader.dropped:
            self.facts.dropped["bad_instance"] += reader.dropped
        return {
            "vgpu_hosts": [asdict(host) for host in reader.vgpu_hosts()],
            "mig_gpus": [asdict(gpu) for gpu in reader.mig_gpus()],
        }

    def _node(self, name: str, labels: Labels, value: float) -> None:
        if name == "build_info":
            self.facts.version = labels.get("version", "")
        elif name in ("up", "nvml_up"):
            self.facts.values[name] = value


def uuid_in(labels: Labels) -> str:
    """Return a card's key. Older exporters, and some current ones, use other labels or none."""
    uuid = labels.get("gpu_uuid") or labels.get("uuid")
    if uuid:
        return uuid
    index = labels.get("gpu_index") or labels.get("index")
    return f"index {index}" if index else ""


def fresh_card(uuid: str, labels: Labels) -> dict[str, Any]:
    index = labels.get("gpu_index") or labels.get("index") or ""
    return {
        "uuid": uuid,
        "index": int(index) if index.isascii() and index.isdecimal() and len(index) < 6 else None,
        "name": labels.get("gpu_name") or labels.get("gpu") or "",
        "driver_version": "",
        "lost": False,
        "values": {},
        "clocks_hertz": {},
        "ecc_errors": {},
        "throttle_reasons": [],
        "xids": {},
    }


def client_key(uuid: str, labels: Labels) -> Key:
    """Return a client's card, namespace, pod and container, and its tenant if it has no pod."""
    pod = labels.get("pod", "")
    tenant = "" if pod else labels.get("tenant", "")
    return uuid, labels.get("namespace", ""), pod, labels.get("container", ""), tenant


def fresh_client(uuid: str, labels: Labels) -> dict[str, Any]:
    return {
        "gpu_uuid": uuid,
        "namespace": labels.get("namespace", ""),
        "pod": labels.get("pod", ""),
        "container": labels.get("container", ""),
        "tenant": labels.get("tenant", ""),
        "state": "",
        "source": "",
        "gang": "",
        "values": {},
        "denied": {},
    }


def add(values: dict[str, float], name: str, value: float) -> None:
    """Add one process's value to its tenant's. Flags and values that cannot be summed keep the maximum."""
    before = values.get(name)
    if before is None:
        values[name] = value
    else:
        values[name] = max(before, value) if name in BIGGEST else before + value


def facts_of(page: Page, known: Collection[str] = ()) -> Facts:
    """Return the facts of a page; `known` holds the UUIDs of the previous page's cards."""
    return PageReading(known).read(page)
