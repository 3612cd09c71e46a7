# SPDX-License-Identifier: Apache-2.0
"""Reads a vGPU host for the probe: the card's scheduler and its vGPUs.

Rows are raw: `partitions` checks the values. A card that is no vGPU host costs one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_uint, c_ulonglong
from typing import Any

from hypervisor.nvml.raw import INSUFFICIENT_SIZE, SUCCESS, TEXT_BYTES, Failed, Raw, decoded
from hypervisor.nvml.vgpu_types import (
    MAX_LOG_ENTRIES,
    NEW_SAMPLES_VERSION,
    Accounting,
    Capabilities,
    License,
    Log,
    NewLog,
    NewSample,
    NewSamples,
    NewState,
    Sample,
    State,
)

MAX_VGPUS = 256
MAX_SAMPLES = MAX_VGPUS * 64
MAX_PIDS = 1024
BEST_EFFORT, ARR_ON = 1, 2
GRAPHICS = 1
"""NVML's number of the engine that runs kernels."""
NOT_AVAILABLE = 0xFFFFFFFF
MAX_SILENCE_US = 10_000_000
"""Age after which a vGPU's last activity sample is no longer used."""
UNKNOWN_DRIVERS = frozenset({"not available", "n/a", "unknown", "none"})
DOUBLE, UNSIGNED, LONG_TYPES = 0, 1, (2, 3)

Activity = dict[str, float]
FIELDS = ("sm", "memory", "encoder", "decoder")


class VgpuPollState:
    """State of a card between two polls."""

    def __init__(self) -> None:
        self.stamp_us = 0
        self.seen: dict[int, tuple[int, Activity]] = {}
        """Time and activity of each vGPU's newest sample."""
        self.log_stamp = 0
        self.overruns: int | None = None
        self.kept: dict[str, Any] | None = None
        """The last good row; returned once more if a poll fails."""


class VgpuReader:
    """Reads vGPU hosts; keeps the state between polls by the card's UUID."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self._cards: dict[str, VgpuPollState] = {}
        self._types: dict[int, tuple[str, int | None]] = {}

    def of(self, handle: Any, uuid: str) -> dict[str, Any] | None:
        """Return the row of a card; None if it is no vGPU host, or if two polls in a row failed."""
        card = self._cards.setdefault(uuid, VgpuPollState())
        try:
            row = self._read(handle, card)
        except Failed:
            row, card.kept = card.kept, None
            return row
        card.kept = row
        if row is None:
            self._cards.pop(uuid, None)
        return row

    def failed(self, uuid: str) -> dict[str, Any] | None:
        """Handle a card that did not answer: return its last row once, then None."""
        card = self._cards.get(uuid)
        row = card.kept if card else None
        if card:
            card.kept = None
        return row

    def _read(self, handle: Any, card: VgpuPollState) -> dict[str, Any] | None:
        mode = c_int()
        if not self._raw.has("nvmlDeviceGetHostVgpuMode", handle, ctypes.byref(mode)):
            return None
        ids = self._raw.list("nvmlDeviceGetActiveVgpus", c_uint, MAX_VGPUS, (handle,))
        vgpus = list(dict.fromkeys(int(number) for number in ids or ()))
        activity = self._activity(handle, card, vgpus)
        return {
            "host_mode": mode.value,
            **self._scheduler(handle),
            "overruns": self._overruns(handle, card),
            "instances": [self._instance(number, activity.get(number)) for number in vgpus],
        }

    # ---- the scheduler ----

    def _scheduler(self, handle: Any) -> dict[str, Any]:
        state = self._raw.get("nvmlDeviceGetVgpuSchedulerState", State(), handle)
        known = self._raw.get("nvmlDeviceGetVgpuSchedulerCapabilities", Capabilities(), handle)
        row: dict[str, Any] = {"arr_supported": None if known is None else bool(known.arr)}
        if state is None:
            return row | self._new_scheduler(handle)
        is_adaptive = state.arr == ARR_ON or (state.arr == 0 and state.words[1] != 0)
        slice_ns = int(state.words[1] if is_adaptive else state.words[0])
        # Under best effort the driver does not update the parameters.
        has_slices = state.policy != BEST_EFFORT and slice_ns > 0
        return row | {
            "policy": int(state.policy),
            "arr": int(state.arr),
            "timeslice_ns": slice_ns if has_slices else None,
        }

    def _new_scheduler(self, handle: Any) -> dict[str, Any]:
        state = self._raw.get("nvmlDeviceGetVgpuSchedulerState_v2", NewState(engine=GRAPHICS), handle)
        if state is None:
            return {"policy": None, "arr": None, "timeslice_ns": None}
        has_slices = state.policy != BEST_EFFORT and state.slice_ns > 0
        slice_ns = int(state.slice_ns) if has_slices else None
        return {"policy": int(state.policy), "arr": None, "timeslice_ns": slice_ns}

    def _overruns(self, handle: Any, card: VgpuPollState) -> int | None:
        """Return the number of time slices in the log that ran too long, since the log was first read."""
        log = self._raw.get("nvmlDeviceGetVgpuSchedulerLog", Log(), handle)
        if log is None:
            log = self._raw.get("nvmlDeviceGetVgpuSchedulerLog_v2", NewLog(engine=GRAPHICS), handle)
        if log is None:
            return card.overruns
        entries = list(log.entries[: min(log.count, MAX_LOG_ENTRIES)])
        fresh = [entry for entry in entries if entry.stamp > card.log_stamp]
        card.log_stamp = max((entry.stamp for entry in fresh), default=card.log_stamp)
        over = sum(0 < entry.target_ns < entry.run_ns for entry in fresh)
        card.overruns = over + (card.overruns or 0)
        return card.overruns

    # ---- activity ----

    def _activity(self, handle: Any, card: VgpuPollState, vgpus: list[int]) -> dict[int, Activity]:
        """Return the recent activity of each vGPU from the driver's samples, in percent."""
        samples, kind = self._samples(handle, card.stamp_us)
        fresh: dict[int, list[Sample | NewSample]] = {}
        for sample in samples:
            if sample.stamp_us > card.stamp_us:
                fresh.setdefault(int(sample.vgpu), []).append(sample)
        newest = max((s.stamp_us for s in samples), default=card.stamp_us)
        for number, of_vgpu in fresh.items():
            card.seen[number] = (max(s.stamp_us for s in of_vgpu), mean(of_vgpu, kind))
        card.stamp_us = max(card.stamp_us, newest)
        card.seen = {
            number: (stamp, activity)
            for number, (stamp, activity) in card.seen.items()
            if number in vgpus and card.stamp_us - stamp <= MAX_SILENCE_US
        }
        return {number: activity for number, (_, activity) in card.seen.items()}

    def _samples(self, handle: Any, since_us: int) -> tuple[Sequence[Sample | NewSample], int]:
        """Return the driver's samples since `since_us`, and NVML's type of their values."""
        kind = c_int(UNSIGNED)
        before = (handle, c_ulonglong(since_us), ctypes.byref(kind))
        try:
            samples = self._raw.list("nvmlDeviceGetVgpuUtilization", Sample, MAX_SAMPLES, before)
        except Failed:
            return (), UNSIGNED
        return (samples, kind.value) if samples is not None else self._new_samples(handle, since_us)

    def _new_samples(self, handle: Any, since_us: int) -> tuple[Sequence[NewSample], int]:
        """Do the same with the newer call, for cards that lack the older one."""
        asked = NewSamples(version=NEW_SAMPLES_VERSION, since_us=since_us)
        call = "nvmlDeviceGetVgpuInstancesUtilizationInfo"
        if self._raw.call(call, handle, ctypes.byref(asked)) not in (SUCCESS, INSUFFICIENT_SIZE):
            return (), UNSIGNED
        room = min(asked.count + 4, MAX_SAMPLES)
        asked.samples = (NewSample * room)()
        asked.count = room
        if self._raw.call(call, handle, ctypes.byref(asked)) != SUCCESS:
            return (), UNSIGNED
        return asked.samples[: min(asked.count, room)], int(asked.kind)

    def _instance(self, number: int, activity: Activity | None) -> dict[str, Any]:
        raw, vgpu = self._raw, c_uint(number)
        type_name, total = self._type(raw.number("nvmlVgpuInstanceGetType", vgpu))
        accounting = self._accounting(vgpu, is_activity_known=activity is not None)
        if activity is None and accounting is not None:
            activity = accounting[1]
        is_active: bool | None = None
        if accounting is not None:
            is_active = accounting[0]
        elif activity is not None:
            is_active = any(activity.values())
        license_info = raw.get("nvmlVgpuInstanceGetLicenseInfo_v2", License(), vgpu)
        driver = raw.text("nvmlVgpuInstanceGetVmDriverVersion", vgpu)
        return {
            "id": number,
            "uuid": raw.text("nvmlVgpuInstanceGetUUID", vgpu),
            "vm_id": self._vm_id(vgpu),
            "type": type_name,
            "memory_bytes": total,
            "memory_used_bytes": raw.long("nvmlVgpuInstanceGetFbUsage", vgpu),
            "activity": activity,
            "active": is_active,
            "license": None if license_info is None else int(license_info.state),
            "driver": "" if driver.lower() in UNKNOWN_DRIVERS else driver,
        }

    def _vm_id(self, vgpu: c_uint) -> str:
        room, kind = ctypes.create_string_buffer(TEXT_BYTES), c_int()
        size = c_uint(TEXT_BYTES)
        out = self._raw.get("nvmlVgpuInstanceGetVmID", kind, vgpu, room, size)
        return "" if out is None else decoded(room)

    def _type(self, number: int | None) -> tuple[str, int | None]:
        """Return a type's name and memory; they never change."""
        if number is None:
            return "", None
        if number not in self._types and len(self._types) < MAX_VGPUS:
            room = ctypes.create_string_buffer(TEXT_BYTES)
            size = c_uint(TEXT_BYTES)
            kind = c_uint(number)
            name = self._raw.get("nvmlVgpuTypeGetName", size, kind, room)
            total = self._raw.long("nvmlVgpuTypeGetFramebufferSize", kind)
            if name is None or total is None:
                return decoded(room), total
            self._types[number] = decoded(room), total
        return self._types.get(number, ("", None))

    def _accounting(self, vgpu: c_uint, *, is_activity_known: bool) -> tuple[bool, Activity | None] | None:
        """Return if any process runs and, unless the activity is known, the sum of the running processes'
        use.

        None if not known. These are averages over a process's whole life, so samples are preferred. NVML also
        lists ended processes, in no particular order.
        """
        if not self._raw.number("nvmlVgpuInstanceGetAccountingMode", vgpu):
            return None
        try:
            pids = self._raw.list("nvmlVgpuInstanceGetAccountingPids", c_uint, MAX_PIDS, (vgpu,))
        except Failed:
            return None
        if pids is None:
            return None
        running = []
        for pid in dict.fromkeys(int(pid) for pid in pids):
            stats = self._raw.get("nvmlVgpuInstanceGetAccountingStats", Accounting(), vgpu, c_uint(pid))
            if stats is not None and stats.is_running:
                running.append(stats)
                if is_activity_known:
                    return True, None
        activity = {"sm": added([s.gpu for s in running]), "memory": added([s.memory for s in running])}
        known = {name: percent for name, percent in activity.items() if percent is not None}
        return bool(running), known or None


def mean(samples: Sequence[Sample | NewSample], kind: int) -> Activity:
    """Return the mean of a vGPU's samples, by field; `kind` is NVML's type of their values."""
    name = "real" if kind == DOUBLE else "long" if kind in LONG_TYPES else "whole"
    result = {}
    for field in FIELDS:
        values = [value for s in samples if 0 <= (value := getattr(getattr(s, field), name)) <= 100]
        if values:
            result[field] = sum(values) / len(values)
    return result


def added(percents: list[int]) -> float | None:
    """Return the sum of percentages, at most the whole card; None if there are none."""
    known = [percent for percent in percents if percent != NOT_AVAILABLE]
    return float(min(100, sum(known))) if known else None
