# SPDX-License-Identifier: Apache-2.0
"""Run the built-in workload: kernels of a given length, memory of every kind, on a real or simulated GPU.

Examples:
  gpulimit load --seconds 10                          # one 500 us kernel after the other
  gpulimit load --kernel 50us --graph 20              # CUDA graphs of 20 kernels
  gpulimit load --memory 1GiB --touch                 # memory-bound work
  gpulimit load --burst 3ms/20ms --kernel 150us       # a request every 20 ms, with its latency
  gpulimit load --sim --memory 1GiB --alloc vmm --idle --seconds 60
  gpulimit run --memory 4GiB --compute 30 -- gpulimit load
  gpulimit load --ranks 2 --collective-every 8        # a job over two GPUs, whose kernels wait for each other
  gpulimit load --await 100                           # a kernel that waits for a later launch, 100 times

The kernels measure their own length by the GPU's clock.  If several streams or processes overlap, the shown
GPU time is the sum over kernels; use --touch to see real throughput.  At most ~8 ms of work is queued.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Callable

from limiter import paths
from limiter.cuda import Driver
from limiter.errors import UsageError
from limiter.units import parse_bytes, parse_ns
from limiter.workload.allocations import TAKERS
from limiter.workload.await_rounds import AwaitRounds, AwaitSettings, describe_rounds
from limiter.workload.job import Job
from limiter.workload.job_result import describe_job, job_summary
from limiter.workload.job_settings import ALLREDUCE, COLLECTIVES, PIPELINE, JobSettings
from limiter.workload.launcher import Workload
from limiter.workload.result import describe, summary
from limiter.workload.settings import Burst, WorkloadSettings

DEFAULT_SECONDS = 5.0


def option(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Make argparse show the parser's own message."""

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
    add(
        "--seconds", type=float, metavar="S", help=f"run time in seconds ({DEFAULT_SECONDS:g}, or --launches)"
    )
    add("--launches", type=parse_count, default=0, metavar="N", help="end after N launches")
    add("--sync-every", type=parse_count, default=0, metavar="N", help="wait for the GPU after N launches")
    add("--memory", type=size, default=0, metavar="SIZE", help="device memory to hold")
    add("--alloc", choices=sorted(TAKERS), default="plain", help="kind of that memory (plain)")
    add(
        "--grow",
        type=size,
        default=0,
        metavar="SIZE",
        help="allocate SIZE more every 0.1 s until refused, then go on",
    )
    add("--device", type=int, default=0, metavar="N", help="CUDA's index of the GPU (0)")
    add_job_arguments(parser)
    add_await_arguments(parser)
    add("--sim", action="store_true", help="use the simulated driver")
    add("--json", action="store_true", help="print one JSON object")


def parse_rank_variable(text: str) -> tuple[int, str, str]:
    rank, colon, assignment = text.partition(":")
    name, equals, value = assignment.partition("=")
    if not (rank.isdecimal() and colon and name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not RANK:NAME=VALUE")
    return int(rank), name, value


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    duration = option(parse_ns)
    add = parser.add_argument_group("a job of several processes, one per GPU from --device on").add_argument
    add("--ranks", type=parse_count, default=0, metavar="N", help="run N ranks; a step is their collective")
    add("--ranks-on-one-gpu", action="store_true", help="put all ranks on --device")
    add("--collective", choices=COLLECTIVES, help=f"how a step ends, none: ranks do not wait ({ALLREDUCE})")
    add("--collective-every", type=parse_count, default=1, metavar="K", help="kernels before it (1)")
    add(
        "--collective-time",
        type=duration,
        default=100_000,
        metavar="T",
        help="length of its transfer (100us)",
    )
    add(
        "--collective-timeout",
        type=duration,
        default=30_000_000_000,
        metavar="T",
        help="end with an error after so long without a step (30s)",
    )
    add(
        "--pipeline",
        action="store_true",
        help="no collective: each rank waits for the one before",
    )
    add("--ahead", type=duration, default=8_000_000, metavar="T", help="GPU time that a rank queues (8ms)")
    add("--steps", type=parse_count, default=0, metavar="N", help="end after N steps")
    add(
        "--rank-env",
        type=parse_rank_variable,
        action="append",
        default=[],
        metavar="RANK:NAME=VALUE",
        help="set a variable for one rank only",
    )


def add_await_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("a kernel that waits for a later launch").add_argument
    add("--await", dest="rounds", type=parse_count, default=0, metavar="R", help="do that R times")
    add(
        "--bail-out",
        type=option(parse_ns),
        default=2_000_000_000,
        metavar="T",
        help="the kernel gives up after so long (2s)",
    )


ALWAYS = {"kernel", "device", "sim", "json"}
OF_JOBS = {
    *("ranks", "ranks_on_one_gpu", "collective", "collective_every", "collective_time", "collective_timeout"),
    *("pipeline", "ahead", "steps", "rank_env"),
}
OF_ROUNDS = {"rounds", "bail_out"}


def refuse_others(options: argparse.Namespace) -> None:
    """Raise UsageError where an option is given that means nothing with --ranks, --await or neither."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    defaults = vars(parser.parse_args([]))
    given = [dest for dest, value in defaults.items() if getattr(options, dest) != value]
    if options.ranks:
        mode, known = "with --ranks", OF_JOBS | {"seconds"}
    elif options.rounds:
        mode, known = "with --await", OF_ROUNDS
    else:
        mode, known = "without --ranks or --await", set(defaults) - OF_JOBS - OF_ROUNDS
    if wrong := [dest for dest in given if dest not in known | ALWAYS]:
        name = "await" if wrong[0] == "rounds" else wrong[0].replace("_", "-")
        raise UsageError(f"--{name} means nothing {mode}")


def job_settings_of(options: argparse.Namespace) -> JobSettings:
    environ: dict[int, dict[str, str]] = {}
    for rank, name, value in options.rank_env:
        environ.setdefault(rank, {})[name] = value
    if options.pipeline and options.collective:
        raise UsageError("--pipeline and --collective exclude each other")
    if options.steps and options.seconds is not None:
        raise UsageError("--steps and --seconds exclude each other")
    seconds = options.seconds
    if seconds is None:
        seconds = 0.0 if options.steps else DEFAULT_SECONDS
    return JobSettings(
        ranks=options.ranks,
        mode=PIPELINE if options.pipeline else options.collective or ALLREDUCE,
        kernel_ns=options.kernel,
        kernels=options.collective_every,
        collective_ns=options.collective_time,
        seconds=seconds,
        steps=options.steps,
        ahead_ns=options.ahead,
        timeout_ns=options.collective_timeout,
        device=options.device,
        one_gpu=options.ranks_on_one_gpu,
        simulated=str(paths.simulated_driver()) if options.sim else "",
        environ=environ,
    )


def stop_on_signals(stop: threading.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())


def run_job(options: argparse.Namespace) -> int:
    settings = job_settings_of(options)
    settings.check()
    job = Job(settings)
    stop_on_signals(job.stop)
    data = job_summary(settings, job.run())
    print(json.dumps(data) if options.json else describe_job(data))
    return 0


def run_rounds(options: argparse.Namespace) -> int:
    settings = AwaitSettings(
        rounds=options.rounds,
        kernel_ns=options.kernel,
        bail_out_ns=options.bail_out,
        device=options.device,
    )
    rounds = AwaitRounds(Driver(paths.simulated_driver() if options.sim else None), settings)
    stop_on_signals(rounds.stop)
    data = rounds.run()
    print(json.dumps(data) if options.json else describe_rounds(settings, data))
    return 0


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
    refuse_others(options)
    if options.ranks:
        return run_job(options)
    if options.rounds:
        return run_rounds(options)
    settings = settings_of(options)
    settings.check()
    driver = Driver(paths.simulated_driver() if options.sim else None)
    workload = Workload(driver, settings)
    stop_on_signals(workload.stop)
    data = summary(settings, workload.run())
    print(json.dumps(data) if options.json else describe(data))
    return 0
