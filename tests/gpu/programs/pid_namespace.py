# SPDX-License-Identifier: Apache-2.0
"""What a process of a pid namespace is told of itself: NVML's list, and what its code is charged.

Prints one line of JSON: its pid, the pids that NVML lists, and what cuMemGetInfo takes for used before and
after it loads `MODULES` modules.  Needs only the driver and ctypes.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

MODULES = 40
PTX = (
    b".version 7.0\n.target sm_70\n.address_size 64\n"
    b".visible .global .align 4 .b8 room[4194304];\n.visible .entry k() { ret; }\n"
)
CUDA: Any = ctypes.CDLL("libcuda.so.1")
NVML: Any = ctypes.CDLL("libnvidia-ml.so.1")


def used() -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert CUDA.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value


def pids() -> list[int]:
    device, count, rows = ctypes.c_void_p(), ctypes.c_uint(64), (ctypes.c_uint * (64 * 6))()
    assert NVML.nvmlInit_v2() == 0
    assert NVML.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    assert NVML.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), rows) == 0
    return [rows[6 * i] for i in range(count.value)]


def main() -> None:
    context = ctypes.c_void_p()
    assert CUDA.cuInit(0) == 0
    assert CUDA.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert CUDA.cuCtxSetCurrent(context) == 0
    before = used()
    module = ctypes.c_void_p()
    for _ in range(MODULES):
        assert CUDA.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    after = used()
    print(json.dumps({"pid": os.getpid(), "listed": pids(), "before": before, "after": after}), flush=True)


if __name__ == "__main__":
    main()
