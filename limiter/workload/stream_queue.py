# SPDX-License-Identifier: Apache-2.0
"""One stream with a bounded queue: something to launch, and marks that tell how far the GPU has got."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_uint, c_uint64, c_void_p

from limiter.cuda import CudaDevice, Driver, Handle
from limiter.workload.kernels import SPIN, THREADS_PER_BLOCK, TOUCH
from limiter.workload.settings import BATCHES_QUEUED, WorkloadSettings

STREAM_NON_BLOCKING = 1
EVENT_BLOCKING_SYNC = 1
EVENT_DISABLE_TIMING = 2
CAPTURE_THREAD_LOCAL = 1


class Launch:
    """One kernel with its arguments, ready to go to a stream."""

    def __init__(
        self, driver: Driver, module: Handle, settings: WorkloadSettings, arguments: tuple[int, int]
    ) -> None:
        name = TOUCH if settings.touch else SPIN
        self._driver = driver
        self._function = Handle()
        driver.call("cuModuleGetFunction", byref(self._function), module, name)
        self._values = (c_uint64(arguments[0]), c_uint64(arguments[1]))
        self._pointers = (c_void_p * 2)(*(ctypes.addressof(v) for v in self._values))
        one, none = c_uint(1), c_uint(0)
        self._grid = (c_uint(settings.grid_blocks), one, one)
        self._block = (c_uint(THREADS_PER_BLOCK[name]), one, one)
        self._shared_bytes = none
        self._launch = driver.function("cuLaunchKernel")

    def __call__(self, stream: Handle) -> None:
        code = self._launch(
            self._function, *self._grid, *self._block, self._shared_bytes, stream, self._pointers, None
        )
        if code:
            self._driver.fail("cuLaunchKernel", code)


class GraphLaunch:
    """The same kernel several times, captured from a stream as frameworks do it, then launched as one."""

    def __init__(self, driver: Driver, kernel: Launch, count: int, stream: Handle) -> None:
        self._driver = driver
        graph, self._executable = Handle(), Handle()
        driver.call("cuStreamBeginCapture_v2", stream, CAPTURE_THREAD_LOCAL)
        for _ in range(count):
            kernel(stream)
        driver.call("cuStreamEndCapture", stream, byref(graph))
        driver.call("cuGraphInstantiateWithFlags", byref(self._executable), graph, c_uint64(0))
        driver.call("cuGraphDestroy", graph)
        self._launch = driver.function("cuGraphLaunch")

    def __call__(self, stream: Handle) -> None:
        code = self._launch(self._executable, stream)
        if code:
            self._driver.fail("cuGraphLaunch", code)


def new_mark(driver: Driver) -> Handle:
    """Return an event for waiting: threads sleep meanwhile."""
    mark = Handle()
    driver.call("cuEventCreate", byref(mark), EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING)
    return mark


class Lane:
    """A stream, what goes to it, and at most BATCHES_QUEUED batches in flight."""

    def __init__(
        self, device: CudaDevice, module: Handle, settings: WorkloadSettings, arguments: tuple[int, int]
    ) -> None:
        self._driver = device.driver
        self.stream = Handle()
        self._driver.call("cuStreamCreate", byref(self.stream), STREAM_NON_BLOCKING)
        kernel = Launch(self._driver, module, settings, arguments)
        self._launch: Callable[[Handle], None] = kernel
        if settings.graph_kernels:
            self._launch = GraphLaunch(self._driver, kernel, settings.graph_kernels, self.stream)
        self._marks = [new_mark(self._driver) for _ in range(BATCHES_QUEUED)]
        self._batches = 0

    def submit(self, count: int) -> None:
        """Queue `count` launches once an earlier batch has made room; errors of the driver are raised."""
        mark = self._marks[self._batches % BATCHES_QUEUED]
        if self._batches >= BATCHES_QUEUED:
            self._driver.call("cuEventSynchronize", mark)
        for _ in range(count):
            self._launch(self.stream)
        self._driver.call("cuEventRecord", mark, self.stream)
        self._batches += 1

    def drain(self) -> None:
        """Wait until the GPU has done everything queued here."""
        self._driver.call("cuStreamSynchronize", self.stream)
