# SPDX-License-Identifier: Apache-2.0
"""The command line of `gpulimit top`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hypervisor.scraper.address import PORT, url_of
from hypervisor.scraper.errors import AddressError
from hypervisor.top.view_state import EVERYTHING, SORTS, Filter, FilterError, filter_of
from limiter.errors import UsageError

EPILOG = """
examples:
  gpulimit top
  gpulimit top --once --json | jq '.nodes[].cards[] | {index, utilization}'
  gpulimit top --hosts gpu-a1:9402,gpu-a2:9402
  gpulimit top --hostfile /etc/gpulimit/nodes --filter 'util>90'

exit status of --once: 0 everything was read; 1 nothing was read; 2 the command line is invalid; 3 a node or a
card did not answer, or there is no daemon.
"""
MAX_HOSTS = 4096
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 3600.0


@dataclass(frozen=True, slots=True)
class TopOptions:
    """Parsed command line."""

    is_once: bool = False
    form: str = "text"
    hosts: tuple[str, ...] = ()
    """Addresses in the form that is shown; empty for this node."""
    interval_s: float | None = None
    filter: Filter = EVERYTHING
    sort: str = "name"
    theme: str = "auto"
    is_ascii: bool = False
    is_simulated: bool = False
    width: int | None = None


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpulimit top",
        description="Watch cards and tenants, of this node or of many.",
        epilog=EPILOG.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--once", action="store_true", help="print one reading and end")
    add("--json", action="store_true", help="with --once: one JSON object")
    add("--csv", action="store_true", help="with --once: a table of comma-separated values")
    add("--hosts", metavar="H:P,…", help=f"other nodes, by the address of their metrics (port {PORT})")
    add("--hostfile", metavar="F", help="file with such addresses, one per line; # begins a comment")
    add("--interval", type=float, metavar="S", help="seconds between two readings (1; more for many nodes)")
    add("--filter", default="", metavar="TEXT", help="show only matches: words, user:bob, util>90, !idle")
    add("--sort", choices=SORTS, default="name", help="order of tenants (name)")
    add(
        "--theme",
        choices=("auto", "dark", "light", "ansi"),
        default="auto",
        help="colours; ansi: the terminal's own (auto)",
    )
    add("--ascii", action="store_true", help="draw with ASCII characters only")
    add("--width", type=int, metavar="N", help="with --once: width of the text (that of the terminal)")
    add("--sim", action="store_true", help="without a daemon, read the simulated GPU")
    return parser


def options_of(arguments: Sequence[str]) -> TopOptions:
    """Return the options. Raises UsageError."""
    told = build_parser().parse_args(list(arguments))
    if told.json and told.csv:
        raise UsageError("top: --json and --csv exclude each other")
    if (told.json or told.csv) and not told.once:
        raise UsageError("top: --json and --csv go with --once")
    if told.interval is not None and not MIN_INTERVAL_S <= told.interval <= MAX_INTERVAL_S:
        raise UsageError(
            f"top: --interval: {told.interval:g} is not within {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g} s"
        )
    if told.width is not None and not 20 <= told.width <= 10_000:
        raise UsageError(f"top: --width: {told.width} is not within 20 to 10000")
    try:
        wanted = filter_of(told.filter)
    except FilterError as error:
        raise UsageError(f"top: --filter: {error}") from error
    return TopOptions(
        is_once=told.once,
        form="json" if told.json else "csv" if told.csv else "text",
        hosts=hosts_of(told.hosts, told.hostfile),
        interval_s=told.interval,
        filter=wanted,
        sort=told.sort,
        theme=told.theme,
        is_ascii=told.ascii,
        is_simulated=told.sim,
        width=told.width,
    )


def hosts_of(listed: str | None, hostfile: str | None) -> tuple[str, ...]:
    """Return the addresses without duplicates. Raises UsageError, which names the place of a bad address."""
    found: dict[str, None] = {}
    for position, text in enumerate((listed or "").split(","), 1) if listed is not None else ():
        found[address_of(text.strip(), f"--hosts, entry {position}")] = None
    if hostfile is not None:
        try:
            lines = Path(hostfile).read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError) as error:
            raise UsageError(f"top: --hostfile {hostfile}: {error}") from error
        for number, line in enumerate(lines, 1):
            text = line.partition("#")[0].strip()
            if text:
                found[address_of(text, f"{hostfile}, line {number}")] = None
    if (listed is not None or hostfile is not None) and not found:
        raise UsageError("top: no host is named")
    if len(found) > MAX_HOSTS:
        raise UsageError(f"top: {len(found)} hosts are more than {MAX_HOSTS}")
    return tuple(found)


def address_of(text: str, where: str) -> str:
    """Return an address in the form that is shown, without the default port and path."""
    try:
        url = url_of(text)
    except AddressError as error:
        raise UsageError(f"top: {where}: {text[:80]!a}: {error.why}") from error
    host = f"[{url.host}]" if ":" in str(url.host) else str(url.host)
    shown = host if url.port == PORT else f"{host}:{url.port}"
    return f"https://{shown}" if url.scheme == "https" else shown
