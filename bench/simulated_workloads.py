# SPDX-License-Identifier: Apache-2.0
"""Replaces workloads.py on the simulated driver, without a framework, to try the programs here without a card.

    GPULIMIT_TEST_GPU=sim LD_LIBRARY_PATH=build/sim python bench/fair.py --library build/shim/libgpulimit.so --seconds 1

Contains only the workloads that fair.py uses, as kernels of a given length. The resulting figures are simulated. They
only show that the program works.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from ctypes import byref
from typing import Any

from limiter.cuda import CudaDevice, Driver, Handle
from limiter.workload.kernels import PTX
from limiter.workload.stream_queue import Launch
from limiter.workload.settings import WorkloadSettings
from workloads import Workload


@functools.cache
def card() -> tuple[CudaDevice, Handle]:
    """Return the card, whose context is made current in this thread, and the module with the kernels."""
    device, module = Driver().device(0), Handle()
    device.use()
    device.driver.call("cuModuleLoadData", byref(module), PTX)
    return device, module


class Mark:
    """Event behind all work queued so far. It can be waited for once."""

    def __init__(self, driver: Driver, stream: Handle) -> None:
        self.driver = driver
        self.event = Handle()
        driver.call("cuEventCreate", byref(self.event), 0)
        driver.call("cuEventRecord", self.event, stream)

    def synchronize(self) -> None:
        self.driver.call("cuEventSynchronize", self.event)
        self.driver.call("cuEventDestroy_v2", self.event)


def kernels(kernel_s: float, *, blocks: int, host_s: float = 0.0, check_every: int = 1) -> Workload:
    """Return a workload of one kernel per step. `host_s`: host time per step.

    `blocks`: must differ between loads, because the cost of a launch is learned by function and grid.
    """
    device, module = card()
    driver, stream, steps = device.driver, Handle(), {"since": 0}
    driver.call("cuStreamCreate", byref(stream), 1)
    launch = Launch(driver, module, WorkloadSettings(blocks=blocks), (int(kernel_s * 1e9), 0))

    def step() -> None:
        launch(stream)
        steps["since"] += 1
        if host_s:
            time.sleep(host_s)

    def sync() -> None:
        driver.call("cuStreamSynchronize", stream)

    def busy_s() -> float:
        sync()
        done, steps["since"] = steps["since"], 0
        return kernel_s * done

    def mark() -> Any:
        return Mark(driver, stream)

    return Workload(step, sync, check_every, mark=mark, busy_s=busy_s)


ALL: dict[str, Callable[[], Workload]] = {
    "memory_bound": lambda: kernels(0.75e-3, blocks=1, check_every=4),
    "training": lambda: kernels(0.5e-3, blocks=2, host_s=1e-3),
    "gemm_512": lambda: kernels(0.1e-3, blocks=3, host_s=0.3e-3, check_every=10),
}
