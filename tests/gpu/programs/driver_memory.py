# SPDX-License-Identifier: Apache-2.0
"""The driver's own calls under a memory quota, without a framework."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from checks import MIB, QUOTA, SEEN_S, all_views_agree, run

from limiter.cuda import DevicePointer, Driver, Handle
from limiter.errors import DriverError, OutOfMemory
from limiter.workload.allocations import TAKERS, Allocation, Location, PoolProperties, VmmProperties

BLOCK = 64 * MIB
ODD_SIZES = (1153434, 3 * MIB + 1, BLOCK)  # 1.1 MiB
SLACK = 64 * MIB
PINNED = ON_DEVICE = 1
POSIX_FILE = 1
GLOBAL_CAPTURE, CAPTURING = 0, 1
RELEASE_THRESHOLD = 4

device = Driver().device(0)
call = device.driver.call
NO_STREAM, NOTHING = Handle(), c_uint64(0)


def free_bytes() -> int:
    return device.memory_info()[0]


def until_refused(take: Callable[[], Any], size: int) -> list[Any]:
    """Call `take` until it is refused as out of memory."""
    held: list[Any] = []
    with contextlib.suppress(OutOfMemory):
        while len(held) * size <= QUOTA:
            held.append(take())
        raise AssertionError("never refused")
    return held


@contextlib.contextmanager
def all_comes_back() -> Iterator[int]:
    """Give the bytes that are free; afterwards as many must be."""
    before = free_bytes()
    yield before
    after = free_bytes()
    assert abs(before - after) < SLACK, (before, after)


def every_view_shows_the_quota() -> dict[str, Any]:
    return all_views_agree(*device.memory_info(), device.total_bytes)


def fills(kind: str, size: int = BLOCK) -> dict[str, Any]:
    with all_comes_back() as before:
        held: list[Allocation] = until_refused(lambda: TAKERS[kind](device, size, NO_STREAM), size)
        time.sleep(SEEN_S)
        got = sum(one.size_bytes for one in held)
        assert before - got < size + SLACK, (before, got)
        for one in held:
            one.release()
    return {"got_mib": got // MIB}


def plain_memory() -> dict[str, Any]:
    return fills("plain")


def virtual_memory() -> dict[str, Any]:
    return fills("vmm")


def asynchronous_memory() -> dict[str, Any]:
    return fills("async")


def pitched_memory() -> dict[str, Any]:
    return fills("pitch")


def arrays() -> dict[str, Any]:
    return fills("array")


def managed_memory_is_charged_in_full() -> None:
    with all_comes_back() as before:
        one = TAKERS["managed"](device, 4 * BLOCK, NO_STREAM)
        assert abs(before - free_bytes() - 4 * BLOCK) < SLACK
        one.release()


def blocks_of_odd_sizes() -> dict[str, Any]:
    held = []
    with all_comes_back():
        for size in sorted(ODD_SIZES, reverse=True):
            held += [TAKERS["plain"](device, size, NO_STREAM) for _ in range(8)]
        for size in ODD_SIZES:
            held += until_refused(lambda size=size: TAKERS["plain"](device, size, NO_STREAM), size)
        time.sleep(SEEN_S)
        count, left = len(held), free_bytes()
        for one in held:
            one.release()
    return {"blocks": count, "left_mib": left // MIB}


def a_pool_that_keeps_what_it_has() -> dict[str, Any]:
    """An own pool with a threshold holds freed memory, and gives it up when the quota is short."""
    pool, keep = Handle(), c_uint64(2**64 - 1)
    properties = PoolProperties(alloc_type=PINNED, location=Location(ON_DEVICE, device.ordinal))

    def take() -> DevicePointer:
        pointer = DevicePointer()
        call("cuMemAllocFromPoolAsync", byref(pointer), c_size_t(BLOCK), pool, NO_STREAM)
        return pointer

    with all_comes_back() as before:
        call("cuMemPoolCreate", byref(pool), byref(properties))
        call("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, byref(keep))
        held = until_refused(take, BLOCK)
        assert before - len(held) * BLOCK < BLOCK + SLACK
        for pointer in held:
            call("cuMemFreeAsync", pointer, NO_STREAM)
        call("cuStreamSynchronize", NO_STREAM)
        kept = before - free_bytes()
        plain = TAKERS["plain"](device, 16 * BLOCK, NO_STREAM)
        plain.release()
        call("cuMemPoolDestroy", pool)
    assert kept >= (len(held) - 1) * BLOCK, kept
    return {"got_mib": len(held) * BLOCK // MIB, "kept_mib": kept // MIB}


def the_driver_s_own_error_for_a_pointer_nobody_gave() -> None:
    try:
        call("cuMemFree_v2", DevicePointer(0x12345000))
    except DriverError as error:
        assert "INVALID" in str(error), error
    else:
        raise AssertionError("freed what does not exist")


def capture(record: Callable[[Handle], None]) -> Handle:
    """Capture what `record` does in a stream; return the graph."""
    stream, graph, status = Handle(), Handle(), c_int()
    call("cuStreamCreate", byref(stream), 1)
    try:
        call("cuStreamBeginCapture_v2", stream, GLOBAL_CAPTURE)
        record(stream)
        call("cuStreamIsCapturing", stream, byref(status))
        assert status.value == CAPTURING
        call("cuStreamEndCapture", stream, byref(graph))
    finally:
        call("cuStreamDestroy_v2", stream)
    return graph


def a_capture_is_refused_at_the_quota_and_goes_on() -> dict[str, Any]:
    had: list[Any] = []

    def node(stream: Handle) -> DevicePointer:
        pointer = DevicePointer()
        call("cuMemAllocAsync", byref(pointer), c_size_t(4 * BLOCK), stream)
        return pointer

    def take_all(stream: Handle) -> None:
        had.extend(until_refused(lambda: node(stream), 4 * BLOCK))

    with all_comes_back() as before:
        call("cuGraphDestroy", capture(take_all))
        assert before - len(had) * 4 * BLOCK < 4 * BLOCK + SLACK
    return {"got_mib": len(had) * 4 * BLOCK // MIB}


def a_graph_with_memory_of_its_own_runs() -> dict[str, Any]:
    executable, before = Handle(), free_bytes()

    def take_and_free(stream: Handle) -> None:
        pointer = DevicePointer()
        call("cuMemAllocAsync", byref(pointer), c_size_t(4 * BLOCK), stream)
        call("cuMemsetD8Async", pointer, 1, c_size_t(4 * BLOCK), stream)
        call("cuMemFreeAsync", pointer, stream)

    graph = capture(take_and_free)
    call("cuGraphInstantiateWithFlags", byref(executable), graph, NOTHING)
    for _ in range(3):
        call("cuGraphLaunch", executable, NO_STREAM)
    call("cuStreamSynchronize", NO_STREAM)
    during = free_bytes()
    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    call("cuDeviceGraphMemTrim", device.ordinal)
    after = free_bytes()
    figures = {"free_mib": [before // MIB, during // MIB, after // MIB]}
    assert abs(before - during - 4 * BLOCK) < SLACK, figures
    assert abs(before - after) < SLACK, figures
    return figures


def a_second_context_is_charged() -> dict[str, Any]:
    second, popped = Handle(), Handle()
    with all_comes_back() as before:
        call("cuCtxCreate_v2", byref(second), 0, device.ordinal)
        cost = before - free_bytes()
        call("cuCtxPopCurrent_v2", byref(popped))
        call("cuCtxDestroy_v2", second)
    assert cost > SLACK
    return {"cost_mib": cost // MIB}


def memory_exported_and_released() -> dict[str, Any]:
    """Memory whose last handle is released while a file still refers to it: what is charged for it?"""
    handle, again, file = c_uint64(), c_uint64(), c_int(-1)
    properties = VmmProperties(
        type=PINNED, handle_types=POSIX_FILE, location=Location(ON_DEVICE, device.ordinal)
    )
    with all_comes_back() as before:
        call("cuMemCreate", byref(handle), c_size_t(8 * BLOCK), byref(properties), NOTHING)
        call("cuMemExportToShareableHandle", byref(file), handle, POSIX_FILE, NOTHING)
        call("cuMemRelease", handle)
        released = before - free_bytes()
        measured = []
        for _ in range(3):
            one = TAKERS["plain"](device, BLOCK, NO_STREAM)
            time.sleep(0.005)
            one.release()
            measured.append((before - free_bytes()) // MIB)
        imported = None
        with contextlib.suppress(DriverError):
            call("cuMemImportFromShareableHandle", byref(again), c_void_p(file.value), POSIX_FILE)
            imported = (before - free_bytes()) // MIB
            call("cuMemRelease", again)
        os.close(file.value)
        for _ in range(3):
            TAKERS["plain"](device, BLOCK, NO_STREAM).release()
            time.sleep(0.005)
    return {"released_mib": released // MIB, "measured_mib": measured, "imported_mib": imported}


if __name__ == "__main__":
    device.use()
    run(
        every_view_shows_the_quota,
        plain_memory,
        virtual_memory,
        asynchronous_memory,
        pitched_memory,
        arrays,
        managed_memory_is_charged_in_full,
        blocks_of_odd_sizes,
        a_pool_that_keeps_what_it_has,
        the_driver_s_own_error_for_a_pointer_nobody_gave,
        a_capture_is_refused_at_the_quota_and_goes_on,
        a_graph_with_memory_of_its_own_runs,
        a_second_context_is_charged,
        memory_exported_and_released,
    )
