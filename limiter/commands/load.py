# SPDX-License-Identifier: Apache-2.0
"""Run the built-in workload: kernels of a given length, memory of every kind, on a real or simulated GPU.

Examples:
  gpulimit load --seconds 10                          # one 500 us kernel after the other
  gpulimit load --kernel 50us --graph 20              # CUDA graphs of 20 kernels
  gpulimit load --memory 1GiB --touch                 # memory-bound work
  gpulimit load --burst 3ms/20ms --kernel 150us       # a request every 20 ms, with its latency
  gpulimit load --sim --memory 1GiB --alloc vmm --idle --seconds 60
  gpulimit run --memory 4GiB --compute 30 -- gpulimit load

The kernels measure their own length by the GPU's clock.  Where several streams or processes overlap, the GPU
time shown is the sum over kernels; use --touch to see real throughput.  At most ~8 ms of work is queued.

"""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable

from limiter import paths
from limiter.cuda import Driver
from limiter.units import parse_bytes, parse_ns
from limiter.workload.allocations import TAKERS
from limiter.workload.launcher import Workload
from limiter.workload.result import describe, summary
from limiter.workload.settings import Burst, WorkloadSettings

DEFAULT_SECONDS = 5.0


def option(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Let argparse show the parser's own words."""

    def read(text: str) -> int:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def parse_burst(text: str) -> Burst:
    work, slash, period = text.partition("/")
    try:
        if not slash:
            raise ValueError(f"{text!r} is not WORK/PERIOD, as in 3ms/20ms")
        return Burst(parse_ns(work), parse_ns(period))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_count(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    size, duration = option(parse_bytes), option(parse_ns)
    add = parser.add_argument
    add("--kernel", type=duration, default=500_000, metavar="T", help="length of a kernel (500us)")
    add(
        "--blocks",
        type=parse_count,
        default=0,
        metavar="N",
        help="thread blocks of a kernel (1; --touch: 1024)",
    )
    add("--streams", type=parse_count, default=1, metavar="N", help="streams per thread (1)")
    add("--threads", type=parse_count, default=1, metavar="N", help="threads that launch (1)")
    add("--graph", type=parse_count, default=0, metavar="N", help="launch CUDA graphs of N kernels")
    add("--touch", action="store_true", help="read and write all of --memory instead of spinning")
    add("--burst", type=parse_burst, metavar="WORK/PERIOD", help="WORK of GPU time every PERIOD, as 3ms/20ms")
    add("--idle", action="store_true", help="hold the memory and launch nothing")
    add("--seconds", type=float, metavar="S", help=f"how long ({DEFAULT_SECONDS:g}, or --launches)")
    add("--launches", type=parse_count, default=0, metavar="N", help="end after N launches")
    add("--sync-every", type=parse_count, default=0, metavar="N", help="wait for the GPU after N launches")
    add("--memory", type=size, default=0, metavar="SIZE", help="device memory to hold")
    add("--alloc", choices=sorted(TAKERS), default="plain", help="how to take it (plain)")
    add(
        "--grow",
        type=size,
        default=0,
        metavar="SIZE",
        help="take SIZE more every 0.1 s, until refused, go on",
    )
    add("--device", type=int, default=0, metavar="N", help="which GPU, as CUDA counts (0)")
    add("--sim", action="store_true", help="use the simulated driver")
    add("--json", action="store_true", help="print one JSON object")


def settings_of(options: argparse.Namespace) -> WorkloadSettings:
    seconds = options.seconds
    if seconds is None:
        seconds = 0.0 if options.launches else DEFAULT_SECONDS
    return WorkloadSettings(
        kernel_ns=options.kernel,
        blocks=options.blocks,
        streams=options.streams,
        threads=options.threads,
        graph_kernels=options.graph,
        touch=options.touch,
        idle=options.idle,
        burst=options.burst,
        seconds=seconds,
        launches=options.launches,
        sync_every=options.sync_every,
        memory_bytes=options.memory,
        alloc=options.alloc,
        grow_bytes=options.grow,
        device=options.device,
    )


def run(options: argparse.Namespace) -> int:
    settings = settings_of(options)
    settings.check()
    driver = Driver(paths.simulated_driver() if options.sim else None)
    workload = Workload(driver, settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: workload.stop.set())
    data = summary(settings, workload.run())
    print(json.dumps(data) if options.json else describe(data))
    return 0
