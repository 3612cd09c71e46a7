# SPDX-License-Identifier: Apache-2.0
"""The process that asks CUDA for memory totals: prints one JSON object, and makes no context.

{"totals": {"GPU-…": bytes}} or {"totals": {}, "error": "…"}
"""

from __future__ import annotations

import ctypes
import json
import os
import uuid

HIDING = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
MAX_DEVICES = 64


class CudaError(Exception):
    """A call failed."""


def totals() -> dict[str, int]:
    """Return bytes by UUID. Raises CudaError, OSError."""
    cuda = ctypes.CDLL("libcuda.so.1")
    call(cuda, "cuInit", ctypes.c_uint(0))
    count = ctypes.c_int()
    call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    found = {}
    for number in range(min(count.value, MAX_DEVICES)):
        device, name, total = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.c_size_t()
        call(cuda, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
        call(cuda, "cuDeviceGetUuid", name, device)
        call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(total), device)
        found[f"GPU-{uuid.UUID(bytes=bytes(name))}"] = int(total.value)
    return found


def call(cuda: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code:
        raise CudaError(f"{name} answers {code}")


def main() -> None:
    for name in HIDING:
        os.environ.pop(name, None)
    try:
        print(json.dumps({"totals": totals()}))
    except (CudaError, OSError, AttributeError) as error:
        print(json.dumps({"totals": {}, "error": f"CUDA: {error}"}))


if __name__ == "__main__":
    main()
