# SPDX-License-Identifier: Apache-2.0
"""Renders a card's tenants as rows of a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hypervisor.top.model import NodeView, TenantView
from hypervisor.top.row import bar_cells, memory_style, percent_cell, size_cell
from hypervisor.top.table import Cell, Column, Style, Table, table_for
from hypervisor.top.text import Glyphs, duration, number, width_of
from hypervisor.top.view_state import ViewState

INDENT = 4
BAR, MEMORY_BAR, GANG = 10, 8, 12
MIN_NAME, SURE_NAME, MAX_NAME = 12, 24, 48
"""Bounds of the name column. Its width is that of the longest name. It exceeds SURE_NAME only if there is
room."""
TITLES = {"name": "TENANT", "share": "GOT", "memory": "MEMORY", "waited": "WAITED"}
NOW_STYLES: dict[str, Style] = {
    "runs": "good",
    "waits": "warn",
    "waits mem": "warn",
    "suspended": "warn",
    "idle": "dim",
}
IN_GANG = "&"
"""Mark behind the activity of a tenant in a gang."""
MARKED = ("runs", "waits", "idle")
"""Activities that leave room for the mark."""
STATE_STYLES: dict[str, Style] = {"off": "bad", "degraded": "warn", "standalone": "dim"}


def now_cell(tenant: TenantView) -> Cell:
    """Return the cell of a tenant's activity. If its limits are not enforced, the cell shows that instead."""
    if tenant.enforcement == "off":
        return "UNLIMITED", "bad"
    if tenant.problem or tenant.enforcement == "degraded":
        return "degraded", "bad"
    style = NOW_STYLES.get(tenant.now, "dim")
    return (f"{tenant.now} {IN_GANG}" if tenant.gang and tenant.now in MARKED else tenant.now), style


def throttled_cell(tenant: TenantView) -> Cell:
    if tenant.is_throttled is None:
        return "-", "dim"
    return ("yes", "warn") if tenant.is_throttled else ("no", "dim")


def limit_cell(tenant: TenantView) -> Cell:
    if tenant.limit_percent is None or tenant.limit_percent >= 100:
        return "-", "dim"
    return number(tenant.limit_percent, "%"), ""


def memory_ratio(tenant: TenantView) -> float | None:
    if tenant.memory_bytes is None or not tenant.quota_bytes:
        return None
    return tenant.memory_bytes / tenant.quota_bytes


def memory_cell(tenant: TenantView) -> Cell:
    text, style = size_cell(tenant.memory_bytes)
    return text, "bad" if tenant.is_over_quota else style


def count_cell(count: float | None, style: Style = "") -> Cell:
    return (number(count), style) if count else ("-", "dim")


def denied_cell(tenant: TenantView) -> Cell:
    return count_cell(tenant.denied, "warn")


def share_bar(tenant: TenantView, width: int, glyphs: Glyphs) -> Sequence[Cell]:
    return bar_cells(tenant.got, width, "util", glyphs, mark=tenant.due)


def columns(glyphs: Glyphs, longest: int, longest_gang: int) -> Sequence[Column[TenantView]]:
    """Return all columns, from left to right. `longest`: width of the longest tenant name.

    `longest_gang`: width of the longest gang name. If it is 0, no tenant is in a gang and there is no column.
    """
    name = min(MAX_NAME, max(MIN_NAME, longest))
    column = Column[TenantView]
    return (
        column(
            "TENANT",
            min(name, SURE_NAME),
            lambda t: [(t.name, "strong" if t.now == "runs" else "")],
            0,
            grows=max(0, name - SURE_NAME),
        ),
        column("NOW", 9, lambda t: [now_cell(t)], 1),
        column("GOT", 6, lambda t: [percent_cell(t.got, 1)], 2, ">"),
        column("DUE", 6, lambda t: [percent_cell(t.due, 1)], 3, ">"),
        column("SHARE", BAR, lambda t: share_bar(t, BAR, glyphs), 8),
        column("LIMIT", 5, lambda t: [limit_cell(t)], 9, ">"),
        column("MEMORY", 7, lambda t: [memory_cell(t)], 4, ">"),
        column("QUOTA", 6, lambda t: [size_cell(t.quota_bytes)], 5, ">"),
        column(
            "FULL",
            MEMORY_BAR,
            lambda t: bar_cells(memory_ratio(t), MEMORY_BAR, memory_style(memory_ratio(t)), glyphs),
            10,
        ),
        column("THROT", 5, lambda t: [throttled_cell(t)], 6),
        column("WAITED", 7, lambda t: [(duration(t.waited_s), "" if t.waited_s else "dim")], 12, ">"),
        column("REFUSED", 7, lambda t: [denied_cell(t)], 11, ">"),
        column("REQ", 4, lambda t: [count_cell(t.request_percent)], 14, ">"),
        column("WEIGHT", 6, lambda t: [count_cell(t.weight)], 15, ">"),
        column("PRIO", 6, lambda t: [(t.priority or "-", "" if t.priority else "dim")], 16),
        column("STATE", 10, lambda t: [(t.enforcement or "-", STATE_STYLES.get(t.enforcement, ""))], 13),
        column("SOURCE", 11, lambda t: [(t.source or "-", "")], 17),
        *gang_columns(longest_gang),
        column("PROCS", 5, lambda t: [count_cell(t.processes)], 18, ">"),
        column("USER", 10, lambda t: [(t.user or "-", "" if t.user else "dim")], 19, grows=6),
        column("COMMAND", 10, lambda t: [(t.command or t.problem, "dim")], 20, grows=20),
    )


def gang_columns(longest: int) -> Sequence[Column[TenantView]]:
    """Return the column of gangs, or nothing if `longest` is 0."""
    if not longest:
        return ()
    width = min(GANG, longest)
    grows = min(MAX_NAME, longest) - width
    return (Column("GANG", width, lambda t: [(t.gang or "-", "" if t.gang else "dim")], 10, grows=grows),)


def tenant_table(node: NodeView, width: int, glyphs: Glyphs) -> Table[TenantView]:
    longest = max((width_of(tenant.name) for _, tenant in node.tenants()), default=0)
    gang = max((width_of(tenant.gang) for _, tenant in node.tenants()), default=0)
    return table_for(columns(glyphs, longest, gang), width, glyphs, indent=INDENT)


def marks(view: ViewState) -> dict[str, str]:
    """Return the mark behind the title of the sort column."""
    is_up = (view.sort == "name") is not view.is_reversed
    arrows = ("▲", "▼") if view.glyphs.due != "|" else ("^", "v")
    return {TITLES[view.sort]: arrows[0] if is_up else arrows[1]}
