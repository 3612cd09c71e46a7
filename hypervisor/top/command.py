# SPDX-License-Identifier: Apache-2.0
"""`gpulimit top`: chooses the source of the figures and the form of the output."""

from __future__ import annotations

import asyncio
import importlib.util
import locale
import os
import shutil
import sys
import time
from collections.abc import Sequence

from hypervisor.top import batch as once
from hypervisor.top.fleet import Fleet
from hypervisor.top.history import History
from hypervisor.top.local import Local
from hypervisor.top.model import NodeView, totals_of
from hypervisor.top.options import TopOptions, options_of
from hypervisor.top.page import page, plain
from hypervisor.top.share_window import APART_S
from hypervisor.top.source import NodeSource
from hypervisor.top.text import ASCII, UNICODE
from hypervisor.top.view_state import ViewState
from limiter import about
from limiter.errors import GpulimitError, NotInstalled, UsageError

INSTALL = about.install_command("top")


def source_of(options: TopOptions) -> NodeSource:
    if options.hosts:
        return Fleet(options.hosts, interval_s=options.interval_s)
    return Local(is_simulated=options.is_simulated, period_s=options.interval_s or 1.0)


def view_of(options: TopOptions) -> ViewState:
    is_plain = options.is_ascii or "utf" not in locale.getpreferredencoding(False).lower()
    return ViewState(sort=options.sort, filter=options.filter, glyphs=ASCII if is_plain else UNICODE)


def width_of_terminal(options: TopOptions) -> int:
    return options.width or shutil.get_terminal_size((120, 24)).columns


async def read_once(source: NodeSource) -> tuple[NodeView, ...]:
    """Return one reading with shares: the local node is read twice for them."""
    try:
        if isinstance(source, Fleet):
            return await source.read_once()
        nodes = await source.read()
        if any(node.cards for node in nodes):
            await asyncio.sleep(APART_S)
            nodes = await source.read()
        return nodes
    finally:
        await source.close()


def show(nodes: Sequence[NodeView], options: TopOptions) -> str:
    if options.form == "json":
        return once.as_json(nodes, at_s=time.time())
    if options.form == "csv":
        return once.as_csv(nodes).rstrip("\n")
    history = History()
    history.note(nodes, totals_of(tuple(nodes)))
    lines = page(nodes, view_of(options), history, width=width_of_terminal(options), now_s=time.monotonic())
    return plain(lines)


async def print_for_ever(source: NodeSource, options: TopOptions) -> None:
    """Print a page per period. For terminals that cannot be redrawn."""
    try:
        while True:
            print(show(await source.read(), options) + "\n", flush=True)
            await asyncio.sleep(source.interval_s)
    finally:
        await source.close()


def run(options: TopOptions) -> int:
    source = source_of(options)
    if options.is_once:
        nodes = asyncio.run(read_once(source))
        print(show(nodes, options))
        return once.exit_status(nodes)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top: input or output is not a terminal; `gpulimit top --once` prints one reading")
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        asyncio.run(print_for_ever(source, options))
        return 0
    if importlib.util.find_spec("textual") is None:
        raise NotInstalled(
            f"top: the screen needs textual, which is not installed: {INSTALL} brings it; "
            "`gpulimit top --once` works without it"
        )
    from hypervisor.top.screen.app import TopApp

    app = TopApp(source, options, view_of(options))
    app.run()
    return app.return_code or 0


def main(arguments: Sequence[str]) -> int:
    try:
        return run(options_of(arguments))
    except GpulimitError as error:
        print(f"gpulimit: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
