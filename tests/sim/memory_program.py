# SPDX-License-Identifier: Apache-2.0
"""A program that takes, gives back and shares device memory as it is told.

It obeys lines of JSON, [command, arguments…], and answers each with one.  It knows nothing of quotas.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

cuda: Any = None
context = ctypes.c_void_p()
stream = ctypes.c_void_p()
POSIX_FD = 1


class Props(ctypes.Structure):
    """CUmemAllocationProp, and the beginning of CUmemPoolProps."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("type", "handles", "location", "id")),
        ("rest", ctypes.c_ubyte * 96),
    )


class Access(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int))


def start() -> int:
    global cuda
    cuda = ctypes.CDLL("libcuda.so.1")
    result = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    result = result or cuda.cuCtxSetCurrent(context)
    return int(result or cuda.cuStreamCreate(ctypes.byref(stream), 1))


def alloc(size: int) -> list[int]:
    pointer = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
    return [result, pointer.value]


def free(pointer: int) -> int:
    return int(cuda.cuMemFree_v2(ctypes.c_uint64(pointer)))


def alloc_async(size: int) -> list[int]:
    pointer = ctypes.c_uint64()
    result = cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), stream)
    return [result, pointer.value]


def free_async(pointer: int) -> int:
    return int(cuda.cuMemFreeAsync(ctypes.c_uint64(pointer), stream))


def keep_all() -> int:
    """Tell the default pool to keep what is freed."""
    pool, threshold = ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1)
    result = cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), 0)
    return int(result or cuda.cuMemPoolSetAttribute(pool, 4, ctypes.byref(threshold)))


def wait(call: str = "cuStreamSynchronize") -> int:
    return int(getattr(cuda, call)(*([stream] if "Stream" in call else [])))


def waiting(count: int) -> int:
    """Wait for the stream again and again, so many milliseconds; the answer comes at once."""
    print(json.dumps("begun"), flush=True)
    for _ in range(count):
        cuda.cuStreamSynchronize(stream)
        cuda.cuCtxSynchronize()
        ctypes.CDLL(None).usleep(1000)
    return 0


def calling(call: str, count: int) -> int:
    """Make a call that neither waits nor frees, each millisecond; the answer comes at once."""
    print(json.dumps("begun"), flush=True)
    for _ in range(count):
        value = ctypes.c_uint64()
        if call == "cuMemAlloc_v2":
            cuda.cuMemAlloc_v2(ctypes.byref(value), ctypes.c_size_t(1))
        elif call == "cuCtxSetLimit":
            cuda.cuCtxSetLimit(0, ctypes.c_size_t(1024))
        else:
            cuda.cuMemGetInfo_v2(ctypes.byref(value), ctypes.byref(ctypes.c_size_t()))
        ctypes.CDLL(None).usleep(1000)
    return 0


def capture(begins: bool) -> int:
    graph = ctypes.c_void_p()
    if begins:
        return int(cuda.cuStreamBeginCapture_v2(stream, 0))
    return int(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))


def info() -> list[int]:
    free_bytes, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuMemGetInfo_v2(ctypes.byref(free_bytes), ctypes.byref(total))
    return [free_bytes.value, total.value]


# ---- sharing ----


def create(size: int) -> list[int]:
    """Make memory that can be handed to another process."""
    handle = ctypes.c_uint64()
    prop = Props(1, POSIX_FD, 1, 0)
    result = cuda.cuMemCreate(
        ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_uint64(0)
    )
    return [result, handle.value]


def release(handle: int) -> int:
    return int(cuda.cuMemRelease(ctypes.c_uint64(handle)))


def send(handle: int, path: str) -> int:
    """Hand memory to the process that listens at the path."""
    fd = ctypes.c_int(-1)
    result = cuda.cuMemExportToShareableHandle(
        ctypes.byref(fd), ctypes.c_uint64(handle), POSIX_FD, ctypes.c_uint64(0)
    )
    if result == 0:
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(path)
            socket.send_fds(other, [b"x"], [fd.value])
        os.close(fd.value)
    return int(result)


def listen(path: str) -> list[int]:
    """Receive memory from another process: the descriptor.  Answers first that it listens."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        print(json.dumps("listening"), flush=True)
        with server.accept()[0] as other:
            return list(socket.recv_fds(other, 10, 1)[1])


def take(fd: int) -> list[int]:
    handle = ctypes.c_uint64()
    result = cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(fd), POSIX_FD)
    os.close(fd)
    return [result, handle.value]


def map_(handle: int, size: int) -> list[int]:
    at = ctypes.c_uint64()
    zero, length = ctypes.c_uint64(0), ctypes.c_size_t(size)
    result = cuda.cuMemAddressReserve(ctypes.byref(at), length, ctypes.c_size_t(0), zero, zero)
    result = result or cuda.cuMemMap(at, length, ctypes.c_size_t(0), ctypes.c_uint64(handle), zero)
    if result == 0:
        result = cuda.cuMemSetAccess(at, length, ctypes.byref(Access(1, 0, 3)), ctypes.c_size_t(1))
    return [result, at.value]


def unmap(at: int, size: int) -> int:
    return int(cuda.cuMemUnmap(ctypes.c_uint64(at), ctypes.c_size_t(size)))


class Opaque(ctypes.Structure):
    """CUipcMemHandle and CUmemPoolPtrExportData."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def ipc_name(pointer: int) -> list[Any]:
    handle = Opaque()
    result = cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(pointer))
    return [result, bytes(handle.bytes).hex()]


def ipc_open(name: str, call: str = "cuIpcOpenMemHandle_v2") -> list[int]:
    at = ctypes.c_uint64()
    handle = Opaque.from_buffer_copy(bytes.fromhex(name))
    function = getattr(cuda, call)
    function.argtypes = (ctypes.c_void_p, Opaque, ctypes.c_uint)
    return [function(ctypes.byref(at), handle, 1), at.value]


def ipc_close(at: int) -> int:
    return int(cuda.cuIpcCloseMemHandle(ctypes.c_uint64(at)))


def pool_name(size: int, path: str) -> list[Any]:
    """Allocate from a pool and hand the pool to the process that listens; return result, pointer, name."""
    pool, pointer, fd, data = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int(-1), Opaque()
    props = Props(1, POSIX_FD, 1, 0)
    result = cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(props))
    result = result or cuda.cuMemAllocFromPoolAsync(
        ctypes.byref(pointer), ctypes.c_size_t(size), pool, stream
    )
    result = result or cuda.cuMemPoolExportToShareableHandle(
        ctypes.byref(fd), pool, POSIX_FD, ctypes.c_uint64(0)
    )
    result = result or cuda.cuMemPoolExportPointer(ctypes.byref(data), pointer)
    if result == 0:
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(path)
            socket.send_fds(other, [b"x"], [fd.value])
        os.close(fd.value)
    return [result, pointer.value, bytes(data.bytes).hex()]


def pool_open(fd: int, name: str) -> list[int]:
    pool, at = ctypes.c_void_p(), ctypes.c_uint64()
    result = cuda.cuMemPoolImportFromShareableHandle(
        ctypes.byref(pool), ctypes.c_void_p(fd), POSIX_FD, ctypes.c_uint64(0)
    )
    data = Opaque.from_buffer_copy(bytes.fromhex(name))
    result = result or cuda.cuMemPoolImportPointer(ctypes.byref(at), pool, ctypes.byref(data))
    os.close(fd)
    return [result, at.value]


def close_all() -> int:
    """Close every descriptor of shared memory, as a program that becomes a daemon does with all it finds."""
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if int(link.name) > 2 and str(link.readlink()).startswith("/dev/shm"):
                os.close(int(link.name))
    return 0


def pid() -> int:
    return os.getpid()


COMMANDS = (
    *(
        start,
        alloc,
        free,
        alloc_async,
        free_async,
        keep_all,
        wait,
        waiting,
        calling,
        capture,
        info,
        create,
        release,
        send,
    ),
    *(listen, take, map_, unmap, ipc_name, ipc_open, ipc_close, pool_name, pool_open, close_all, pid),
)


def main() -> None:
    known = {one.__name__.rstrip("_"): one for one in COMMANDS}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        print(json.dumps(known[command](*arguments)), flush=True)


if __name__ == "__main__":
    main()
