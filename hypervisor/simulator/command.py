# SPDX-License-Identifier: Apache-2.0
"""The command line of `gpulimit sim`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from typing import cast

from hypervisor.exporter.compat import ALIASES
from hypervisor.simulator.server import serve
from hypervisor.simulator.spec import CARDS, FAULTS, MAX_CARDS, TENANTS, Fault, Plan, mixed
from limiter.errors import UsageError

EPILOG = """
faults:
{faults}

examples:
  gpulimit sim node --port 9500
  gpulimit sim node --port 9500 --gpus 4 --mig --faults stranger
  gpulimit sim node --port 9500 --nodes 20 --mix      # and then: gpulimit top --hosts ...
"""
MAX_NODES = 1000
MAX_PORT = 65535
MAX_TENANTS = 32


def build_parser() -> argparse.ArgumentParser:
    width = max(map(len, FAULTS))
    faults = "\n".join(f"  {name:<{width}}  {text}" for name, text in FAULTS.items())
    parser = argparse.ArgumentParser(prog="gpulimit sim", description="Simulated nodes.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="node")
    node = commands.add_parser(
        "node",
        help="serve the metrics of simulated nodes",
        description="Serve the metrics of one or many simulated nodes, with invented values.",
        epilog=EPILOG.format(faults=faults).strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = node.add_argument
    add(
        "--port",
        type=int,
        required=True,
        metavar="N",
        help="port of the first node; the other nodes use the following ports",
    )
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    add("--nodes", type=int, default=1, metavar="N", help="number of nodes (1)")
    add("--name", default="sim", metavar="TEXT", help="beginning of the nodes' names (sim)")
    add("--gpus", type=int, default=CARDS, metavar="N", help=f"cards per node ({CARDS})")
    add("--tenants", type=int, default=TENANTS, metavar="N", help=f"tenants per card ({TENANTS})")
    add("--vgpu", action="store_true", help="the cards are shared among virtual machines")
    add("--mig", action="store_true", help="every second card is in MIG mode")
    add("--mix", action="store_true", help="different nodes, some with MIG or vGPUs, a few with faults")
    add("--faults", default="", metavar="NAME,...", help="comma-separated faults, see below")
    add(
        "--metrics-compat",
        default="",
        metavar="NAME,...",
        help=f"also serve the names of other exporters: {', '.join(ALIASES)}",
    )
    return parser


def plans_of(told: argparse.Namespace) -> list[Plan]:
    """Return the nodes. Raises UsageError."""
    for name, value, most in (
        ("--nodes", told.nodes, MAX_NODES),
        ("--gpus", told.gpus, MAX_CARDS),
        ("--tenants", told.tenants, MAX_TENANTS),
        ("--port", told.port, MAX_PORT - told.nodes + 1),
    ):
        if not 1 <= value <= most:
            raise UsageError(f"sim node: {name}: {value} is not between 1 and {most}")
    if told.vgpu and told.mig:
        raise UsageError("sim node: --vgpu and --mig: a card is one or the other")
    faults = frozenset(cast(Fault, name.strip()) for name in told.faults.split(",") if name.strip())
    for fault in sorted(faults - FAULTS.keys()):
        raise UsageError(f"sim node: --faults: {fault!r} is none of {', '.join(FAULTS)}")
    names = [told.name if told.nodes == 1 else f"{told.name}-{place:02}" for place in range(told.nodes)]
    plain = Plan("", told.gpus, told.tenants, told.vgpu, told.mig, faults)
    if told.mix:
        return [mixed(name, place, plain) for place, name in enumerate(names)]
    return [Plan(name, told.gpus, told.tenants, told.vgpu, told.mig, faults) for name in names]


def compat_of(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in ALIASES:
            raise UsageError(f"sim node: --metrics-compat: {name!r} is none of {', '.join(ALIASES)}")
    return names


async def run(plans: Sequence[Plan], host: str, port: int, compat: Sequence[str]) -> None:
    """Serve until a signal."""
    told, stopping = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    serving = asyncio.create_task(serve(plans, host, port, compat, told), name="serve")
    waiting = [asyncio.create_task(event.wait()) for event in (told, stopping)]
    await asyncio.wait([serving, *waiting], return_when=asyncio.FIRST_COMPLETED)
    if told.is_set():
        hosts = ",".join(f"{host}:{port + place}" for place in range(len(plans)))
        print(hosts, flush=True)
        print(f"{len(plans)} simulated: gpulimit top --hosts {hosts}", file=sys.stderr, flush=True)
        await asyncio.wait([serving, waiting[1]], return_when=asyncio.FIRST_COMPLETED)
    for task in (*waiting, *([serving] if stopping.is_set() else [])):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def main(arguments: Sequence[str]) -> int:
    """`gpulimit sim`."""
    told = build_parser().parse_args(list(arguments))
    try:
        plans, compat = plans_of(told), compat_of(told.metrics_compat)
        asyncio.run(run(plans, told.host, told.port, compat))
    except UsageError as error:
        print(f"gpulimit {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        last = told.port + told.nodes - 1
        print(
            f"gpulimit sim node: cannot listen on {told.host}:{told.port}-{last}: {error.strerror}",
            file=sys.stderr,
        )
        return 1
    return 0
