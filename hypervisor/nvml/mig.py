# SPDX-License-Identifier: Apache-2.0
"""Reads a card in MIG mode for the probe: its MIG devices, their memory and processes, and from Hopper on
their activity.

Rows are raw. NVML numbers MIG devices within their card, with gaps, and the layout may change at any time.
Utilisation rates are not supported for MIG devices; GPM compares two samples of a GPU instance instead.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

from hypervisor.nvml.processes import processes_on
from hypervisor.nvml.raw import SUCCESS, Failed, Raw

MAX_DEVICES = 64
GPM_VERSION = 1
GRAPHICS_UTIL, DRAM_BW_UTIL = 1, 10
METRICS = {"busy": GRAPHICS_UTIL, "memory_busy": DRAM_BW_UTIL}


class Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Attributes(ctypes.Structure):
    _fields_ = (
        ("multiprocessors", c_uint),
        ("engines", c_uint * 5),
        ("gpu_slices", c_uint),
        ("compute_slices", c_uint),
        ("memory_mb", c_ulonglong),
    )


class GpmSupport(ctypes.Structure):
    _fields_ = (("version", c_uint), ("is_supported", c_uint))


class GpmMetric(ctypes.Structure):
    _fields_ = (
        ("id", c_uint),
        ("result", c_int),
        ("value", c_double),
        ("names", c_char_p * 3),
    )


class GpmGet(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("count", c_uint),
        ("first", c_void_p),
        ("second", c_void_p),
        ("metrics", GpmMetric * 512),
    )


class Gpm:
    """Samples of GPU instances, kept from one poll to the next."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self._samples: dict[tuple[str, int], c_void_p] = {}

    def is_supported(self, handle: Any) -> bool:
        support = GpmSupport(version=GPM_VERSION)
        return bool(
            self._raw.call("nvmlGpmQueryDeviceSupport", handle, ctypes.byref(support)) == SUCCESS
            and support.is_supported
        )

    def of(self, handle: Any, card: str, gpu_instance: int) -> dict[str, float]:
        """Return the activity of a GPU instance since the last poll, in percent; {} if it is not known."""
        fresh = c_void_p()
        if self._raw.call("nvmlGpmSampleAlloc", ctypes.byref(fresh)) != SUCCESS:
            return {}
        code = self._raw.call("nvmlGpmMigSampleGet", handle, c_uint(gpu_instance), fresh)
        before = self._samples.pop((card, gpu_instance), None)
        if code != SUCCESS:
            self._free(fresh)
            self._free(before)
            return {}
        self._samples[card, gpu_instance] = fresh
        if before is None:
            return {}
        try:
            return self._compare(before, fresh)
        finally:
            self._free(before)

    def _compare(self, before: c_void_p, fresh: c_void_p) -> dict[str, float]:
        get = GpmGet(version=GPM_VERSION, count=len(METRICS), first=before, second=fresh)
        for place, number in enumerate(METRICS.values()):
            get.metrics[place].id = number
        if self._raw.call("nvmlGpmMetricsGet", ctypes.byref(get)) != SUCCESS:
            return {}
        found = zip(METRICS, get.metrics, strict=False)
        return {name: float(metric.value) for name, metric in found if metric.result == SUCCESS}

    def _free(self, sample: c_void_p | None) -> None:
        if sample is not None:
            self._raw.call("nvmlGpmSampleFree", sample)

    def keep(self, card: str, gpu_instances: set[int]) -> None:
        """Forget a card's other GPU instances."""
        for key in [k for k in self._samples if k[0] == card and k[1] not in gpu_instances]:
            self._free(self._samples.pop(key))

    def close(self) -> None:
        """Free all samples, before NVML is shut down."""
        for sample in self._samples.values():
            self._free(sample)
        self._samples.clear()


class MigReader:
    """Reads cards that support MIG."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self._gpm = Gpm(raw)
        self._trouble = ""
        self._kept: dict[str, dict[str, Any]] = {}
        """Last good row of each card; returned once more if the card fails."""
        self._known: dict[tuple[str, int], dict[str, Any]] = {}
        """Last good row of each MIG device; returned once more if NVML returns no handle for it."""

    def close(self) -> None:
        """Free everything, before NVML is shut down."""
        self._gpm.close()

    def of(self, handle: Any, uuid: str) -> dict[str, Any] | None:
        """Return the row of a card; None if it does not support MIG, or if two polls in a row failed."""
        now, pending = c_uint(), c_uint()
        try:
            if not self._raw.has("nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(pending)):
                return None
        except Failed:
            return self.failed(uuid)
        row = self._kept[uuid] = self._card(handle, uuid, is_enabled=now.value == 1)
        return row

    def failed(self, uuid: str) -> dict[str, Any] | None:
        """Handle a card that did not answer: return its last row once, then None."""
        return self._kept.pop(uuid, None)

    def _card(self, handle: Any, uuid: str, *, is_enabled: bool) -> dict[str, Any]:
        self._trouble = ""
        rows = self._devices(handle, uuid) if is_enabled else []
        instances = {int(row["gpu_instance"]) for row in rows if row["gpu_instance"] is not None}
        self._gpm.keep(uuid, instances)
        if rows and self._gpm.is_supported(handle):
            busy = {instance: self._gpm.of(handle, uuid, instance) for instance in instances}
            rows = [row | busy.get(row["gpu_instance"], {}) for row in rows]
        return {"enabled": is_enabled, "instances": rows, "error": self._trouble}

    def _devices(self, handle: Any, uuid: str) -> list[dict[str, Any]]:
        count = self._raw.number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        if count > MAX_DEVICES:
            self._raw.errors["count"] += 1
        rows = []
        for index in range(min(count, MAX_DEVICES)):
            device = c_void_p()
            key = uuid, index
            try:
                there = self._raw.has(
                    "nvmlDeviceGetMigDeviceHandleByIndex", handle, c_uint(index), ctypes.byref(device)
                )
                row = self._device(index, device) if there else None
            except Failed as error:
                self._trouble = self._trouble or str(error)
                row = self._known.get(key)
                row = row and row | {"error": str(error)}
                self._known.pop(key, None)
            else:
                self._known.pop(key, None)
                if row is not None:
                    self._known[key] = row
            if row is not None:
                rows.append(row)
        return rows

    def _device(self, index: int, device: c_void_p) -> dict[str, Any]:
        """Return a MIG device's row; a field that fails is None. Raises Failed if its UUID is not known."""
        raw = self._raw
        uuid = raw.text("nvmlDeviceGetUUID", device)
        if not uuid:
            raise Failed("nvmlDeviceGetUUID: a MIG device without a name")
        name = raw.text("nvmlDeviceGetName", device)
        memory = raw.get("nvmlDeviceGetMemoryInfo", Memory(), device)
        return {
            "index": index,
            "uuid": uuid,
            "name": name,
            "profile": self._profile(name, device),
            "gpu_instance": raw.number("nvmlDeviceGetGpuInstanceId", device),
            "compute_instance": raw.number("nvmlDeviceGetComputeInstanceId", device),
            "memory_bytes": None if memory is None else int(memory.total),
            "memory_used_bytes": None if memory is None else int(memory.used),
            "memory_free_bytes": None if memory is None else int(memory.free),
            "pids": processes_on(raw, device),
            "error": "",
        }

    def _profile(self, name: str, device: c_void_p) -> str:
        """Return "2g.20gb": from the device's name, else from its attributes."""
        _, is_named, profile = name.rpartition(" MIG ")
        if is_named:
            return profile.strip()
        parts = self._raw.get("nvmlDeviceGetAttributes_v2", Attributes(), device)
        if parts is None:
            return ""
        whole = f"{parts.gpu_slices}g.{round(parts.memory_mb / 1024)}gb"
        is_part = 0 < parts.compute_slices < parts.gpu_slices
        return f"{parts.compute_slices}c.{whole}" if is_part else whole
