# SPDX-License-Identifier: Apache-2.0
"""Allocates device memory with every kind of call, as (pointer, bytes) and a function that frees it.

Each function needs a current context, and leaves nothing behind on failure.  Raises OutOfMemory if the card
or the quota has no room, DriverError for any other error.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from ctypes import byref, c_byte, c_int, c_size_t, c_uint, c_uint64, c_ushort, c_void_p
from dataclasses import dataclass

from limiter.cuda import CudaDevice, DevicePointer, Driver, Handle
from limiter.errors import DriverError

PITCH_ROW_BYTES = 1 << 20
ARRAY_WIDTH = 16384
ARRAY_TEXEL_BYTES = 16
READ_WRITE = 3


@dataclass(frozen=True, slots=True)
class Allocation:
    """Allocated memory; `pointer` is 0 if kernels cannot address it (arrays)."""

    pointer: int
    size_bytes: int
    release: Callable[[], None]


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = (
        ("alloc_type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("security", c_void_p),
        ("max_size", c_size_t),
        ("usage", c_ushort),
        ("reserved", c_byte * 54),
    )


class VmmProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("security", c_void_p),
        ("flags", c_byte * 8),
    )


class VmmAccess(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_int))


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


def take_plain(device: CudaDevice, size: int, stream: Handle) -> Allocation:
    del stream
    pointer = DevicePointer()
    device.driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
    return Allocation(pointer.value, size, lambda: device.driver.call("cuMemFree_v2", pointer))


def take_managed(device: CudaDevice, size: int, stream: Handle) -> Allocation:
    del stream
    pointer = DevicePointer()
    attach_global = 1
    device.driver.call("cuMemAllocManaged", byref(pointer), c_size_t(size), attach_global)
    return Allocation(pointer.value, size, lambda: device.driver.call("cuMemFree_v2", pointer))


def take_pitched(device: CudaDevice, size: int, stream: Handle) -> Allocation:
    del stream
    pointer, pitch = DevicePointer(), c_size_t()
    width = min(size, PITCH_ROW_BYTES)
    rows = max(1, -(-size // width))
    device.driver.call(
        "cuMemAllocPitch_v2", byref(pointer), byref(pitch), c_size_t(width), c_size_t(rows), ARRAY_TEXEL_BYTES
    )
    return Allocation(pointer.value, pitch.value * rows, lambda: device.driver.call("cuMemFree_v2", pointer))


def take_array(device: CudaDevice, size: int, stream: Handle) -> Allocation:
    del stream
    array = Handle()
    unsigned_int32, channels = 3, 4
    height = max(1, -(-size // (ARRAY_WIDTH * ARRAY_TEXEL_BYTES)))
    description = ArrayDescriptor(ARRAY_WIDTH, height, unsigned_int32, channels)
    device.driver.call("cuArrayCreate_v2", byref(array), byref(description))
    held = ARRAY_WIDTH * ARRAY_TEXEL_BYTES * height
    return Allocation(0, held, lambda: device.driver.call("cuArrayDestroy", array))


def free_async(driver: Driver, pointer: DevicePointer, stream: Handle) -> None:
    driver.call("cuMemFreeAsync", pointer, stream)
    driver.call("cuStreamSynchronize", stream)


def take_async(device: CudaDevice, size: int, stream: Handle) -> Allocation:
    pointer = DevicePointer()
    device.driver.call("cuMemAllocAsync", byref(pointer), c_size_t(size), stream)
    return Allocation(pointer.value, size, lambda: free_async(device.driver, pointer, stream))


def take_from_pool(device: CudaDevice, size: int, stream: Handle) -> Allocation:
    driver, pool, pointer = device.driver, Handle(), DevicePointer()
    pinned, on_device = 1, 1
    properties = PoolProperties(alloc_type=pinned, location=Location(on_device, device.ordinal))
    driver.call("cuMemPoolCreate", byref(pool), byref(properties))
    try:
        driver.call("cuMemAllocFromPoolAsync", byref(pointer), c_size_t(size), pool, stream)
    except DriverError:
        driver.call("cuMemPoolDestroy", pool)
        raise

    def release() -> None:
        free_async(driver, pointer, stream)
        driver.call("cuMemPoolDestroy", pool)

    return Allocation(pointer.value, size, release)


def take_vmm(device: CudaDevice, size: int, stream: Handle) -> Allocation:
    del stream
    call = device.driver.call
    pinned, on_device = 1, 1
    location = Location(on_device, device.ordinal)
    properties = VmmProperties(type=pinned, location=location)
    granularity = c_size_t()
    call("cuMemGetAllocationGranularity", byref(granularity), byref(properties), 0)
    held = -(-size // granularity.value) * granularity.value
    handle, pointer, nothing = c_uint64(), DevicePointer(), c_uint64(0)
    with contextlib.ExitStack() as undo:
        call("cuMemCreate", byref(handle), c_size_t(held), byref(properties), nothing)
        undo.callback(call, "cuMemRelease", handle)
        call("cuMemAddressReserve", byref(pointer), c_size_t(held), c_size_t(0), nothing, nothing)
        undo.callback(call, "cuMemAddressFree", pointer, c_size_t(held))
        call("cuMemMap", pointer, c_size_t(held), c_size_t(0), handle, nothing)
        undo.callback(call, "cuMemUnmap", pointer, c_size_t(held))
        access = VmmAccess(location, READ_WRITE)
        call("cuMemSetAccess", pointer, c_size_t(held), byref(access), c_size_t(1))
        release = undo.pop_all().close
    return Allocation(pointer.value, held, release)


TAKERS: dict[str, Callable[[CudaDevice, int, Handle], Allocation]] = {
    "plain": take_plain,
    "managed": take_managed,
    "async": take_async,
    "pool": take_from_pool,
    "vmm": take_vmm,
    "pitch": take_pitched,
    "array": take_array,
}
