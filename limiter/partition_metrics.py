# SPDX-License-Identifier: Apache-2.0
"""Reads vGPUs and MIG devices back from the metrics of a node, which may be hostile. Pure.

The input is parsed samples: (name, labels, value). The reader understands this daemon's families, those of
all-smi, and the label names of its older versions. Values and objects beyond a bound are left out. Known
objects are still updated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from limiter import mig, vgpu
from limiter.mig import MigGpu, MigInstance
from limiter.vgpu import HOST_MODES, HostMode, VgpuHost, VgpuInstance

Sample = tuple[str, Mapping[str, str], float]
MAX_GPUS = 256
MAX_INSTANCES = 4096
MAX_MIG_INDEX = 64
MAX_GPU_INDEX = 4096
MAX_TEXT_CHARS = 256
MAX_NUMBER = 2.0**63
PREFIX, ALL_SMI = "gpulimit_", "all_smi_"
PERCENT = 0.01
MODE_OF = {number: mode for mode, number in HOST_MODES.items()}

Key = tuple[str, str]
"""(host, UUID of the card): two hosts may have cards with the same UUID."""
Families = dict[str, tuple[str, float]]
"""Full name of a metric -> (field, factor)."""


def families_of(table: Mapping[str, str], foreign: Mapping[str, tuple[str, float]]) -> Families:
    ours = {PREFIX + name: (field, 1.0) for field, name in table.items()}
    return ours | {ALL_SMI + name: told for name, told in foreign.items()}


VGPU_HOST = families_of(
    vgpu.HOST_FAMILIES,
    {"vgpu_scheduler_state": ("arr_mode", 1.0), "vgpu_scheduler_policy": ("policy", 1.0)},
)
VGPU_INSTANCE = families_of(
    vgpu.INSTANCE_FAMILIES,
    {
        "vgpu_utilization": ("utilization_ratio", PERCENT),
        "vgpu_memory_utilization": ("memory_utilization_ratio", PERCENT),
        "vgpu_memory_used_bytes": ("memory_used_bytes", 1.0),
        "vgpu_memory_total_bytes": ("memory_total_bytes", 1.0),
        "vgpu_active": ("is_active", 1.0),
    },
)
VGPU_INFO = {PREFIX + name: (field, label) for field, (name, label) in vgpu.INSTANCE_INFOS.items()}
MIG_INSTANCE = families_of(
    mig.INSTANCE_FAMILIES,
    {
        "mig_instance_memory_used_bytes": ("memory_used_bytes", 1.0),
        "mig_instance_memory_total_bytes": ("memory_total_bytes", 1.0),
        "mig_instance_utilization_gpu": ("utilization_ratio", PERCENT),
        "mig_instance_utilization_memory": ("memory_utilization_ratio", PERCENT),
    },
)
MODES = (PREFIX + "vgpu_host_mode", ALL_SMI + "vgpu_host_mode")
MIG_MODES = (PREFIX + "mig_mode", ALL_SMI + "gpu_mig_mode")
MIG_INFO = PREFIX + mig.INFO
WHOLE = {
    "arr_mode": 2,
    "policy": 3,
    "overruns": MAX_NUMBER,
    "memory_used_bytes": MAX_NUMBER,
    "memory_total_bytes": MAX_NUMBER,
    "memory_reserved_bytes": MAX_NUMBER,
}
"""Integer fields, and their largest values."""


class PartitionReader:
    """Takes the samples of one or more pages. `host` names the node if the samples do not."""

    def __init__(self, host: str = "") -> None:
        self._host = host
        self._vgpu_hosts: dict[Key, VgpuHost] = {}
        self._vgpus: dict[tuple[Key, int], VgpuInstance] = {}
        self._mig_gpus: dict[Key, MigGpu] = {}
        self._migs: dict[tuple[Key, int], MigInstance] = {}
        self.dropped = 0
        """Number of samples that are invalid or beyond a bound."""

    def take(self, samples: Iterable[Sample]) -> None:
        """Take the samples about vGPUs and MIG; ignore the others."""
        for name, labels, value in samples:
            if "vgpu_" in name:
                taken = self._take_vgpu(name, labels, value)
            elif "mig_" in name:
                taken = self._take_mig(name, labels, value)
            else:
                continue
            self.dropped += not taken

    def vgpu_hosts(self) -> tuple[VgpuHost, ...]:
        """Return cards with vGPUs, by host and index, their vGPUs by number."""
        found: dict[Key, list[VgpuInstance]] = {}
        for (key, _), instance in sorted(self._vgpus.items()):
            found.setdefault(key, []).append(instance)
        whole = [replace(h, instances=tuple(found.get(key, ()))) for key, h in self._vgpu_hosts.items()]
        return tuple(sorted(whole, key=lambda h: (h.host, h.gpu_index, h.gpu_uuid)))

    def mig_gpus(self) -> tuple[MigGpu, ...]:
        """Return cards that support MIG, by host and index, their MIG devices by number."""
        found: dict[Key, list[MigInstance]] = {}
        for (key, _), instance in sorted(self._migs.items()):
            found.setdefault(key, []).append(instance)
        whole = [replace(g, instances=tuple(found.get(key, ()))) for key, g in self._mig_gpus.items()]
        return tuple(sorted(whole, key=lambda g: (g.host, g.gpu_index, g.gpu_uuid)))

    # ---- vGPU ----

    def _take_vgpu(self, name: str, labels: Mapping[str, str], value: float) -> bool:
        key = self._key(labels)
        if key is None:
            return False
        if name in MODES or name in VGPU_HOST:
            return self._take_vgpu_host(name, key, labels, value)
        if name in VGPU_INSTANCE or name in VGPU_INFO:
            return self._take_vgpu_instance(name, key, labels, value)
        return True  # of a newer version

    def _take_vgpu_host(self, name: str, key: Key, labels: Mapping[str, str], value: float) -> bool:
        host = self._vgpu_hosts.get(key)
        if host is None:
            if len(self._vgpu_hosts) >= MAX_GPUS:
                return False
            host = VgpuHost(**self._card(key, labels))
        if name in MODES:
            mode: HostMode = MODE_OF.get(int(value), "disabled") if math.isfinite(value) else "disabled"
            self._vgpu_hosts[key] = replace(host, host_mode=mode)
            return True
        if "arr_supported" in labels:
            host = replace(host, is_arr_supported=labels["arr_supported"] == "true")
        field, factor = VGPU_HOST[name]
        known: Any = checked(field, value * factor)
        self._vgpu_hosts[key] = replace(host, **{field: known}) if known is not None else host
        return known is not None

    def _take_vgpu_instance(self, name: str, key: Key, labels: Mapping[str, str], value: float) -> bool:
        number = whole(labels.get("vgpu_id", ""), (1 << 32) - 1)
        if number is None:
            return False
        instance = self._vgpus.get((key, number))
        if instance is None:
            if len(self._vgpus) >= MAX_INSTANCES:
                return False
            texts = texts_in(labels, vgpu.INSTANCE_LABELS, besides="vgpu_id")
            instance = VgpuInstance(vgpu_id=number, **texts)
        if key not in self._vgpu_hosts:
            if len(self._vgpu_hosts) >= MAX_GPUS:
                return False
            self._vgpu_hosts[key] = VgpuHost(**self._card(key, labels))
        if name in VGPU_INFO:
            field, label = VGPU_INFO[name]
            known: Any = text(labels.get(label, ""))
        else:
            field, factor = VGPU_INSTANCE[name]
            known = checked(field, value * factor)
        self._vgpus[key, number] = replace(instance, **{field: known}) if known is not None else instance
        return known is not None

    # ---- MIG ----

    def _take_mig(self, name: str, labels: Mapping[str, str], value: float) -> bool:
        key = self._key(labels)
        is_of_card = name in MIG_MODES
        if not is_of_card and name not in MIG_INSTANCE and name != MIG_INFO:
            return True  # of a newer version
        if key is None:
            return False
        card = self._mig_gpus.get(key)
        if card is None:
            if len(self._mig_gpus) >= MAX_GPUS:
                return False
            card = self._mig_gpus[key] = MigGpu(**self._card(key, labels))
        if is_of_card:
            self._mig_gpus[key] = replace(card, is_enabled=value == 1)
            return True
        return self._take_mig_instance(name, key, labels, value)

    def _take_mig_instance(self, name: str, key: Key, labels: Mapping[str, str], value: float) -> bool:
        index = whole(labels.get("mig_instance", ""), MAX_MIG_INDEX)
        if index is None:
            return False
        instance = self._migs.get((key, index))
        if instance is None:
            if len(self._migs) >= MAX_INSTANCES:
                return False
            instance = MigInstance(
                index=index,
                uuid=text(labels.get("mig_uuid", "")),
                profile=text(labels.get("mig_profile", "")),
                gpu_instance_id=whole(labels.get("gpu_instance_id", ""), MAX_MIG_INDEX),
                compute_instance_id=whole(labels.get("compute_instance_id", ""), MAX_MIG_INDEX),
            )
            self._migs[key, index] = instance
        if name == MIG_INFO:
            return True
        field, factor = MIG_INSTANCE[name]
        known: Any = checked(field, value * factor)
        self._migs[key, index] = replace(instance, **{field: known}) if known is not None else instance
        return known is not None

    # ---- both ----

    def _key(self, labels: Mapping[str, str]) -> Key | None:
        uuid = labels.get("gpu_uuid") or labels.get("uuid")
        return (self._host or text(labels.get("host", "")), text(uuid)) if uuid else None

    def _card(self, key: Key, labels: Mapping[str, str]) -> dict[str, Any]:
        return {
            "gpu_uuid": key[1],
            "gpu_index": whole(labels.get("gpu_index") or labels.get("index", ""), MAX_GPU_INDEX) or 0,
            "gpu_name": text(labels.get("gpu", "")),
            "instance": text(labels.get("instance", "")),
            "host": key[0],
        }


def texts_in(labels: Mapping[str, str], table: Mapping[str, str], *, besides: str) -> dict[str, Any]:
    return {field: text(labels.get(label, "")) for field, label in table.items() if field != besides}


def text(value: str) -> str:
    """Return a label's value, shortened, without characters that move a cursor or spoof a name."""
    return "".join(c for c in value[:MAX_TEXT_CHARS] if c.isprintable())


def whole(value: str, most: int) -> int | None:
    """Return a number written in plain digits, if it is not too large."""
    if not value.isascii() or not value.isdigit() or len(value) > 10:
        return None
    return number if (number := int(value)) <= most else None


def checked(field: str, value: float) -> float | int | bool | None:
    """Return a field's value if it is possible, else None."""
    if not math.isfinite(value) or value < 0:
        return None
    if field == "is_active":
        return value == 1
    if field in WHOLE:
        return int(value) if value <= WHOLE[field] else None
    if field.endswith("_ratio"):
        return value if value <= 1 else None
    return value
