# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs and a Triton kernel under a memory quota, through PyTorch."""

from __future__ import annotations

import gc
import importlib.util
import time
from typing import Any

import torch
from checks import MIB, QUOTA, SEEN_S, run, skip

STEP = 256 * MIB


def captured(scale: float) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
    """Capture `x * scale + 1`; return the graph, x and the result."""
    x = torch.zeros(1 << 20, device="cuda")
    x.mul(scale).add(1)  # code is loaded outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x.mul(scale).add(1)
    return graph, x, y


def replays_right(scale: float) -> None:
    graph, x, y = captured(scale)
    for value in (2.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y[0].item() == y[-1].item() == value * scale + 1


def a_graph_replays_right() -> None:
    replays_right(3.0)


def capture_until_refused() -> int:
    """Allocate in a capture until it is refused; return how much was had."""
    graph, held, x = torch.cuda.CUDAGraph(), [], torch.zeros(16, device="cuda")
    try:
        with torch.cuda.graph(graph):
            x.add_(1)
            while len(held) * STEP <= QUOTA:
                held.append(torch.empty(STEP, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        time.sleep(SEEN_S)
        return len(held) * STEP
    raise AssertionError(f"{len(held) * STEP // MIB} MiB in a capture")


def a_capture_is_refused_at_the_quota() -> dict[str, Any]:
    before = torch.cuda.mem_get_info()[0]
    got = capture_until_refused()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    after = torch.cuda.mem_get_info()[0]
    assert before - got < 2 * STEP
    assert before - after < STEP
    return {"free_before_mib": before // MIB, "got_mib": got // MIB, "free_after_mib": after // MIB}


def the_process_can_capture_again() -> None:
    replays_right(4.0)


def a_triton_kernel_is_right() -> None:
    import triton

    from bench.triton_kernel import scale

    x = torch.arange(100_000, device="cuda", dtype=torch.float32)
    scale[(triton.cdiv(x.numel(), 1024),)](x, x.numel(), 2.0, block=1024)
    assert torch.equal(x, 2 * torch.arange(100_000, device="cuda", dtype=torch.float32))


if __name__ == "__main__":
    if torch.version.cuda is None:
        skip("PyTorch is built without CUDA")
    checks = [a_graph_replays_right, a_capture_is_refused_at_the_quota, the_process_can_capture_again]
    if importlib.util.find_spec("triton"):
        checks.append(a_triton_kernel_is_right)
    run(*checks)
