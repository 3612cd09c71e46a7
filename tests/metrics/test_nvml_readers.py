# SPDX-License-Identifier: Apache-2.0
"""Reading vGPUs and MIG devices from a driver that says what it likes."""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.nvml import mig as nvml_mig
from hypervisor.nvml import vgpu_types as types
from hypervisor.nvml.mig import GpmGet, MigReader
from hypervisor.nvml.partitions import mig_gpu_of, vgpu_host_of
from hypervisor.nvml.processes import NvmlProcess, processes_on
from hypervisor.nvml.raw import INSUFFICIENT_SIZE, NOT_FOUND, NOT_SUPPORTED, SUCCESS, Failed, Raw
from hypervisor.nvml.vgpu import VgpuReader
from hypervisor.nvml.vgpu_types import Accounting, LogEntry, NewSample, Sample
from tests.metrics.fake_nvml import HANDLE, Library, listing, nothing, out, structure, text

UUID = "GPU-1"
GIB = 1 << 30


def sample(vgpu: int, stamp_us: int, sm: int) -> Sample:
    made = Sample(vgpu=vgpu, stamp_us=stamp_us)
    for field in ("sm", "memory", "encoder", "decoder"):
        getattr(made, field).whole = sm
    return made


def vgpu_library(**changed: Any) -> Library:
    functions: dict[str, Any] = {
        "nvmlDeviceGetHostVgpuMode": out(1),
        "nvmlDeviceGetActiveVgpus": listing([7, 8]),
        "nvmlDeviceGetVgpuSchedulerState": structure(
            policy=2, arr=1, words=(ctypes.c_uint * 2)(2_000_000, 0)
        ),
        "nvmlDeviceGetVgpuSchedulerCapabilities": structure(arr=1),
        "nvmlDeviceGetVgpuUtilization": listing([sample(7, 100, 40), sample(8, 100, 0)]),
        "nvmlVgpuInstanceGetType": out(700),
        "nvmlVgpuTypeGetName": lambda _, room, size: text(b"A40-8Q")(room, size._obj),
        "nvmlVgpuTypeGetFramebufferSize": out(8 * GIB),
        "nvmlVgpuInstanceGetUUID": text(b"u-u-i-d"),
        "nvmlVgpuInstanceGetVmID": lambda _, room, size, __: text(b"vm-1")(room, size),
        "nvmlVgpuInstanceGetFbUsage": out(6 * GIB),
        "nvmlVgpuInstanceGetAccountingMode": out(0),
    }
    return Library(**{**functions, **changed})


def reader(library: Library) -> tuple[VgpuReader, Counter[str]]:
    errors: Counter[str] = Counter()
    return VgpuReader(Raw(errors, library)), errors


def instances(row: dict[str, Any] | None) -> dict[int, dict[str, Any]]:
    assert row is not None
    return {instance["id"]: instance for instance in row["instances"]}


# ---- what is not there ----


def test_a_library_without_the_symbols_and_a_card_that_knows_nothing_of_vgpus_are_no_errors() -> None:
    unsupported = {name: nothing for name in vars(vgpu_library()) if name.startswith("nvml")}
    for library in (Library(), Library(**unsupported), Library(nvmlDeviceGetHostVgpuMode=13)):
        read, errors = reader(library)
        assert read.of(HANDLE, UUID) is None
        assert MigReader(Raw(errors, library)).of(HANDLE, UUID) is None
        assert processes_on(Raw(errors, library), HANDLE) is None, "not known, and not none"
        assert not errors


def test_a_card_that_is_no_vgpu_host_costs_one_call() -> None:
    library = vgpu_library(nvmlDeviceGetHostVgpuMode=NOT_SUPPORTED)
    read, _ = reader(library)
    for _ in range(3):
        read.of(HANDLE, UUID)
    assert library.calls == {"nvmlDeviceGetHostVgpuMode": 1}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetVgpuSchedulerState", "policy"),
        ("nvmlDeviceGetVgpuSchedulerCapabilities", "arr_supported"),
        ("nvmlDeviceGetVgpuSchedulerLog", "overruns"),
    ],
)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, 13, 26, 999])
def test_a_part_that_fails_is_not_known_and_hides_no_other(call: str, field: str, code: int) -> None:
    read, errors = reader(vgpu_library(**{call: code}))
    row = read.of(HANDLE, UUID)
    assert row is not None and row[field] is None
    assert instances(row)[7]["memory_used_bytes"] == 6 * GIB
    assert errors == ({"999": 1} if code == 999 else {})


def test_a_field_of_an_instance_that_fails_is_not_known_and_counted() -> None:
    read, errors = reader(vgpu_library(nvmlVgpuInstanceGetFbUsage=999, nvmlVgpuInstanceGetVmID=999))
    one = instances(read.of(HANDLE, UUID))[7]
    assert one["memory_used_bytes"] is None and one["vm_id"] == ""
    assert one["memory_bytes"] == 8 * GIB and one["activity"]["sm"] == 40
    assert errors == {"999": 4}


# ---- lists whose length the driver says ----


@pytest.mark.parametrize("claimed", [257, 0xFFFFFFFF])
def test_a_count_that_cannot_be_is_not_believed(claimed: int) -> None:
    def claim(_: Any, count: Any, room: Any) -> int:
        assert room is None, "nothing may be made of that size"
        count._obj.value = claimed
        return INSUFFICIENT_SIZE

    read, errors = reader(vgpu_library(nvmlDeviceGetActiveVgpus=claim))
    assert read.of(HANDLE, UUID) is None
    assert errors == {"count": 1}


def test_a_count_that_grows_when_the_list_is_written_is_bounded_by_the_room() -> None:
    def write(*arguments: Any) -> int:
        count, room = arguments[-2:]
        if room is None:
            count._obj.value = 2
            return INSUFFICIENT_SIZE
        count._obj.value = 200  # more than there was room for
        return SUCCESS

    raw = Raw(Counter(), Library(call=write))
    assert len(raw.list("call", ctypes.c_uint, 256, (HANDLE,)) or ()) == 6


def test_a_list_that_grows_between_two_calls_is_asked_for_again_and_not_for_ever() -> None:
    lengths = iter([1, 9, 9])

    def grow(_: Any, count: Any, room: Any) -> int:
        needed = next(lengths)
        fits = room is not None and count._obj.value >= needed
        count._obj.value = needed
        return SUCCESS if fits else INSUFFICIENT_SIZE

    assert len(Raw(Counter(), Library(call=grow)).list("call", ctypes.c_uint, 256, (HANDLE,)) or ()) == 9

    def run_away(_: Any, count: Any, room: Any) -> int:
        count._obj.value = min(256, count._obj.value + 50)
        return INSUFFICIENT_SIZE

    library = Library(call=run_away)
    with pytest.raises(Failed):
        Raw(Counter(), library).list("call", ctypes.c_uint, 256, (HANDLE,))
    assert library.calls["call"] == 3


def test_one_vgpu_named_twice_is_one() -> None:
    read, _ = reader(vgpu_library(nvmlDeviceGetActiveVgpus=listing([7, 7, 8])))
    assert len(read.of(HANDLE, UUID)["instances"]) == 2  # type: ignore[index]


# ---- what changes between polls ----


def test_the_last_good_answer_is_served_through_one_poll_that_fails_and_no_longer() -> None:
    library = vgpu_library()
    read, errors = reader(library)
    good = read.of(HANDLE, UUID)
    library.set("nvmlDeviceGetActiveVgpus", 999)
    assert read.of(HANDLE, UUID) == good
    assert read.of(HANDLE, UUID) is None
    assert errors == {"999": 2}
    library.set("nvmlDeviceGetActiveVgpus", listing([7, 8]))
    assert read.of(HANDLE, UUID) is not None
    assert read.failed(UUID) is not None, "and so when the card itself does not answer"
    assert read.failed(UUID) is None


def test_a_host_that_stops_being_one_is_gone_at_once() -> None:
    library = vgpu_library()
    read, _ = reader(library)
    assert read.of(HANDLE, UUID) is not None
    library.set("nvmlDeviceGetHostVgpuMode", NOT_SUPPORTED)
    assert read.of(HANDLE, UUID) is None


def test_no_new_samples_is_no_error_and_old_ones_hold_for_a_while() -> None:
    library = vgpu_library()
    read, errors = reader(library)
    assert instances(read.of(HANDLE, UUID))[7]["activity"]["sm"] == 40
    library.set("nvmlDeviceGetVgpuUtilization", NOT_FOUND)
    assert instances(read.of(HANDLE, UUID))[7]["activity"]["sm"] == 40
    # The other goes on for more than ten seconds, this one is silent.
    library.set("nvmlDeviceGetVgpuUtilization", listing([sample(8, 11_000_000, 70)]))
    seen = instances(read.of(HANDLE, UUID))
    assert seen[7]["activity"] is None and seen[7]["active"] is None
    assert seen[8]["activity"]["sm"] == 70
    assert not errors


def test_activity_is_the_mean_of_the_samples_since_the_last_poll() -> None:
    asked: list[int] = []
    rows = [sample(7, 100, 10), sample(7, 200, 30), sample(7, 300, 101)]

    def samples(handle: Any, since: Any, kind: Any, count: Any, room: Any) -> int:
        asked.append(since.value)
        kind._obj.value = 1
        return listing(rows)(count, room)

    read, _ = reader(vgpu_library(nvmlDeviceGetVgpuUtilization=samples))
    assert instances(read.of(HANDLE, UUID))[7]["activity"]["sm"] == 20  # 101 % cannot be
    rows[:] = [sample(7, 300, 99), sample(7, 400, 50)]
    assert instances(read.of(HANDLE, UUID))[7]["activity"]["sm"] == 50  # 300 was heard before
    assert asked == [0, 0, 300, 300]


def newer(rows: list[NewSample], claimed: int | None = None) -> Any:
    """Return the newer call for samples."""

    def call(_: Any, asked: Any) -> int:
        told = asked._obj
        assert told.version == types.NEW_SAMPLES_VERSION
        room = told.count if told.samples else 0
        told.kind, told.count = 1, len(rows) if claimed is None else claimed
        if room < len(rows):
            return INSUFFICIENT_SIZE
        for place, row in enumerate(rows):
            told.samples[place] = row
        return SUCCESS

    return call


def test_a_card_without_the_older_call_for_samples_is_asked_by_the_newer_one() -> None:
    row = NewSample(stamp_us=100, vgpu=7)
    row.sm.whole, row.memory.whole = 25, 5
    library = vgpu_library(
        nvmlDeviceGetVgpuUtilization=NOT_SUPPORTED, nvmlDeviceGetVgpuInstancesUtilizationInfo=newer([row])
    )
    read, errors = reader(library)
    seen = instances(read.of(HANDLE, UUID))
    assert seen[7]["activity"]["sm"] == 25 and seen[8]["activity"] is None and not errors
    library.set("nvmlDeviceGetVgpuInstancesUtilizationInfo", newer([row], claimed=0xFFFFFFFF))
    assert instances(read.of(HANDLE, UUID))[7]["activity"]["sm"] == 25
    library.set("nvmlDeviceGetVgpuInstancesUtilizationInfo", NOT_SUPPORTED)
    fresh, errors = reader(library)
    assert instances(fresh.of(HANDLE, UUID))[7]["activity"] is None and not errors


# ---- accounting, where there are no samples ----


def accounted(order: list[int], *, is_on: int = 1) -> Library:
    stats = {
        10: Accounting(gpu=99, memory=99, is_running=0),
        11: Accounting(gpu=20, memory=5, is_running=1),
        12: Accounting(gpu=30, memory=0xFFFFFFFF, is_running=1),
    }

    def of_pid(_: Any, pid: Any, room: Any) -> int:
        ctypes.memmove(ctypes.byref(room._obj), ctypes.byref(stats[pid.value]), ctypes.sizeof(Accounting))
        return SUCCESS

    return vgpu_library(
        nvmlDeviceGetVgpuUtilization=NOT_SUPPORTED,
        nvmlVgpuInstanceGetAccountingMode=out(is_on),
        nvmlVgpuInstanceGetAccountingPids=listing(order),
        nvmlVgpuInstanceGetAccountingStats=of_pid,
    )


@pytest.mark.parametrize("order", [[10, 11, 12], [12, 11, 10], [11, 12], [12, 12, 11]])
def test_processes_by_accounting_are_added_up_whatever_their_order(order: list[int]) -> None:
    """Ended ones are not counted, and "not available" is no number."""
    read, errors = reader(accounted(order))
    one = instances(read.of(HANDLE, UUID))[7]
    assert one["activity"] == {"sm": 50, "memory": 5}
    assert one["active"] is True and not errors


@pytest.mark.parametrize("order", [[], [10]])
def test_no_running_process_is_idle_and_not_unknown(order: list[int]) -> None:
    one = instances(reader(accounted(order))[0].of(HANDLE, UUID))[7]
    assert one["active"] is False and one["activity"] is None


def test_without_accounting_and_samples_nothing_is_said_of_activity() -> None:
    one = instances(reader(accounted([11], is_on=0))[0].of(HANDLE, UUID))[7]
    assert one["active"] is None and one["activity"] is None


def test_samples_come_before_accounting() -> None:
    library = accounted([11, 12])
    library.set("nvmlDeviceGetVgpuUtilization", listing([sample(7, 100, 7)]))
    one = instances(reader(library)[0].of(HANDLE, UUID))[7]
    assert one["activity"]["sm"] == 7 and one["active"] is True
    # Then one running process is enough to know that something runs; of vGPU 8 there is no sample.
    assert library.calls["nvmlVgpuInstanceGetAccountingStats"] == 1 + 2


# ---- the scheduler ----


@pytest.mark.parametrize(
    ("policy", "arr", "words", "slice_ns"),
    [
        (1, 0, (2_000_000, 0), None),  # best effort: parameters mean nothing
        (2, 1, (2_000_000, 0), 2_000_000),
        (2, 2, (33, 4_000_000), 4_000_000),  # with ARR the first is an average factor
        (3, 0, (33, 4_000_000), 4_000_000),
        (3, 0, (4_000_000, 0), 4_000_000),
        (3, 1, (0, 0), None),
    ],
)
def test_the_time_slice_is_where_the_policy_has_it(policy: int, arr: int, words: Any, slice_ns: Any) -> None:
    state = structure(policy=policy, arr=arr, words=(ctypes.c_uint * 2)(*words))
    row = reader(vgpu_library(nvmlDeviceGetVgpuSchedulerState=state))[0].of(HANDLE, UUID)
    assert row is not None and row["timeslice_ns"] == slice_ns


def test_slices_that_ran_too_long_are_counted_once() -> None:
    entries = [(10, 1000, 900), (20, 1100, 900), (30, 900, 900), (40, 5000, 0)]

    def log(_: Any, room: Any) -> int:
        for place, (stamp, run, target) in enumerate(entries):
            room._obj.entries[place] = LogEntry(stamp=stamp, run_ns=run, target_ns=target)
        room._obj.count = 0xFFFFFFFF  # as many as fit, then
        return SUCCESS

    library = vgpu_library(nvmlDeviceGetVgpuSchedulerLog=log)
    read, _ = reader(library)
    assert read.of(HANDLE, UUID)["overruns"] == 2  # type: ignore[index]
    assert read.of(HANDLE, UUID)["overruns"] == 2  # type: ignore[index]
    entries[0] = (50, 1000, 900)
    assert read.of(HANDLE, UUID)["overruns"] == 3  # type: ignore[index]


def test_a_driver_that_only_knows_the_newer_calls_is_asked_by_them() -> None:
    def log(_: Any, room: Any) -> int:
        assert room._obj.engine == 1
        room._obj.entries[0].stamp, room._obj.entries[0].run_ns, room._obj.entries[0].target_ns = 7, 9, 8
        room._obj.entries[1].stamp, room._obj.entries[1].weight = 8, 100
        room._obj.count = 2
        return SUCCESS

    library = vgpu_library(
        nvmlDeviceGetVgpuSchedulerState=26,
        nvmlDeviceGetVgpuSchedulerState_v2=structure(policy=2, average=33, slice_ns=2_000_000),
        nvmlDeviceGetVgpuSchedulerLog=13,
        nvmlDeviceGetVgpuSchedulerLog_v2=log,
    )
    read, errors = reader(library)
    row = read.of(HANDLE, UUID)
    assert row is not None and not errors
    assert (row["policy"], row["arr"], row["timeslice_ns"], row["overruns"]) == (2, None, 2_000_000, 1)


@pytest.mark.parametrize("name", [b"\xff\xfe\x80", b"", b"x" * 255])
def test_names_are_text_whatever_bytes_the_driver_gives(name: bytes) -> None:
    library = vgpu_library(nvmlVgpuInstanceGetVmID=lambda _, room, size, __: text(name)(room, size))
    row = reader(library)[0].of(HANDLE, UUID)
    json.dumps(row)
    host = vgpu_host_of(row, uuid=UUID, index=0, name="A40")
    assert host is not None and len(host.instances[0].vm_id) <= 96


# ---- MIG ----


class Gpm:
    """Samples that are freed once each."""

    def __init__(self) -> None:
        self.living: set[int] = set()
        self.made = 0

    def functions(self) -> dict[str, Any]:
        return {
            "nvmlGpmQueryDeviceSupport": structure(is_supported=1),
            "nvmlGpmSampleAlloc": self.alloc,
            "nvmlGpmSampleFree": self.free,
            "nvmlGpmMigSampleGet": SUCCESS,
            "nvmlGpmMetricsGet": self.compare,
        }

    def alloc(self, room: Any) -> int:
        self.made += 1
        room._obj.value = self.made
        self.living.add(self.made)
        return SUCCESS

    def free(self, sample: Any) -> int:
        self.living.remove(sample.value)
        return SUCCESS

    def compare(self, get: Any) -> int:
        asked: GpmGet = get._obj
        assert {asked.first, asked.second} <= self.living and asked.first < asked.second
        for metric in asked.metrics[: asked.count]:
            metric.value, metric.result = 12.5 * metric.id, SUCCESS
        return SUCCESS


def mig_library(gpm: Gpm, **changed: Any) -> Library:
    holes = {3}

    def device(_: Any, index: Any, room: Any) -> int:
        if index.value in holes or index.value > 4:
            return NOT_FOUND
        room._obj.value = 100 + index.value
        return SUCCESS

    functions: dict[str, Any] = {
        "nvmlDeviceGetMigMode": lambda _, now, pending: out(1)(now) or out(1)(pending),
        "nvmlDeviceGetMaxMigDeviceCount": out(7),
        "nvmlDeviceGetMigDeviceHandleByIndex": device,
        "nvmlDeviceGetUUID": lambda d, room, size: text(b"MIG-%d" % d.value)(room, size),
        "nvmlDeviceGetName": text(b"NVIDIA H100 MIG 1g.10gb"),
        "nvmlDeviceGetMemoryInfo": structure(total=10 * GIB, free=9 * GIB, used=GIB),
        "nvmlDeviceGetGpuInstanceId": lambda d, room: out(d.value - 90)(room),
        "nvmlDeviceGetComputeInstanceId": out(0),
        "nvmlDeviceGetComputeRunningProcesses_v3": listing([]),
        **gpm.functions(),
    }
    return Library(**{**functions, **changed})


def test_numbers_have_holes_and_activity_comes_with_the_second_poll() -> None:
    gpm, errors = Gpm(), Counter[str]()
    read = MigReader(Raw(errors, mig_library(gpm)))
    first = mig_gpu_of(read.of(HANDLE, UUID), uuid=UUID, index=0, name="H100")
    second = mig_gpu_of(read.of(HANDLE, UUID), uuid=UUID, index=0, name="H100")
    assert first is not None and second is not None
    assert [i.index for i in first.instances] == [0, 1, 2, 4]
    assert {i.utilization_ratio for i in first.instances} == {None}
    assert {i.utilization_ratio for i in second.instances} == {0.125}
    assert {i.memory_utilization_ratio for i in second.instances} == {None}, "125 % cannot be"
    assert len(gpm.living) == 4
    read.close()
    assert not gpm.living and not errors


def test_samples_of_what_is_gone_are_freed() -> None:
    gpm = Gpm()
    library = mig_library(gpm)
    read = MigReader(Raw(Counter(), library))
    read.of(HANDLE, UUID)
    library.set("nvmlDeviceGetMigMode", lambda _, now, pending: out(0)(now) or out(0)(pending))
    assert read.of(HANDLE, UUID) == {"enabled": False, "instances": [], "error": ""}
    assert not gpm.living


@pytest.mark.parametrize("call", ["nvmlGpmMigSampleGet", "nvmlGpmMetricsGet", "nvmlGpmSampleAlloc"])
def test_activity_that_cannot_be_had_hides_nothing_else_and_leaks_nothing(call: str) -> None:
    gpm = Gpm()
    library = mig_library(gpm)
    read = MigReader(Raw(Counter(), library))
    read.of(HANDLE, UUID)
    library.set(call, 999)
    for _ in range(3):
        row = read.of(HANDLE, UUID)
        assert row is not None and len(row["instances"]) == 4 and "busy" not in row["instances"][0]
    read.close()
    assert not gpm.living


def test_a_device_whose_handle_fails_is_served_once_more_and_then_gone() -> None:
    gpm, errors = Gpm(), Counter[str]()
    library = mig_library(gpm)
    read = MigReader(Raw(errors, library))
    good = read.of(HANDLE, UUID)
    library.set("nvmlDeviceGetMigDeviceHandleByIndex", 999)
    kept = read.of(HANDLE, UUID)
    assert good is not None and kept is not None
    assert [i["uuid"] for i in kept["instances"]] == [i["uuid"] for i in good["instances"]]
    assert all(i["error"] for i in kept["instances"]) and kept["error"]
    gone = read.of(HANDLE, UUID)
    assert gone is not None and gone["instances"] == [] and gone["error"]
    assert errors["999"] == 14


def test_a_card_that_fails_to_say_its_mode_keeps_its_devices_for_one_poll() -> None:
    gpm, errors = Gpm(), Counter[str]()
    library = mig_library(gpm)
    read = MigReader(Raw(errors, library))
    read.of(HANDLE, UUID)
    good = read.of(HANDLE, UUID)
    library.set("nvmlDeviceGetMigMode", 999)
    assert read.of(HANDLE, UUID) == good
    assert read.of(HANDLE, UUID) is None
    library.set("nvmlDeviceGetMigMode", NOT_SUPPORTED)
    assert read.of(HANDLE, UUID) is None
    assert errors == {"999": 2}


@pytest.mark.parametrize("claimed", [65, 0xFFFFFFFF])
def test_more_mig_devices_than_can_be_are_not_asked_for(claimed: int) -> None:
    library = mig_library(Gpm(), nvmlDeviceGetMaxMigDeviceCount=out(claimed))
    errors: Counter[str] = Counter()
    MigReader(Raw(errors, library)).of(HANDLE, UUID)
    assert library.calls["nvmlDeviceGetMigDeviceHandleByIndex"] == 64
    assert errors["count"] == 1


@pytest.mark.parametrize(
    ("slices", "compute", "memory_mb", "profile"),
    [(2, 2, 20_480, "2g.20gb"), (3, 1, 40_000, "1c.3g.39gb"), (7, 7, 81_000, "7g.79gb")],
)
def test_a_profile_that_the_name_does_not_tell_is_made_of_its_parts(
    slices: int, compute: int, memory_mb: int, profile: str
) -> None:
    parts = structure(gpu_slices=slices, compute_slices=compute, memory_mb=memory_mb)
    library = mig_library(Gpm(), nvmlDeviceGetName=text(b"NVIDIA H100"), nvmlDeviceGetAttributes_v2=parts)
    row = MigReader(Raw(Counter(), library)).of(HANDLE, UUID)
    assert row is not None and row["instances"][0]["profile"] == profile


def test_processes_are_bounded_and_unknown_memory_is_not_a_number() -> None:
    rows = [NvmlProcess(pid=1, bytes=5), NvmlProcess(pid=2, bytes=(1 << 64) - 1)]
    call = {"nvmlDeviceGetComputeRunningProcesses_v2": listing(rows)}
    assert processes_on(Raw(Counter(), Library(**call)), HANDLE) == [[1, 5], [2, None]]
    errors: Counter[str] = Counter()
    call = {"nvmlDeviceGetComputeRunningProcesses_v3": listing(range(5000))}
    assert processes_on(Raw(errors, Library(**call)), HANDLE) is None
    assert errors == {"count": 1}


# ---- structures ----


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (types.Sample, "c_nvmlVgpuInstanceUtilizationSample_t"),
        (types.NewSample, "c_nvmlVgpuInstanceUtilizationInfo_v1_t"),
        (types.NewSamples, "c_nvmlVgpuInstancesUtilizationInfo_v1_t"),
        (types.State, "c_nvmlVgpuSchedulerGetState_t"),
        (types.NewState, "c_nvmlVgpuSchedulerStateInfo_v2_t"),
        (types.Capabilities, "c_nvmlVgpuSchedulerCapabilities_t"),
        (types.LogEntry, "c_nvmlVgpuSchedulerLogEntry_t"),
        (types.Log, "c_nvmlVgpuSchedulerLog_t"),
        (types.NewLogEntry, "c_nvmlVgpuSchedulerLogEntry_v2_t"),
        (types.NewLog, "c_nvmlVgpuSchedulerLogInfo_v2_t"),
        (types.License, "c_nvmlVgpuLicenseInfo_t"),
        (types.Accounting, "c_nvmlAccountingStats_t"),
        (nvml_mig.Memory, "c_nvmlMemory_t"),
        (nvml_mig.Attributes, "c_nvmlDeviceAttributes"),
        (nvml_mig.GpmSupport, "c_nvmlGpmSupport_t"),
        (nvml_mig.GpmMetric, "c_nvmlGpmMetric_t"),
        (NvmlProcess, "c_nvmlProcessInfo_v2_t"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_structures_are_as_pynvml_has_them(ours: Any, theirs: str) -> None:
    """Another description of the same header; offsets are compared where it has a field for each of ours."""
    other = getattr(pynvml, theirs, None)
    if other is None:
        pytest.skip(f"this pynvml has no {theirs}")
    assert ctypes.sizeof(ours) == ctypes.sizeof(other)
    if len(ours._fields_) == len(other._fields_):
        mine = [getattr(ours, name).offset for name, *_ in ours._fields_]
        assert mine == [getattr(other, name).offset for name, *_ in other._fields_]


# ---- rows that say anything ----

words = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers(), max_size=2)
)
rows = st.dictionaries(
    st.sampled_from(
        [
            *(
                "host_mode",
                "policy",
                "arr",
                "arr_supported",
                "timeslice_ns",
                "overruns",
                "enabled",
                "instances",
            ),
            *("id", "uuid", "type", "vm_id", "memory_bytes", "memory_used_bytes", "activity", "active"),
            *("license", "driver", "index", "profile", "gpu_instance", "compute_instance", "busy", "sm"),
        ]
    ),
    words,
)


@settings(max_examples=200, deadline=None)
@given(words | rows, st.lists(words | rows, max_size=5), words | rows)
def test_no_row_whatever_it_says_breaks_the_daemon(card: Any, parts: list[Any], activity: Any) -> None:
    if isinstance(card, dict):
        card["instances"] = [p | {"activity": activity} if isinstance(p, dict) else p for p in parts]
    for made in (
        vgpu_host_of(card, uuid=UUID, index=0, name=""),
        mig_gpu_of(card, uuid=UUID, index=0, name=""),
    ):
        for instance in made.instances if made is not None else ():
            for name in ("utilization_ratio", "memory_utilization_ratio"):
                value = getattr(instance, name)
                assert value is None or 0 <= value <= 1
            for name in ("memory_used_bytes", "memory_total_bytes"):
                value = getattr(instance, name)
                assert value is None or 0 <= value <= 1 << 48
