# SPDX-License-Identifier: Apache-2.0
"""CuPy's pools under a memory quota."""

from __future__ import annotations

import gc
import time
from typing import Any

import cupy
from checks import GIB, MIB, QUOTA, SEEN_S, all_views_agree, run
from cupy.cuda import runtime

BLOCK = 64 * MIB
OUT_OF_MEMORY = 2


def block(size: int = BLOCK) -> Any:
    return cupy.empty(size, dtype=cupy.uint8)


def free_bytes() -> int:
    return int(runtime.memGetInfo()[0])


def give_back() -> None:
    gc.collect()
    runtime.deviceSynchronize()
    cupy.get_default_memory_pool().free_all_blocks()


def fill() -> tuple[int, str]:
    """Take blocks until refused; return the bytes had and the refusal's type."""
    held: list[Any] = []
    while len(held) * BLOCK <= QUOTA:
        try:
            held.append(block())
        except (cupy.cuda.memory.OutOfMemoryError, runtime.CUDARuntimeError) as error:
            if isinstance(error, runtime.CUDARuntimeError):
                assert error.status == OUT_OF_MEMORY, error
            time.sleep(SEEN_S)
            return len(held) * BLOCK, type(error).__name__
    raise AssertionError("never refused")


def every_view_shows_the_quota() -> dict[str, Any]:
    block()
    return all_views_agree(*runtime.memGetInfo(), runtime.getDeviceProperties(0)["totalGlobalMem"])


def a_kernel_is_right() -> None:
    assert int((cupy.arange(1000, dtype=cupy.int64) ** 2).sum()) == sum(n * n for n in range(1000))


def fits_up_to_the_quota_and_again() -> dict[str, Any]:
    give_back()
    before = free_bytes()
    got, error = fill()
    give_back()
    assert before - got < 2 * BLOCK, (before, got)
    again = block(GIB)
    assert free_bytes() < before - GIB + BLOCK
    del again
    give_back()
    return {"free_before_mib": before // MIB, "got_mib": got // MIB, "refused_as": error}


def the_default_pool() -> dict[str, Any]:
    return fits_up_to_the_quota_and_again()


def the_driver_s_pool() -> dict[str, Any]:
    pool = cupy.cuda.MemoryAsyncPool()
    cupy.cuda.set_allocator(pool.malloc)
    try:
        return fits_up_to_the_quota_and_again()
    finally:
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


if __name__ == "__main__":
    run(every_view_shows_the_quota, a_kernel_is_right, the_default_pool, the_driver_s_pool, a_kernel_is_right)
