# SPDX-License-Identifier: Apache-2.0
"""The interactive screen: reads the nodes periodically, keeps the user's choices and draws the lines."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.timer import Timer
from textual.widgets import Input

from hypervisor.top.bars import OVERVIEW, keys_line, tab_at, tabs_line
from hypervisor.top.cluster_rows import cluster_head, cluster_rows, totals_lines
from hypervisor.top.cpu_budget import CpuBudget
from hypervisor.top.history import History
from hypervisor.top.model import NodeView, totals_of
from hypervisor.top.node_rows import node_head, node_rows, process_head, process_rows
from hypervisor.top.options import MAX_INTERVAL_S, MIN_INTERVAL_S, TopOptions
from hypervisor.top.page import cluster_line, problem_lines, status_line
from hypervisor.top.row import Row
from hypervisor.top.screen.actions import Changes
from hypervisor.top.screen.dialogs import Help
from hypervisor.top.screen.theme import TEXTUAL_THEMES, guess, themes
from hypervisor.top.screen.widgets import Fixed, Rows
from hypervisor.top.source import NodeSource
from hypervisor.top.table import Line
from hypervisor.top.text import duration
from hypervisor.top.view_state import EVERYTHING, NODE_SORTS, SORTS, FilterError, ViewState, filter_of

MAX_PROBLEM_LINES = 4
SCROLL_BAR = 1
ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
ENDING_S = 3.0
QUIET_S = 0.2
"""The screen is drawn once the terminal's size has not changed for this time."""
MAX_RESIZING_S = 10.0
"""Time between two drawings while the size keeps changing. One drawing costs as much CPU as several readings.
"""
NODE_WAITING = NodeView(host="", health="new")


class TopApp(Changes, App[None]):
    """`gpulimit top` on a terminal."""

    CSS_PATH = Path(__file__).with_name("app.tcss")
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", show=False),
        Binding("ctrl+z", "suspend_process", show=False),
        Binding("question_mark,h,f1", "help", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "up", show=False),
        Binding("s", "sort", show=False),
        Binding("i", "invert", show=False),
        Binding("c", "compact", show=False),
        Binding("f", "fold", show=False),
        Binding("p", "processes", show=False),
        Binding("a", "all", show=False),
        Binding("space", "pause", show=False),
        Binding("plus,equals_sign", "faster", show=False),
        Binding("minus", "slower", show=False),
        Binding("t", "theme", show=False),
        Binding("left,left_square_bracket", "tab(-1)", show=False),
        Binding("right,right_square_bracket", "tab(1)", show=False),
        Binding("z", "suspend", show=False),
        Binding("r", "resume", show=False),
        Binding("e", "quota", show=False),
    ]

    def __init__(self, source: NodeSource, options: TopOptions, view: ViewState) -> None:
        self.palette = guess(os.environ) if options.theme == "auto" else options.theme
        super().__init__(ansi_color=True if self.palette == "ansi" else None)
        for theme in themes():
            self.register_theme(theme)
        self.theme = TEXTUAL_THEMES[self.palette]
        self.source = source
        self.view = view
        self.nodes: tuple[NodeView, ...] = ()
        self.history = History()
        self.tab = OVERVIEW
        self.has_many = bool(options.hosts)
        self.interval_s = options.interval_s
        self.is_paused = False
        self._go = asyncio.Event()
        self._usual_s = source.interval_s
        self._budget = CpuBudget()
        self._is_disturbed = False
        """True if a key or a resize of the terminal has cost CPU time since the last reading."""
        self._resized_at_s = 0.0
        self._held: events.Resize | None = None
        self._release: Timer | None = None

    def compose(self) -> ComposeResult:
        for name in ("status", "tabs", "totals", "problems", "head"):
            yield Fixed(id=name, theme=self.palette)
        yield Rows(id="main", theme=self.palette)
        yield Fixed(id="process-head", theme=self.palette)
        yield Rows(id="processes", theme=self.palette)
        yield Input(
            id="filter",
            placeholder="words, user:bob, util>90, !idle; Enter keeps it, Esc drops it",
            compact=True,
        )
        yield Fixed(id="keys", theme=self.palette)

    def on_load(self) -> None:
        """End on these signals as on the quit key, so that the terminal is restored."""
        loop = asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, self.end_by, number)

    def end_by(self, number: int) -> None:
        """End with the status of a program that a signal has ended."""
        self.exit(return_code=128 + number)
        # The terminal may be gone and refuse output. The program ends all the same.
        asyncio.get_running_loop().call_later(ENDING_S, os._exit, 128 + number)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.query_one("#main").focus()
        self.draw()
        self.watch_nodes()

    # ---- reading ----

    @work(exclusive=True, group="nodes")
    async def watch_nodes(self) -> None:
        """Read the nodes periodically until the task is cancelled."""
        try:
            while True:
                begin = time.monotonic()
                self.take(await self.source.read())
                if self.interval_s is None:
                    self.source.interval_s = self._budget.interval_s(
                        self._usual_s, time.process_time(), is_disturbed=self._is_disturbed
                    )
                self._is_disturbed = False
                spent_s = time.monotonic() - begin
                # A slow reading lengthens the interval, so that top is idle at least half of the time.
                pause_s = max(spent_s, (self.interval_s or self.source.interval_s) - spent_s)
                self._go.clear()
                try:
                    async with asyncio.timeout(max(0.05, pause_s)):
                        await self._go.wait()
                except TimeoutError:
                    continue
        finally:
            await self.source.close()

    def look_now(self) -> None:
        """Read the nodes now, after a change."""
        self._go.set()

    def take(self, nodes: tuple[NodeView, ...]) -> None:
        """Show a new reading, unless the screen is paused."""
        self.history.note(nodes, totals_of(nodes))
        if not self.is_paused:
            self.nodes = nodes
            self.draw()

    @property
    def shown(self) -> NodeView | None:
        """The node that is shown; None if all are."""
        if not self.has_many:
            return self.nodes[0] if self.nodes else NODE_WAITING
        return next((node for node in self.nodes if node.host == self.tab), None)

    # ---- drawing ----

    def fixed(self, name: str, lines: list[Line]) -> None:
        self.query_one(f"#{name}", Fixed).show(lines, self.palette)

    def draw(self) -> None:
        """Draw the whole screen."""
        try:
            self._draw()
        except NoMatches:
            return  # the screen is not mounted yet, or already closed

    def _draw(self) -> None:
        width, node = self.size.width, self.shown
        glyphs = self.view.glyphs
        self.fixed("tabs", [tabs_line(self.nodes, self.tab, width, glyphs)] if self.has_many else [])
        may_change = node is not None and node.may_change
        keys = keys_line(
            width, glyphs, has_many=self.has_many, may_change=may_change, is_overview=node is None
        )
        self.fixed("keys", [keys])
        if node is None:
            self._draw_all(width)
        else:
            self._draw_node(node, width)

    def _draw_all(self, width: int) -> None:
        totals = totals_of(self.nodes)
        self.fixed("status", [cluster_line(self.nodes, self.view, width, self.clock())])
        self.fixed("totals", totals_lines(totals, self.history, self.view, width))
        self.fixed("problems", [])
        self.fixed("head", [cluster_head(self.nodes, self.view, width - SCROLL_BAR)])
        rows = cluster_rows(self.nodes, self.view, width=width - SCROLL_BAR, now_s=self.now_s())
        self.query_one("#main", Rows).show(rows, self.palette)
        self._show_processes([], [])

    def _draw_node(self, node: NodeView, width: int) -> None:
        view, room = self.view, width - SCROLL_BAR
        problems = problem_lines(node, view, width)[:MAX_PROBLEM_LINES]
        processes = process_rows(node, view, room) if view.has_processes else []
        process_height = self._process_height(len(processes))
        fixed = 3 + len(problems) + int(self.has_many) + (process_height + 1 if process_height else 0)
        rows = node_rows(node, view, self.history, width=room, height=max(1, self.size.height - fixed))
        self.fixed("status", [status_line(node, view, width, self.clock())])
        self.fixed("totals", [])
        self.fixed("problems", problems)
        has_tenants = any(row.kind == "tenant" for row in rows)
        self.fixed("head", [node_head(node, view, room)] if has_tenants else [])
        self.query_one("#main", Rows).show(rows, self.palette)
        self._show_processes([process_head(view, room)], processes if process_height else [])

    def _process_height(self, count: int) -> int:
        """Return the number of process lines to show: all, but at most a third of the screen."""
        return min(count, self.size.height // 3) if self.size.height >= 14 else 0

    def _show_processes(self, head: list[Line], rows: list[Row]) -> None:
        listed = self.query_one("#processes", Rows)
        listed.display = bool(rows)
        listed.styles.height = max(1, self._process_height(len(rows)))
        listed.show(rows, self.palette)
        self.fixed("process-head", head if rows else [])
        if not rows and listed.has_focus:
            self.query_one("#main").focus()

    def now_s(self) -> float:
        return time.monotonic()

    def clock(self) -> str:
        """Return filter, interval and time of day, for the right end of the first line."""
        words = [f"filter: {self.view.filter.text}"] if self.view.filter.text else []
        interval_s = self.interval_s or self.source.interval_s
        words.append(
            "PAUSED"
            if self.is_paused
            else f"every {interval_s:g}s"
            if interval_s < 2
            else f"every {duration(interval_s)}"
        )
        words.append(time.strftime("%H:%M:%S"))
        return "  ".join(words)

    async def on_event(self, event: events.Event) -> None:
        """Hold resize events back while the size keeps changing: textual lays out everything at each one."""
        self._is_disturbed |= isinstance(event, events.Key | events.Resize)
        if not isinstance(event, events.Resize):
            await super().on_event(event)
        elif self._may_resize(event):
            await super().on_event(event)  # from here on `size` is the new one
            self.draw()

    def _may_resize(self, event: events.Resize) -> bool:
        """Return True if this size is to be drawn now. If not, set a timer that posts the event again after
        QUIET_S without a newer one.
        """
        now_s = time.monotonic()
        left_s = self._resized_at_s + MAX_RESIZING_S - now_s
        is_first = self._release is None and now_s - self._resized_at_s > QUIET_S
        if event is self._held or is_first or left_s <= 0:
            self._forget_held()
            self._resized_at_s = now_s
            return True
        self._forget_held()
        self._held = event
        self._release = self.set_timer(min(QUIET_S, left_s), lambda: self.post_message(event))
        return False

    def _forget_held(self) -> None:
        if self._release is not None:
            self._release.stop()
        self._held = self._release = None

    def change(self, **changed: object) -> None:
        """Change view settings and draw the screen."""
        self.view = replace(self.view, **changed)  # type: ignore[arg-type]
        self.draw()

    # ---- keys ----

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_sort(self) -> None:
        name, order = ("node_sort", NODE_SORTS) if self.shown is None else ("sort", SORTS)
        now = order.index(getattr(self.view, name))
        self.change(**{name: order[(now + 1) % len(order)]})

    def action_invert(self) -> None:
        self.change(is_reversed=not self.view.is_reversed)

    def action_compact(self) -> None:
        following = {None: False, False: True, True: None}
        self.change(is_compact=following[self.view.is_compact])

    def action_processes(self) -> None:
        self.change(has_processes=not self.view.has_processes)

    def action_all(self) -> None:
        self.change(has_all=not self.view.has_all)

    def action_pause(self) -> None:
        self.is_paused = not self.is_paused
        self.draw()

    def action_faster(self) -> None:
        self._set_interval((self.interval_s or self.source.interval_s) / 2)

    def action_slower(self) -> None:
        self._set_interval((self.interval_s or self.source.interval_s) * 2)

    def _set_interval(self, seconds: float) -> None:
        self.interval_s = min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, seconds))
        self.look_now()

    def action_theme(self) -> None:
        if self.palette == "ansi":
            return  # the terminal's own colours are neither light nor dark
        self.palette = "light" if self.palette == "dark" else "dark"
        self.theme = TEXTUAL_THEMES[self.palette]
        self.draw()

    def action_fold(self) -> None:
        row = self.query_one("#main", Rows).chosen
        if row is not None and row.card:
            place = row.host, row.card
            self.change(folded=self.view.folded ^ {place})
            self.query_one("#main", Rows).choose(("card", *place, "", ""))

    def action_tab(self, way: int) -> None:
        if self.has_many:
            names = [OVERVIEW, *(node.host for node in self.nodes)]
            at = names.index(self.tab) if self.tab in names else 0
            self.go_to(names[(at + way) % len(names)])

    def go_to(self, tab: str) -> None:
        was, self.tab = self.tab, tab
        self.query_one("#main").focus()
        self.draw()
        if tab == OVERVIEW:
            self.query_one("#main", Rows).choose(("node", was, "", "", ""))

    def action_up(self) -> None:
        if self.view.filter.text:
            self.change(filter=EVERYTHING)
        elif self.has_many and self.tab != OVERVIEW:
            self.go_to(OVERVIEW)

    @on(Rows.Opened)
    def open_row(self, event: Rows.Opened) -> None:
        if event.row.kind == "node":
            self.go_to(event.row.host)
        elif event.row.kind == "card":
            self.action_fold()

    def on_click(self, event: events.Click) -> None:
        if event.widget is not None and event.widget.id == "tabs":
            tab = tab_at(self.nodes, self.tab, self.size.width, event.x)
            if tab is not None:
                self.go_to(tab)

    # ---- the filter ----

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = self.view.filter.text
        box.focus()

    @on(Input.Changed, "#filter")
    def try_filter(self, event: Input.Changed) -> None:
        try:
            self.change(filter=filter_of(event.value))
        except FilterError:
            return  # the filter is not complete yet

    @on(Input.Submitted, "#filter")
    def keep_filter(self, event: Input.Submitted) -> None:
        try:
            self.change(filter=filter_of(event.value))
        except FilterError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self._close_filter()

    def on_key(self, event: events.Key) -> None:
        box = self.query_one("#filter", Input)
        if event.key == "escape" and box.has_focus:
            event.stop()
            self.change(filter=EVERYTHING)
            self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter").display = False
        self.query_one("#main").focus()
