# SPDX-License-Identifier: Apache-2.0
"""A tensor shared with child processes over CUDA IPC: torch_shared.py spawn|forkserver."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import torch
import torch.multiprocessing as mp
from checks import GIB, MIB, run, skip

CHILDREN = 2
LEAST_CONTEXT, MOST_CONTEXT = 64 * MIB, 900 * MIB


def child(tensors: Any, number: int, results: Any, leave: Any) -> None:
    tensor = tensors.get(timeout=60)
    tensor[number] = number + 10
    torch.cuda.synchronize()
    results.put((number, int(tensor[-1])))
    leave.wait(60)
    # The owner keeps what a user never gave back: an argument of the process would live until it is gone.
    del tensor
    gc.collect()
    torch.cuda.ipc_collect()


def used_bytes() -> int:
    """Return what the whole tenant is charged."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def settles_below(most: int) -> int:
    """Wait a little for the tenant to be charged less than this; return the last reading."""
    deadline = time.monotonic() + 5
    while (used := used_bytes()) > most and time.monotonic() < deadline:
        time.sleep(0.01)
    return used


def a_shared_tensor_is_charged_once() -> dict[str, Any]:
    context = mp.get_context(sys.argv[1])
    tensor = torch.full((GIB,), 7, dtype=torch.uint8, device="cuda")
    alone = used_bytes()
    tensors, results, leave = context.Queue(), context.Queue(), context.Event()
    children = [context.Process(target=child, args=(tensors, n, results, leave)) for n in range(CHILDREN)]
    for process in children:
        process.start()
        tensors.put(tensor)
    assert sorted(results.get(timeout=60) for _ in children) == [(n, 7) for n in range(CHILDREN)]
    shared = used_bytes()
    leave.set()
    for process in children:
        process.join(60)
    assert [process.exitcode for process in children] == [0] * CHILDREN
    assert [int(tensor[n]) for n in range(CHILDREN)] == [n + 10 for n in range(CHILDREN)]
    left = settles_below(alone + 64 * MIB)
    del tensor, children, process
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    freed = used_bytes()
    figures = {"alone": alone, "shared": shared, "children_gone": left, "freed": freed}
    figures = {f"{name}_mib": value // MIB for name, value in figures.items()}
    # The children's contexts are charged, the tensor is not.
    assert LEAST_CONTEXT < (shared - alone) / CHILDREN < MOST_CONTEXT, figures
    assert left < alone + 64 * MIB, figures
    assert alone - freed > GIB - 64 * MIB, figures
    return figures


if __name__ == "__main__":
    if torch.version.cuda is None:
        skip("PyTorch is built without CUDA")
    run(a_shared_tensor_is_charged_once)
