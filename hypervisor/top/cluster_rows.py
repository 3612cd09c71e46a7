# SPDX-License-Identifier: Apache-2.0
"""Renders many nodes as lines: their totals, and a line per node. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hypervisor.top.history import History, ratio
from hypervisor.top.model import CardView, ClusterTotals, NodeView, totals_of
from hypervisor.top.row import Row, bar_cells, heat_style, memory_style, of_text
from hypervisor.top.table import Cell, Column, Line, Style, Table, table_for
from hypervisor.top.text import Glyphs, duration, number, percent, width_of
from hypervisor.top.view_state import ViewState, nodes_shown

BAR = 8
HEALTH_STYLES: dict[str, Style] = {
    "up": "good", "partial": "warn", "stale": "warn", "down": "bad", "new": "dim",
}  # fmt: skip
MAX_STRIPS = 16
MIN_NAME, SURE_NAME, MAX_NAME = 8, 20, 48


def totals_lines(totals: ClusterTotals, history: History, view: ViewState, width: int) -> list[Line]:
    """Return the totals of all nodes in two lines."""
    glyphs = view.glyphs
    first = Line((f" {totals.up} up", "good"))
    first.add(f"  {totals.stale} stale", "warn" if totals.stale else "dim")
    first.add(f"  {totals.down} down", "bad" if totals.down else "dim")
    first.add("  GPUs ", "dim").add(str(totals.cards))
    first.add(f" ({totals.bad_cards} bad)" if totals.bad_cards else "", "bad")
    first.add("  tenants ", "dim").add(str(totals.tenants))
    first.add(f" ({totals.waiting} throttled)" if totals.waiting else "", "warn")
    first.add(f"  no quota {totals.unregistered}" if totals.unregistered else "", "warn")
    mem = ratio(totals.memory_bytes, totals.total_bytes)
    fixed = Line((f" util 100%   mem {'9' * 11}    {watts(totals)}  hottest 100 °C ", "")).width
    room = max(0, width - fixed)
    bar, graph = min(16, max(4, room // 6)), 0
    graph = max(0, (room - 2 * bar) // 2 - 2)
    second = Line((" util ", "dim"), (percent(totals.utilization).rjust(4) + " ", ""))
    second.extend(bar_cells(totals.utilization, bar, "util", glyphs)).add(" ")
    second.add(glyphs.graph(history.of("", "util"), graph), "graph")
    second.add("  mem ", "dim").add(of_text(totals.memory_bytes, totals.total_bytes).rjust(11) + " ")
    second.extend(bar_cells(mem, bar, memory_style(mem), glyphs)).add(" ")
    second.add(glyphs.graph(history.of("", "mem"), graph), "graph")
    second.add(f"  {watts(totals)}").add("  hottest ", "dim")
    second.add(f"{number(totals.hottest_c)} {glyphs.degree}C", heat_style(totals.hottest_c))
    return [first.fitted(width, glyphs), second.fitted(width, glyphs)]


def watts(totals: ClusterTotals) -> str:
    if totals.power_w is None:
        return "- W"
    return f"{totals.power_w / 1000:.1f} kW" if totals.power_w >= 1000 else f"{totals.power_w:.0f} W"


def strip(cards: Sequence[CardView], glyphs: Glyphs) -> list[Cell]:
    """Return a symbol per card: its utilisation, or x if the card is lost or does not answer."""
    cells: list[Cell] = []
    for card in cards[:MAX_STRIPS]:
        if card.is_bad:
            cells.append(("x", "bad"))
        elif card.utilization is None:
            cells.append(("?", "dim"))
        else:
            cells.append((glyphs.graph([card.utilization], 1), "util"))
    return cells


def mean_cells(values: Sequence[float | None], style: Style, glyphs: Glyphs) -> list[Cell]:
    known = [v for v in values if v is not None]
    mean = sum(known) / len(known) if known else None
    shade = memory_style(mean) if style == "mem" else style
    return [(percent(mean).rjust(4) + " ", "" if known else "dim"), *bar_cells(mean, BAR, shade, glyphs)]


def waiting(node: NodeView) -> int:
    return len({tenant.name for _, tenant in node.tenants() if tenant.is_throttled})


def tenants(node: NodeView) -> int:
    return len({tenant.name for _, tenant in node.tenants()})


def bad(count: int, style: Style) -> list[Cell]:
    return [(str(count), style) if count else ("-", "dim")]


def power_cell(node: NodeView) -> Cell:
    power = totals_of((node,)).power_w
    return number(power, "W"), "" if power is not None else "dim"


def heat_cell(node: NodeView) -> Cell:
    hottest = totals_of((node,)).hottest_c
    return number(hottest), heat_style(hottest)


def age_cell(node: NodeView, now_s: float) -> Cell:
    if not node.at_s:
        return "-", "dim"
    return duration(max(0.0, now_s - node.at_s)), "warn" if node.health in ("stale", "down") else "dim"


def node_columns(nodes: Sequence[NodeView], glyphs: Glyphs, now_s: float) -> tuple[Column[NodeView], ...]:
    column = Column[NodeView]
    name = min(MAX_NAME, max((width_of(node.host) for node in nodes), default=0))
    most = min(MAX_STRIPS, max((len(node.cards) for node in nodes), default=0))
    return (
        column(
            "NODE",
            max(MIN_NAME, min(SURE_NAME, name)),
            lambda n: [(n.host, "strong")],
            0,
            grows=max(0, name - SURE_NAME),
        ),
        column("STATE", 7, lambda n: [(n.health, HEALTH_STYLES[n.health])], 1),
        column("GPUS", max(4, min(8, most)), lambda n: strip(n.cards, glyphs), 3, grows=max(0, most - 8)),
        column("UTIL", 5 + BAR, lambda n: mean_cells([c.utilization for c in n.cards], "util", glyphs), 2),
        column("MEMORY", 5 + BAR, lambda n: mean_cells([c.memory_ratio for c in n.cards], "mem", glyphs), 4),
        column("POWER", 6, lambda n: [power_cell(n)], 7, ">"),
        column("TEMP", 5, lambda n: [heat_cell(n)], 5, ">"),
        column("TENANTS", 7, lambda n: bad(tenants(n), ""), 8, ">"),
        column("THROT", 5, lambda n: bad(waiting(n), "warn"), 9, ">"),
        column("NOQUOTA", 7, lambda n: bad(sum(c.unregistered or 0 for c in n.cards), "warn"), 10, ">"),
        column("AGE", 4, lambda n: [age_cell(n, now_s)], 6, ">"),
        column("PROBLEM", 20, lambda n: [("; ".join(n.problems), "warn")], 8, grows=500),
    )


TITLES = {"name": "NODE", "util": "UTIL", "memory": "MEMORY", "temp": "TEMP", "state": "STATE"}


def cluster_head(nodes: Sequence[NodeView], view: ViewState, width: int) -> Line:
    table = table_for(node_columns(nodes, view.glyphs, 0.0), width, view.glyphs, indent=1)
    arrow = "^" if view.glyphs.due == "|" else "▲"
    down = "v" if view.glyphs.due == "|" else "▼"
    is_up = (view.node_sort in ("name", "state")) is not view.is_reversed
    return table.head({TITLES[view.node_sort]: arrow if is_up else down}).fitted(width, view.glyphs)


def node_line(table: Table[NodeView], node: NodeView) -> Line:
    """Return a node's line. If no cards are known, the reason is shown across their columns."""
    if node.cards or not node.problems:
        return table.row(node)
    return table.row(node, most=2).add("; ".join(node.problems), "warn")


def cluster_rows(nodes: Sequence[NodeView], view: ViewState, *, width: int, now_s: float) -> list[Row]:
    """Return a row per node."""
    table = table_for(node_columns(nodes, view.glyphs, now_s), width, view.glyphs, indent=1)
    rows = [
        Row(node_line(table, node).fitted(width, view.glyphs), "node", node.host)
        for node in nodes_shown(nodes, view)
    ]
    if rows:
        return rows
    text = f"nothing matches {view.filter.text!r}" if view.filter.text else "no nodes"
    return [Row(Line(("  " + text, "dim")).fitted(width, view.glyphs))]
