# SPDX-License-Identifier: Apache-2.0
"""Workloads for measuring shares: each is a `step` that queues some GPU work and returns at once.

They cover the ways in which programs use the GPU: long and short kernels, a host that is slower than the GPU, graphs,
several streams, cooperative launches, compiled and traced code. `check_every` steps are about 2 ms of work on an H200.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Workload:
    """One prepared workload. `sync` waits for all queued work."""

    step: Callable[[], None]
    sync: Callable[[], None]
    check_every: int = 1
    power_limited: bool = False  # or otherwise: a step's GPU time depends on the limit
    ahead: int = 3  # marks in flight: a few ms of queued work, as in a program with a data loader
    mark: Callable[[], Any] | None = None  # records an event; .synchronize() on it waits for it
    busy_s: Callable[[], float] | None = None  # GPU time since the last call, overlaps counted once, by the kernels' own stamps


def _torch(step: Callable[[], None], *, check_every: int = 1, power_limited: bool = False, ahead: int = 3) -> Workload:
    import torch

    def mark() -> Any:
        event = torch.cuda.Event()
        event.record()
        return event

    return Workload(step, torch.cuda.synchronize, check_every, power_limited, ahead, mark)


def memory_bound() -> Workload:
    """One kernel of about 0.5 ms that moves memory."""
    import torch

    x = torch.zeros(256 * 2**20, dtype=torch.float32, device="cuda")
    return _torch(lambda: x.add_(1), check_every=4)


def _gemm(n: int, *, check_every: int, power_limited: bool) -> Workload:
    import torch

    a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    c = torch.empty_like(a)
    return _torch(lambda: torch.mm(a, b, out=c), check_every=check_every, power_limited=power_limited)


def gemm_512() -> Workload:
    """Small matrix product: the host launches more slowly than the GPU works."""
    return _gemm(512, check_every=200, power_limited=False)


def gemm_4096() -> Workload:
    """Large matrix product: at full duty the card clocks down for power."""
    return _gemm(4096, check_every=8, power_limited=True)


def _spin(milliseconds: float) -> Workload:
    import torch

    clock_hz = torch.cuda.get_device_properties(0).clock_rate * 1000
    cycles = int(milliseconds / 1000 * clock_hz)
    return _torch(lambda: torch.cuda._sleep(cycles), check_every=max(1, int(2 / milliseconds)), ahead=1 if milliseconds > 100 else 3)


def long_12ms() -> Workload:
    """Kernels of about 12 ms."""
    return _spin(12)


def long_300ms() -> Workload:
    """Kernels of about 300 ms."""
    return _spin(300)


def graph() -> Workload:
    """A CUDA graph of twenty small kernels."""
    import torch

    x = torch.zeros(8 * 2**20, device="cuda")
    y = torch.ones_like(x)
    g = torch.cuda.CUDAGraph()
    x.add_(y)
    torch.cuda.synchronize()
    with torch.cuda.graph(g):
        for _ in range(20):
            x.add_(y)
    return _torch(g.replay, check_every=4)


def _model() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(1024, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 1024)
    ).cuda()


def training() -> Workload:
    """A small training step with autograd and Adam: host-bound."""
    import torch

    model = _model()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.randn(512, 1024, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    return _torch(step)


def compiled() -> Workload:
    """A torch.compile'd forward and backward step."""
    import torch

    model = torch.compile(_model())
    x = torch.randn(4096, 1024, device="cuda")

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()

    return _torch(step)


def cooperative() -> Workload:
    """A cooperative launch that synchronises its grid."""
    import cupy
    import torch

    source = r"""
    #include <cooperative_groups.h>
    extern "C" __global__ void both(float *x, long long n) {
        for (int pass = 0; pass < 2; pass++) {
            for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
                x[i] = x[i] * 1.0001f + 1.0f;
            cooperative_groups::this_grid().sync();
        }
    }"""
    kernel = cupy.RawKernel(source, "both", backend="nvcc", enable_cooperative_groups=True)
    x = torch.zeros(32 * 2**20, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count

    def step() -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((sms * 2,), (512,), (cupy.uintp(x.data_ptr()), cupy.int64(x.numel())))

    return _torch(step, check_every=8)


def four_streams() -> Workload:
    """The same kernel of 0.4 ms in four streams, which overlap on the card."""
    import cupy
    import torch

    source = r"""
    extern "C" __global__ void spin(long long ns, long long *stamps) {
        long long begin, now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
        do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < ns);
        if (threadIdx.x == 0) { stamps[0] = begin; stamps[1] = now; }
    }"""
    kernel = cupy.RawKernel(source, "spin", backend="nvrtc")
    streams = [torch.cuda.Stream() for _ in range(4)]
    stamps = torch.zeros((2**20, 2), dtype=torch.int64, device="cuda")
    main = torch.cuda.current_stream()
    state = {"launches": 0}

    def step() -> None:
        for stream in streams:
            with cupy.cuda.ExternalStream(stream.cuda_stream):
                at = stamps.data_ptr() + 16 * (state["launches"] % len(stamps))
                kernel((1,), (32,), (cupy.int64(400_000), cupy.uintp(at)))
            state["launches"] += 1

    def mark() -> Any:
        for stream in streams:
            event = torch.cuda.Event()
            event.record(stream)
            main.wait_event(event)
        event = torch.cuda.Event()
        event.record(main)
        return event

    def busy_s() -> float:
        torch.cuda.synchronize()
        spans = sorted(stamps[: min(state["launches"], len(stamps))].tolist())
        state["launches"] = 0
        busy = until = 0
        for begin, end in spans:
            busy += max(0, end - max(begin, until))
            until = max(until, end)
        return busy / 1e9

    return Workload(step, torch.cuda.synchronize, 5, True, 3, mark, busy_s)  # how much they overlap depends on the limit


def bursts() -> Workload:
    """10 ms of work every 50 ms, and idle for the rest."""
    import torch

    clock_hz = torch.cuda.get_device_properties(0).clock_rate * 1000
    cycles = int(0.5e-3 * clock_hz)
    state = {"next": time.monotonic()}

    def step() -> None:
        now = time.monotonic()
        if now < state["next"]:
            time.sleep(state["next"] - now)
        state["next"] = max(state["next"] + 0.05, time.monotonic())
        for _ in range(20):
            torch.cuda._sleep(cycles)
        torch.cuda.current_stream().synchronize()

    return _torch(step)


def triton() -> Workload:
    """A Triton kernel."""
    import torch
    import triton as tr

    from triton_kernel import scale

    x = torch.zeros(64 * 2**20, device="cuda")
    grid = (tr.cdiv(x.numel(), 1024),)
    return _torch(lambda: scale[grid](x, x.numel(), 1.0001, block=1024), check_every=10)


def jax() -> Workload:
    """A jitted JAX step."""
    import jax as j
    import jax.numpy as jnp

    @j.jit
    def advance(x: Any) -> Any:
        return jnp.tanh(x @ x * 1e-3) + x * 0.5

    state = {"x": jnp.ones((2048, 2048), jnp.float32) * 0.01}

    class Done:
        def __init__(self, x: Any) -> None:
            self.x = x

        def synchronize(self) -> None:
            self.x.block_until_ready()

    def step() -> None:
        state["x"] = advance(state["x"])

    return Workload(step, lambda: state["x"].block_until_ready(), 4, True, 3, lambda: Done(state["x"]))


ALL: dict[str, Callable[[], Workload]] = {
    f.__name__: f
    for f in (
        memory_bound, gemm_512, gemm_4096, long_12ms, long_300ms, graph, training, cooperative, four_streams, bursts,
        triton, compiled, jax,
    )
}  # fmt: skip
