# SPDX-License-Identifier: Apache-2.0
"""Facts of the driver that the simulated one and the library rely on, and odd calls under a quota.

    python tests/gpu/programs/driver_answers.py facts      # without the library
    python tests/gpu/programs/driver_answers.py quota      # with the library, QUOTA_BYTES of memory

Needs only the driver and ctypes.  Prints a line of JSON per check.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import socket
import sys
from typing import Any

import checks
from checks import MIB, QUOTA

CUDA: Any = ctypes.CDLL("libcuda.so.1")
NVML: Any = ctypes.CDLL("libnvidia-ml.so.1")
F_SETSIG, F_GETSIG = 10, 11
PIECE = 64 * MIB
U64, SIZE = ctypes.c_uint64, ctypes.c_size_t
STREAM = ctypes.c_void_p()
USED, RESERVED = 0, 2


class Props(ctypes.Structure):
    """CUmemAllocationProp, and the beginning of CUmemPoolProps."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("type", "handles", "location", "id")),
        ("rest", ctypes.c_ubyte * 96),
    )


class NodeParams(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS: CUmemPoolProps has 88 bytes."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("type", "handles", "location", "id")),
        ("rest", ctypes.c_ubyte * 72),
        ("access", ctypes.c_void_p),
        ("access_count", SIZE),
        ("bytes", SIZE),
        ("pointer", U64),
    )


class Array3D(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        *((name, SIZE) for name in ("w", "h", "d")),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


class Opaque(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def start() -> None:
    context = ctypes.c_void_p()
    for result in (
        CUDA.cuInit(0),
        CUDA.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        CUDA.cuCtxSetCurrent(context),
        CUDA.cuStreamCreate(ctypes.byref(STREAM), 1),
    ):
        assert result == 0, result


def info() -> tuple[int, int]:
    free, total = SIZE(), SIZE()
    assert CUDA.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value, total.value


def missing_outputs_of_memory_info() -> dict[str, Any]:
    """Either address may be missing; what is written is the same as with both."""
    free, total = SIZE(7), SIZE(7)
    results = [
        CUDA.cuMemGetInfo_v2(None, None),
        CUDA.cuMemGetInfo_v2(ctypes.byref(free), None),
        CUDA.cuMemGetInfo_v2(None, ctypes.byref(total)),
    ]
    assert results == [0, 0, 0], results
    assert total.value == info()[1], (total.value, info())
    assert free.value <= total.value
    return {"free_mib": free.value // MIB, "total_mib": total.value // MIB}


def missing_outputs_are_invalid() -> dict[str, Any]:
    pointer, pitch = U64(), SIZE()
    one = ctypes.byref(Props(1, 0, 1, 0))
    flat = ctypes.byref(Array3D(16, 16, 0, 0x20, 1))
    results = {
        "cuMemAlloc": CUDA.cuMemAlloc_v2(None, SIZE(MIB)),
        "cuMemAllocPitch, pointer": CUDA.cuMemAllocPitch_v2(None, ctypes.byref(pitch), SIZE(512), SIZE(2), 4),
        "cuMemAllocPitch, pitch": CUDA.cuMemAllocPitch_v2(ctypes.byref(pointer), None, SIZE(512), SIZE(2), 4),
        "cuMemAllocManaged": CUDA.cuMemAllocManaged(None, SIZE(MIB), 1),
        "cuMemAllocAsync": CUDA.cuMemAllocAsync(None, SIZE(MIB), STREAM),
        "cuMemCreate": CUDA.cuMemCreate(None, SIZE(2 * MIB), one, U64(0)),
        "cuMemPoolCreate": CUDA.cuMemPoolCreate(None, one),
        "cuArray3DCreate": CUDA.cuArray3DCreate_v2(None, flat),
        "cuDeviceTotalMem": CUDA.cuDeviceTotalMem_v2(None, 0),
        "cuDevicePrimaryCtxRetain": CUDA.cuDevicePrimaryCtxRetain(None, 0),
        "cuCtxCreate": CUDA.cuCtxCreate_v2(None, 0, 0),
    }
    wrong = {name: result for name, result in results.items() if result != 1}
    assert not wrong, wrong
    return {"calls": len(results)}


def invalid_is_said_before_too_large() -> dict[str, Any]:
    """Small, above any quota, and above the card: the driver's answer is that the call is invalid."""
    pointer, pitch, made, handle = U64(), SIZE(), ctypes.c_void_p(), U64()
    wrong = {}
    for size in (MIB, 16 << 30, 9 << 40):
        bad_format = Array3D(1024, 1024, size >> 20, 0x999, 1)
        results = {
            "pitch": CUDA.cuMemAllocPitch_v2(
                ctypes.byref(pointer), ctypes.byref(pitch), SIZE(1024), SIZE(size >> 10), 0
            ),
            "managed": CUDA.cuMemAllocManaged(ctypes.byref(pointer), SIZE(size), 9),
            "array": CUDA.cuArray3DCreate_v2(ctypes.byref(made), ctypes.byref(bad_format)),
            "create": CUDA.cuMemCreate(
                ctypes.byref(handle), SIZE(size + 1), ctypes.byref(Props(1, 0, 1, 0)), U64(0)
            ),
        }
        wrong |= {f"{name} {size}": result for name, result in results.items() if result != 1}
    assert not wrong, wrong
    return {}


# ---- graphs ----


def graph(size: int, frees: bool, flags: int = 0) -> tuple[int, Any]:
    """Return a graph with an allocation node: the pointer, and the executable graph."""
    made, node, drop, run = (ctypes.c_void_p() for _ in range(4))
    params = NodeParams(1, 0, 1, 0)
    params.bytes = size
    results = [CUDA.cuGraphCreate(ctypes.byref(made), 0)]
    results.append(CUDA.cuGraphAddMemAllocNode(ctypes.byref(node), made, None, SIZE(0), ctypes.byref(params)))
    if frees:
        results.append(
            CUDA.cuGraphAddMemFreeNode(
                ctypes.byref(drop), made, ctypes.byref(node), SIZE(1), U64(params.pointer)
            )
        )
    results.append(CUDA.cuGraphInstantiateWithFlags(ctypes.byref(run), made, U64(flags)))
    assert not any(results), results
    return params.pointer, run


def pool(attribute: int) -> int:
    value = U64()
    assert CUDA.cuDeviceGetGraphMemAttribute(0, attribute, ctypes.byref(value)) == 0
    return value.value


def graphs_that_free_their_own_share_the_pool() -> dict[str, Any]:
    size = QUOTA // 4 or PIECE
    for _ in range(8):
        _, run = graph(size, frees=True)
        assert CUDA.cuGraphLaunch(run, STREAM) == 0
    assert CUDA.cuStreamSynchronize(STREAM) == 0
    used, reserved = pool(USED), pool(RESERVED)
    assert reserved == size, (reserved // MIB, size // MIB)
    assert used == size, f"what a graph has freed itself counts as used until a trim: {used // MIB} MiB"
    assert CUDA.cuDeviceGraphMemTrim(0) == 0
    assert pool(RESERVED) == 0
    return {"size_mib": size // MIB}


def an_upload_takes_the_memory() -> dict[str, Any]:
    _, run = graph(PIECE, frees=True)
    assert CUDA.cuGraphUpload(run, STREAM) == 0
    assert CUDA.cuStreamSynchronize(STREAM) == 0
    figures = {"used_mib": pool(USED) // MIB, "reserved_mib": pool(RESERVED) // MIB}
    assert CUDA.cuGraphLaunch(run, STREAM) == 0
    assert CUDA.cuStreamSynchronize(STREAM) == 0
    assert pool(RESERVED) == PIECE, pool(RESERVED)
    assert CUDA.cuDeviceGraphMemTrim(0) == 0
    return figures


def what_was_freed_and_trimmed_is_not_held() -> dict[str, Any]:
    free_before = info()[0]
    made = [graph(PIECE, frees=False) for _ in range(4)]
    for _, run in made:
        assert CUDA.cuGraphLaunch(run, STREAM) == 0
    assert CUDA.cuStreamSynchronize(STREAM) == 0
    assert pool(USED) == pool(RESERVED) == 4 * PIECE
    for pointer, _ in made:
        assert CUDA.cuMemFreeAsync(U64(pointer), STREAM) == 0
    assert CUDA.cuStreamSynchronize(STREAM) == 0
    figures = {"used_after_free_mib": pool(USED) // MIB}
    assert CUDA.cuDeviceGraphMemTrim(0) == 0
    assert pool(RESERVED) == 0
    assert free_before - info()[0] < 32 * MIB, (free_before - info()[0]) // MIB
    return figures


def an_automatic_free_needs_no_second_room() -> dict[str, Any]:
    _, run = graph(PIECE, frees=False, flags=1)
    for _ in range(3):
        assert CUDA.cuGraphLaunch(run, STREAM) == 0
        assert CUDA.cuStreamSynchronize(STREAM) == 0
    assert pool(RESERVED) == PIECE, pool(RESERVED) // MIB
    return {"used_mib": pool(USED) // MIB}


# ---- sharing ----


def create(size: int) -> int:
    handle = U64()
    result = CUDA.cuMemCreate(ctypes.byref(handle), SIZE(size), ctypes.byref(Props(1, 1, 1, 0)), U64(0))
    assert result == 0, result
    return handle.value


def export(handle: int) -> int:
    fd = ctypes.c_int(-1)
    assert CUDA.cuMemExportToShareableHandle(ctypes.byref(fd), U64(handle), 1, U64(0)) == 0
    return fd.value


def an_exported_descriptor_carries_its_owner() -> dict[str, Any]:
    """The library names exported memory by the owner and signal of the open file."""
    handle = create(2 * MIB)
    fd = export(handle)
    before = fcntl.fcntl(fd, fcntl.F_GETOWN), fcntl.fcntl(fd, F_GETSIG)
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, F_SETSIG, 63)
    one, other = socket.socketpair()
    with one, other:
        socket.send_fds(one, [b"x"], [fd])
        (received,) = array.array("i", socket.recv_fds(other, 1, 1)[1])
    assert fcntl.fcntl(received, fcntl.F_GETOWN) == os.getpid()
    assert fcntl.fcntl(received, F_GETSIG) == 63
    again = U64()
    result = CUDA.cuMemImportFromShareableHandle(ctypes.byref(again), ctypes.c_void_p(received), 1)
    assert result == 0, result
    for one_handle in (again.value, handle):
        assert CUDA.cuMemRelease(U64(one_handle)) == 0
    os.close(fd)
    os.close(received)
    return {"before": list(before)}


def an_opaque_handle_is_the_same_each_time() -> dict[str, Any]:
    pointer = U64()
    assert CUDA.cuMemAlloc_v2(ctypes.byref(pointer), SIZE(4 * MIB)) == 0
    handles = [Opaque() for _ in range(2)]
    for handle in handles:
        assert CUDA.cuIpcGetMemHandle(ctypes.byref(handle), pointer) == 0
    assert bytes(handles[0].bytes) == bytes(handles[1].bytes)
    assert CUDA.cuMemFree_v2(pointer) == 0
    return {}


HELD = 512 * MIB


def exporter(line: int) -> None:
    """Run as a child: export memory over the socket, and end when told."""
    start()
    with socket.socket(fileno=line) as other:
        fd = export(create(HELD))
        socket.send_fds(other, [b"x"], [fd])
        other.recv(1)


def listed(pid: int) -> int | None:
    """Return what NVML says that the process holds; None: it is not listed."""

    class Row(ctypes.Structure):
        _fields_ = (
            ("pid", ctypes.c_uint),
            ("bytes", ctypes.c_ulonglong),
            ("gpu", ctypes.c_uint),
            ("compute", ctypes.c_uint),
        )

    device, count, rows = ctypes.c_void_p(), ctypes.c_uint(64), (Row * 64)()
    assert NVML.nvmlInit_v2() == 0
    assert NVML.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    result = NVML.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), rows)
    assert result == 0, result
    return next((row.bytes for row in rows[: count.value] if row.pid == pid), None)


def memory_outlives_its_exporter_and_is_charged() -> dict[str, Any]:
    """A child makes memory, hands it over and ends: the card holds it, and under a quota we pay."""
    import subprocess

    before = info()[0]
    own_before = listed(os.getpid())
    one, other = socket.socketpair()
    argv = [sys.executable, __file__, "exporter", str(other.fileno())]
    child = subprocess.Popen(argv, pass_fds=[other.fileno()])
    other.close()
    with one:
        (fd,) = socket.recv_fds(one, 1, 1)[1]
        handle = U64()
        assert CUDA.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(fd), 1) == 0
        os.close(fd)
        both = before - info()[0]
        one.send(b"x")
        assert child.wait(timeout=60) == 0
    alone = before - info()[0]
    own_after = listed(os.getpid())
    assert alone >= HELD - 64 * MIB, f"{alone // MIB} MiB less free with {HELD // MIB} MiB held"
    if QUOTA:
        assert alone <= HELD + 64 * MIB, f"{alone // MIB} MiB charged for {HELD // MIB} MiB"
    assert CUDA.cuMemRelease(handle) == 0
    left = before - info()[0]
    assert left < 64 * MIB, f"{left // MIB} MiB left"
    shown = (own_after or 0) - (own_before or 0)
    return {"both_mib": both // MIB, "alone_mib": alone // MIB, "nvml_shows_more_mib": shown // MIB}


CHECKS = (
    missing_outputs_of_memory_info,
    missing_outputs_are_invalid,
    invalid_is_said_before_too_large,
    graphs_that_free_their_own_share_the_pool,
    an_upload_takes_the_memory,
    what_was_freed_and_trimmed_is_not_held,
    an_automatic_free_needs_no_second_room,
    an_opaque_handle_is_the_same_each_time,
    an_exported_descriptor_carries_its_owner,
    memory_outlives_its_exporter_and_is_charged,
)

if __name__ == "__main__":
    if sys.argv[1] == "exporter":
        exporter(int(sys.argv[2]))
    else:
        start()
        checks.run(*CHECKS)
