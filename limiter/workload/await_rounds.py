# SPDX-License-Identifier: Apache-2.0
"""Rounds in which a kernel waits for one that is launched later, from another thread and in another stream.

Persistent kernels and collectives do this.  If a limiter holds the later launch back while the earlier kernel
runs, that kernel waits in vain.  It gives up after `bail_out_ns`, and the round counts as a bail-out.
"""

from __future__ import annotations

import ctypes
import threading
import time
from ctypes import byref, c_size_t, c_uint64
from dataclasses import dataclass
from typing import Any

from limiter.cuda import CudaDevice, DevicePointer, Driver, Handle
from limiter.units import show_ns
from limiter.workload import kernels, waiting
from limiter.workload.settings import WorkloadSettings
from limiter.workload.stream_queue import STREAM_NON_BLOCKING, Launch

APART_S = 0.002
"""Time from the launch of the waiting kernel to that of the work before the kernel that it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitSettings:
    """Settings of a run.  Each round has `kernel_ns` of other work before the launch that is waited for."""

    rounds: int
    kernel_ns: int = 500_000
    bail_out_ns: int = 2_000_000_000
    device: int = 0


class AwaitRounds:
    """One run of rounds.  Each object runs once."""

    def __init__(self, driver: Driver, settings: AwaitSettings) -> None:
        """Create the context, streams and kernels.  Raises OutOfMemory, DriverError."""
        self.settings = settings
        self.stop = threading.Event()
        self._driver = driver
        self._device: CudaDevice = driver.device(settings.device)
        self._context = self._device.use()
        words = DevicePointer()
        driver.call("cuMemAlloc_v2", byref(words), c_size_t(16))
        driver.call("cuMemsetD32_v2", words, 0, c_size_t(4))
        self._flag, self._bails = words.value, words.value + 8
        module, own = Handle(), waiting.load(driver)
        driver.call("cuModuleLoadData", byref(module), kernels.PTX)
        workload = WorkloadSettings(kernel_ns=settings.kernel_ns)
        self._work = Launch(driver, module, workload, (settings.kernel_ns, 0))
        self._await = waiting.WaitingKernel(driver, own, waiting.AWAIT, 4)
        self._set = waiting.WaitingKernel(driver, own, waiting.SET, 2)
        self._waiter, self._setter = Handle(), Handle()
        for stream in (self._waiter, self._setter):
            driver.call("cuStreamCreate", byref(stream), STREAM_NON_BLOCKING)
        driver.call("cuCtxSynchronize")

    def _round(self, number: int) -> float:
        """Run one round and return its duration in seconds."""
        began = time.monotonic()
        self._await(self._waiter, self._flag, number, self.settings.bail_out_ns, self._bails)
        time.sleep(APART_S)
        later = threading.Thread(target=self._later, args=(number,))
        later.start()
        self._driver.call("cuStreamSynchronize", self._waiter)
        took = time.monotonic() - began
        later.join()
        self._driver.call("cuStreamSynchronize", self._setter)
        return took

    def _later(self, number: int) -> None:
        self._driver.call("cuCtxSetCurrent", self._context)
        self._work(self._setter)
        self._set(self._setter, self._flag, number)

    def _bail_outs(self) -> int:
        count = c_uint64()
        self._driver.call("cuMemcpyDtoH_v2", byref(count), DevicePointer(self._bails), ctypes.sizeof(count))
        return count.value

    def run(self) -> dict[str, Any]:
        """Run the rounds until done or stopped, and return the result for --json."""
        took: list[float] = []
        began = time.monotonic()
        for number in range(1, self.settings.rounds + 1):
            if self.stop.is_set():
                break
            took.append(self._round(number))
        return {
            "device": self._device.name,
            "simulated": self._driver.is_simulated,
            "seconds": round(time.monotonic() - began, 6),
            "rounds": len(took),
            "bail_outs": self._bail_outs(),
            "longest_round_s": round(max(took, default=0.0), 6),
            "mean_round_s": round(sum(took) / max(1, len(took)), 6),
        }


def describe_rounds(settings: AwaitSettings, data: dict[str, Any]) -> str:
    """Return the result as text of a few lines."""
    return (
        f"{data['device']}\n"
        f"{data['rounds']} rounds in {data['seconds']:.2f} s: {data['bail_outs']} gave up after "
        f"{show_ns(settings.bail_out_ns)}; the longest took {data['longest_round_s'] * 1e3:.1f} ms"
    )
