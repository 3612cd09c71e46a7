# SPDX-License-Identifier: Apache-2.0
"""A program that allocates as it is told, one order a line, and answers each with what the driver returned.

`alloc MIB`, `free`: the last one; `close`: closes every descriptor but the standard ones, as programs do
that become daemons; `reuse`: takes the numbers that this has made free; `exec`: replaces the program in
place, which answers 0; `fork`: forks a child that lives on; `try`: begins, the driver
or fails to. The context is made at the first order.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

MIB = 1 << 20
taken: list[ctypes.c_uint64] = []


def begin(cuda: ctypes.CDLL) -> int:
    context = ctypes.c_void_p()
    return int(
        cuda.cuInit(0)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        or cuda.cuCtxSetCurrent(context)
    )


def obey(cuda: ctypes.CDLL, verb: str, number: int) -> int:
    if verb == "alloc":
        taken.append(ctypes.c_uint64())
        return int(cuda.cuMemAlloc_v2(ctypes.byref(taken[-1]), ctypes.c_size_t(number * MIB)))
    if verb == "free":
        return int(cuda.cuMemFree_v2(taken.pop()))
    if verb == "close":
        os.closerange(3, 1024)
    if verb == "reuse":  # of the numbers that a close has made free
        for _ in range(3, 300):
            os.open("/dev/null", os.O_RDWR)
    if verb == "exec":
        os.execv(sys.executable, [sys.executable, "-P", __file__, "0"])  # noqa: S606
    if verb == "fork" and os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    return 0


def main() -> None:
    if sys.argv[1:]:
        print(sys.argv[1], flush=True)
    cuda, failure = ctypes.CDLL("libcuda.so.1"), -1
    for line in iter(sys.stdin.readline, ""):
        verb, _, number = line.strip().partition(" ")
        failure = failure and begin(cuda)
        print(failure or obey(cuda, verb, int(number or 0)), flush=True)


if __name__ == "__main__":
    main()
