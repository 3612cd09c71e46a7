# SPDX-License-Identifier: Apache-2.0
"""A program for test_nvml_view.py: obeys lines of JSON, [command, arguments…], and answers each with one.

It uses the driver and NVML as any client does, through ctypes and pynvml, and knows nothing of quotas.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import pynvml

CANARY = 0xA5
SPIN = (
    b".version 7.0\n.target sm_70\n.address_size 64\n"
    b".visible .entry gpulimit_spin(.param .u64 ns, .param .u64 out)\n{ ret; }\n"
)
cuda: Any = None
nvml: Any = ctypes.CDLL("libnvidia-ml.so.1")


def driver() -> Any:
    """Return the driver with a context on device 0 made, the first time."""
    global cuda
    if cuda is None:
        cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)):
            assert result == 0, result
        assert cuda.cuCtxPushCurrent_v2(context) == 0
    return cuda


def alloc(size: int) -> int:
    """Allocate device memory; return the driver's result."""
    pointer = ctypes.c_uint64()
    return int(driver().cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))


def cuda_info() -> list[int]:
    """Return free and total bytes as CUDA tells them, and the result."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    result = driver().cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return [free.value, total.value, result]


def handle(index: int | str) -> Any:
    """Return a card by its number, or a card or MIG device by its UUID."""
    if isinstance(index, str):
        return pynvml.nvmlDeviceGetHandleByUUID(index)
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def memory(index: int | str = 0) -> dict[str, int]:
    info = pynvml.nvmlDeviceGetMemoryInfo(handle(index))
    return {"total": info.total, "free": info.free, "used": info.used}


def memory_v2(index: int | str = 0, version: int | None = None) -> dict[str, int]:
    """Return the second version's answer, given in a structure with canaries behind it."""
    size = ctypes.sizeof(pynvml.c_nvmlMemory_v2_t)
    room = (ctypes.c_ubyte * (size + 64))(*[CANARY] * (size + 64))
    info = pynvml.c_nvmlMemory_v2_t.from_buffer(room)
    info.version = pynvml.nvmlMemory_v2 if version is None else version
    result = nvml.nvmlDeviceGetMemoryInfo_v2(handle(index), ctypes.byref(info))
    fields = ("version", "total", "reserved", "free", "used")
    return {
        "result": result,
        "canaries": int(all(byte == CANARY for byte in room[size:])),
        "untouched": int(all(byte == CANARY for byte in room[4:])),
        **{name: getattr(info, name) for name in fields},
    }


def processes(call: str, room: int, index: int | str = 0, infos: bool = True) -> dict[str, Any]:
    """Call a process list with so much room, canaries in and behind it."""
    row = pynvml.c_nvmlProcessInfo_v2_t if call[-1] in "23" else ProcessV1
    count = ctypes.c_uint(room)
    size = ctypes.sizeof(row)
    buffer = (ctypes.c_ubyte * (size * (room + 2)))(*[CANARY] * (size * (room + 2)))
    result = getattr(nvml, call)(handle(index), ctypes.byref(count), buffer if infos else None)
    written = count.value if result == 0 else 0
    rows = [row.from_buffer(buffer, i * size) for i in range(written)]
    return {
        "result": result,
        "count": count.value,
        "canaries": int(all(byte == CANARY for byte in buffer[written * size :])),
        "rows": [{name: getattr(one, name) for name, _ in row._fields_} for one in rows],
    }


class ProcessV1(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


def utilization(index: int = 0) -> list[int]:
    """Return the pids that have samples; raises NVMLError otherwise."""
    return [sample.pid for sample in pynvml.nvmlDeviceGetProcessUtilization(handle(index), 0)]


def samples(room: int, infos: bool = True) -> dict[str, Any]:
    """Ask for utilisation with so much room, canaries behind it."""
    row = pynvml.c_nvmlProcessUtilizationSample_t
    count = ctypes.c_uint(room)
    size = ctypes.sizeof(row) * room
    buffer = (ctypes.c_ubyte * (size + 4096))(*[CANARY] * (size + 4096))
    result = nvml.nvmlDeviceGetProcessUtilization(
        handle(0), buffer if infos else None, ctypes.byref(count), ctypes.c_ulonglong(0)
    )
    written = [
        row.from_buffer(buffer, i * ctypes.sizeof(row)) for i in range(count.value if not result else 0)
    ]
    return {
        "result": result,
        "count": count.value,
        "canaries": int(all(byte == CANARY for byte in buffer[size:])),
        "pids": [one.pid for one in written],
    }


def versioned(call: str, version: int) -> int:
    """Return the result of a call whose structure begins with so unknown a version."""
    room = (ctypes.c_uint * 64)(version)
    return int(getattr(nvml, call)(handle(0), room))


def spin(milliseconds: int) -> int:
    """Keep the card busy for so long."""
    cuda, module, function = driver(), ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), SPIN) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"gpulimit_spin") == 0
    length, out = ctypes.c_uint64(5_000_000), ctypes.c_uint64(0)
    parameters = (ctypes.c_void_p * 2)(*(ctypes.addressof(one) for one in (length, out)))
    for _ in range(milliseconds // 5):
        cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, parameters, None)
    return int(cuda.cuCtxSynchronize())


def pid() -> int:
    return os.getpid()


def uuid(index: int = 0) -> str:
    return str(pynvml.nvmlDeviceGetUUID(handle(index)))


def name(pid: int) -> int:
    """Return the result of asking for a process's name."""
    return int(nvml.nvmlSystemGetProcessName(pid, ctypes.create_string_buffer(64), 64))


def raw(call: str) -> int:
    """Return the result of a list or memory call with no pointers at all."""
    return int(getattr(nvml, call)(handle(0), None, None))


def main() -> None:
    pynvml.nvmlInit()
    commands = (
        *(alloc, cuda_info, memory, memory_v2, processes, utilization, uuid, name, raw),
        *(samples, versioned, spin, pid),
    )
    known = {one.__name__: one for one in commands}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer: Any = known[command](*arguments)
        except pynvml.NVMLError as error:
            answer = {"nvml_error": error.value}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
