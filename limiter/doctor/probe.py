# SPDX-License-Identifier: Apache-2.0
"""Checks that the doctor runs in a child process: `python -m limiter.doctor.probe driver|hooks|quota`.

Prints one JSON object.  The doctor sets LD_PRELOAD and LD_LIBRARY_PATH for it, as for a tenant's program.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from limiter import paths
from limiter.cuda import DevicePointer, Driver
from limiter.errors import DriverError, GpulimitError

HOOK = re.compile(r"^CU_HOOK\((\w+),", re.MULTILINE)
VARIANT = re.compile(r"(_v\d+)?(_pt[sd][sz])?$")
DEFAULT_STREAM_FLAGS = (0, 1, 2)  # none, legacy, per thread
SMALL_BYTES = 16 << 20


class SymbolInfo(ctypes.Structure):
    """Dl_info."""

    _fields_ = (("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p))


def file_of(address: int) -> str:
    """Return the file name of the object that contains an address."""
    info = SymbolInfo()
    if not ctypes.CDLL(None).dladdr(c_void_p(address), byref(info)) or not info.file:
        return ""
    return Path(info.file.decode(errors="replace")).name


def probe_driver() -> dict[str, Any]:
    """The driver and the GPUs."""
    driver = Driver()
    devices = [driver.device(i) for i in range(driver.device_count())]
    return {
        "simulated": driver.is_simulated,
        "cuda": driver.version(),
        "driver": nvml_version(),
        "gpus": [{"name": d.name, "total_bytes": d.total_bytes} for d in devices],
    }


def nvml_version() -> str | None:
    """Return the driver's version by NVML; None if NVML is missing or does not answer."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    text = ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() != 0:
        return None
    found = library.nvmlSystemGetDriverVersion(text, len(text)) == 0
    library.nvmlShutdown()
    return text.value.decode(errors="replace") if found else None


def probe_hooks() -> dict[str, Any]:
    """Return for every hook if the driver has the call, and if each lookup of it returns the library's."""
    driver = Driver()
    handle = ctypes.CDLL("libcuda.so.1")
    names = HOOK.findall(paths.hook_table().read_text())
    present = [n for n in names if hasattr(handle, n)]
    escaped = [n for n in present if file_of(address_of(handle, n)) != paths.LIBRARY]
    asked, missed = by_proc_address(driver, present)
    return {
        "hooks": len(names),
        "present": len(present),
        "escaped": escaped,
        "asked": asked,
        "missed": missed,
    }


def address_of(handle: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(handle, name), c_void_p).value or 0


def by_proc_address(driver: Driver, present: list[str]) -> tuple[int, list[str]]:
    """Ask cuGetProcAddress for the current variant of each hook; return their number, and escapes."""
    version, asked, missed = driver.version(), 0, []
    for name in sorted({VARIANT.sub("", n) for n in present}):
        for flags in DEFAULT_STREAM_FLAGS:
            pointer, status = c_void_p(), c_int()
            symbol = "cuGetProcAddress_v2"
            arguments = (name.encode(), byref(pointer), version, c_uint64(flags), byref(status))
            if driver.function(symbol)(*arguments) != 0 or not pointer.value:
                continue
            asked += 1
            if file_of(pointer.value) != paths.LIBRARY:
                missed.append(name)
    return asked, sorted(set(missed))


def probe_quota() -> dict[str, Any]:
    """Return the memory that a program under quota sees and gets; the argument is the quota in bytes."""
    quota_bytes = int(sys.argv[2])
    driver = Driver()
    device = driver.device(0)
    answer: dict[str, Any] = {"total_bytes": device.total_bytes}
    try:
        device.use()
    except DriverError as error:
        return answer | {"context": str(error)}
    answer["small"] = allocation(driver, SMALL_BYTES)
    answer["large"] = allocation(driver, quota_bytes + SMALL_BYTES)
    return answer


def allocation(driver: Driver, size: int) -> str:
    """Try one allocation; return "" if it worked, else the driver's error."""
    pointer = DevicePointer()
    try:
        driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        driver.call("cuMemFree_v2", pointer)
    except DriverError as error:
        return error.name
    return ""


PROBES = {"driver": probe_driver, "hooks": probe_hooks, "quota": probe_quota}

if __name__ == "__main__":
    try:
        print(json.dumps(PROBES[sys.argv[1]]()))
    except GpulimitError as error:
        print(json.dumps({"error": str(error)}))
