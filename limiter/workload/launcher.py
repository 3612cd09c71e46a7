# SPDX-License-Identifier: Apache-2.0
"""Runs the workload: sets everything up in the calling thread, then one thread per worker keeps the GPU busy.

The first thread that fails stops the others, and its error is raised to the caller.  A signal handler may set
`Workload.stop`; queued work still runs, and is counted.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64

from limiter.cuda import DevicePointer, Driver, Handle
from limiter.errors import OutOfMemory
from limiter.workload.allocations import TAKERS, Allocation, take_plain
from limiter.workload.kernels import PTX
from limiter.workload.result import Result
from limiter.workload.settings import Burst, WorkloadSettings
from limiter.workload.stream_queue import Lane

RETRY_REFUSED_S = 1.0


class Workload:
    """One run; an object cannot be used twice."""

    def __init__(self, driver: Driver, settings: WorkloadSettings) -> None:
        """Open the GPU, and allocate memory and streams.  Raises OutOfMemory, DriverError."""
        self.settings = settings
        self.stop = threading.Event()
        self._device = driver.device(settings.device)
        self._context = self._device.use()
        self.result = Result(device=self._device.name, simulated=driver.is_simulated)
        self._held: list[Allocation] = []
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._deadline = float("inf")
        if settings.memory_bytes:
            self._hold(settings.memory_bytes)
        self._counter = 0 if settings.touch or settings.idle else self._new_counter()
        self._lanes = [] if settings.idle else [self._new_lanes() for _ in range(settings.threads)]

    def _hold(self, size: int) -> None:
        taken = TAKERS[self.settings.alloc](self._device, size, Handle())
        self._held.append(taken)
        self.result.memory_bytes += taken.size_bytes

    def _new_counter(self) -> int:
        """Return the address of a zeroed word in which kernels count themselves; 0 if there is no room for
        it.
        """
        driver, zero = self._device.driver, c_uint64(0)
        try:
            word = take_plain(self._device, ctypes.sizeof(zero), Handle())
        except OutOfMemory:
            return 0
        driver.call("cuMemcpyHtoD_v2", DevicePointer(word.pointer), byref(zero), c_size_t(8))
        return word.pointer

    def _new_lanes(self) -> list[Lane]:
        settings, module = self.settings, Handle()
        self._device.driver.call("cuModuleLoadData", byref(module), PTX)
        if settings.touch:
            arguments = (self._held[0].pointer, self._held[0].size_bytes)
        else:
            arguments = (settings.kernel_ns, self._counter)
        return [Lane(self._device, module, settings, arguments) for _ in range(settings.streams)]

    def run(self) -> Result:
        """Work until the time or the launches are used up, or `stop` is set; return the result."""
        settings = self.settings
        began = time.monotonic()
        if settings.seconds:
            self._deadline = began + settings.seconds
        threads = [self._thread(f"worker-{n}", self._work, n) for n in range(len(self._lanes))]
        if settings.grow_bytes:
            threads.append(self._thread("grow", self._grow, 0))
        for thread in threads:
            thread.start()
        if settings.idle:
            self._pause(float("inf"))
        self._join(threads)
        self.result.seconds = time.monotonic() - began
        if self._failure is not None:
            raise self._failure
        self.result.completed = self._count()
        return self.result

    def _thread(self, name: str, body: Callable[[int], None], number: int) -> threading.Thread:
        def guarded() -> None:
            try:
                self._device.driver.call("cuCtxSetCurrent", self._context)
                body(number)
            except BaseException as error:  # re-raised by run()
                self._failure = self._failure or error
                self.stop.set()

        return threading.Thread(target=guarded, name=name, daemon=True)

    def _join(self, threads: list[threading.Thread]) -> None:
        """Wait for the workers, in short steps so that signal handlers run; then end the grower."""
        for thread in threads:
            if thread.name == "grow":
                self.stop.set()
            while thread.is_alive():
                thread.join(0.1)

    @property
    def _over(self) -> bool:
        return self.stop.is_set() or time.monotonic() >= self._deadline

    def _pause(self, seconds: float) -> None:
        """Sleep, but not past the end; in short steps, so that signal handlers of this thread run."""
        until = min(time.monotonic() + seconds, self._deadline)
        while not self.stop.is_set() and (left := until - time.monotonic()) > 0:
            self.stop.wait(min(left, 0.1))

    def _work(self, number: int) -> None:
        settings, lanes = self.settings, self._lanes[number]
        left = settings.share_of_launches(number)
        done = 0
        try:
            for lane in itertools.cycle(lanes):
                count = settings.batch if left is None else min(settings.batch, left - done)
                if count == 0 or self._over:
                    break
                if settings.burst:
                    self._burst(lane, settings.burst, count)
                else:
                    lane.submit(count)
                    if settings.sync_every:
                        lane.drain()
                done += count
            for lane in lanes:
                lane.drain()
        finally:
            with self._lock:
                self.result.add(done, done * settings.kernels_per_launch)

    def _burst(self, lane: Lane, burst: Burst, count: int) -> None:
        began = time.monotonic()
        lane.submit(count)
        lane.drain()
        took = time.monotonic() - began
        self.result.bursts_ms.append(took * 1e3)
        self._pause(burst.period_ns / 1e9 - took)

    def _grow(self, number: int) -> None:
        del number
        while not self._over:
            wait_s = self.settings.grow_every_s
            try:
                self._hold(self.settings.grow_bytes)
            except OutOfMemory:
                self.result.memory_refused += 1
                wait_s = RETRY_REFUSED_S
            self._pause(wait_s)

    def _count(self) -> int | None:
        if not self._counter:
            return None
        value = c_uint64()
        self._device.driver.call("cuMemcpyDtoH_v2", byref(value), DevicePointer(self._counter), c_size_t(8))
        return value.value
