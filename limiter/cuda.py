# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver through ctypes: the few calls of the workload and the checks, without a framework.

Symbols have the names that the library exports (`cuMemAlloc_v2`), since cuda.h is not used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from limiter.errors import DriverError, GpulimitError, OutOfMemory

OUT_OF_MEMORY = 2
NO_DEVICE = 100
NOT_PERMITTED = 800
CONTEXT_BLOCKING_SYNC = 4
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
MULTIPROCESSORS = 16

DevicePointer = c_uint64
Handle = c_void_p


class NoDriver(GpulimitError):
    """There is no CUDA driver on this machine, it finds no GPU, or this process may not use it."""


def reason_of(error: DriverError) -> str:
    """Return the reason that the driver cannot be used."""
    if error.code == NOT_PERMITTED:
        return f"this process may not use the GPU: {error}; a line above says why, if gpulimit refuses it"
    if error.code == NO_DEVICE:
        return f"the CUDA driver finds no GPU: {error}; `--sim` uses a simulated one"
    return f"the CUDA driver cannot be used: {error}"


class Driver:
    """libcuda.so.1, initialised."""

    def __init__(self, simulated: Path | None = None) -> None:
        """Load the driver, or the simulated one from its folder.  Raises NoDriver, DriverError."""
        path = str(simulated / "libcuda.so.1") if simulated else "libcuda.so.1"
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise NoDriver(f"no CUDA driver: {error}; `--sim` uses the simulated one") from error
        try:
            self.call("cuInit", 0)
        except DriverError as error:
            raise NoDriver(reason_of(error)) from error

    @property
    def is_simulated(self) -> bool:
        """True if this is the simulated driver."""
        return hasattr(self._library, "gpulimit_sim_version")

    def has(self, symbol: str) -> bool:
        return hasattr(self._library, symbol)

    def function(self, symbol: str) -> Callable[..., int]:
        """Return a driver function, unchecked, for calls in a loop."""
        function: Callable[..., int] = getattr(self._library, symbol)
        return function

    def call(self, symbol: str, *arguments: Any) -> None:
        """Call the driver; raise OutOfMemory or DriverError if it refuses."""
        if not self.has(symbol):
            raise DriverError(symbol, -1, "not in this driver")
        code = self.function(symbol)(*arguments)
        if code != 0:
            self.fail(symbol, code)

    def fail(self, symbol: str, code: int) -> None:
        """Raise the exception of a result code."""
        text = c_char_p()
        known = self.has("cuGetErrorName") and self.function("cuGetErrorName")(code, byref(text)) == 0
        name = (text.value or b"").decode() if known else ""
        kind = OutOfMemory if code == OUT_OF_MEMORY else DriverError
        raise kind(symbol, code, name or "unknown error")

    def version(self) -> int:
        """Return the newest CUDA version that the driver offers, as 13000 for 13.0."""
        value = c_int()
        self.call("cuDriverGetVersion", byref(value))
        return value.value

    def device_count(self) -> int:
        value = c_int()
        self.call("cuDeviceGetCount", byref(value))
        return value.value

    def device(self, index: int) -> CudaDevice:
        """Return the device with this CUDA ordinal.  Raises DriverError if there is none."""
        ordinal = c_int()
        self.call("cuDeviceGet", byref(ordinal), index)
        return CudaDevice(self, ordinal.value)


class CudaDevice:
    """One GPU as this process sees it."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver = driver
        self.ordinal = ordinal

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(128)
        self.driver.call("cuDeviceGetName", text, len(text), self.ordinal)
        return text.value.decode(errors="replace")

    @property
    def total_bytes(self) -> int:
        value = c_size_t()
        self.driver.call("cuDeviceTotalMem_v2", byref(value), self.ordinal)
        return value.value

    def attribute(self, number: int) -> int:
        value = c_int()
        self.driver.call("cuDeviceGetAttribute", byref(value), number, self.ordinal)
        return value.value

    def use(self) -> Handle:
        """Make the device's primary context current in this thread; waiting threads sleep, not spin."""
        context = Handle()
        flags = "cuDevicePrimaryCtxSetFlags_v2"
        if self.driver.has(flags):
            self.driver.call(flags, self.ordinal, CONTEXT_BLOCKING_SYNC)
        self.driver.call("cuDevicePrimaryCtxRetain", byref(context), self.ordinal)
        self.driver.call("cuCtxSetCurrent", context)
        return context

    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes as the current context sees them."""
        free, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value
