# SPDX-License-Identifier: Apache-2.0
"""Renders a node as lines: cards with their tenants, vGPUs and MIG devices, and processes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeVar

from hypervisor.top.card_rows import NO_MIG, card_rows, mig_row, vgpu_rows
from hypervisor.top.history import History
from hypervisor.top.model import CardView, NodeView, ProcessView, TenantView
from hypervisor.top.row import Row, percent_cell, size_cell
from hypervisor.top.table import Column, Line, Table, table_for
from hypervisor.top.tenant_rows import marks, tenant_table
from hypervisor.top.view_state import ViewState, cards_shown, processes_shown

T = TypeVar("T")


def node_rows(node: NodeView, view: ViewState, history: History, *, width: int, height: int) -> list[Row]:
    """Return the rows of cards, tenants, vGPUs and MIG instances, in compact form if `height` requires it."""
    if view.is_compact is not None:
        return rows_of(node, view, history, width, compact=view.is_compact)
    rows = rows_of(node, view, history, width, compact=False)
    return rows if len(rows) <= height else rows_of(node, view, history, width, compact=True)


def rows_of(node: NodeView, view: ViewState, history: History, width: int, *, compact: bool) -> list[Row]:
    table = tenant_table(node, width, view.glyphs)
    rows: list[Row] = []
    for card, here in cards_shown(node, view):
        rows += card_rows(node, card, view, history, width, compact=compact)
        if (node.host, card.uuid) in view.folded:
            continue
        rows += tenant_rows(node, card, card.uuid, here, table, width)
        rows += vgpu_rows(node, card, view, width)
        if card.mig_mode and not card.migs:
            rows.append(Row(NO_MIG))
        for mig in card.migs:
            rows.append(mig_row(node, card, mig, view, width))
            rows += tenant_rows(node, card, mig.key, here, table, width)
    if not rows:
        rows.append(Row(Line(("  " + nothing(node, view), "dim")).fitted(width, view.glyphs)))
    return rows


def tenant_rows(
    node: NodeView,
    card: CardView,
    uuid: str,
    here: Mapping[str, list[TenantView]],
    table: Table[TenantView],
    width: int,
) -> Iterator[Row]:
    """Yield a line for each tenant on a card or MIG device."""
    for tenant in here.get(uuid, ()):
        line = partial(fitted_row, table, tenant, width)
        yield Row(line, "tenant", node.host, card.uuid, tenant.key or tenant.name, part=uuid)


def fitted_row(table: Table[T], of: T, width: int) -> Line:
    return table.row(of).fitted(width, table.glyphs)


def nothing(node: NodeView, view: ViewState) -> str:
    if view.filter.text and node.cards:
        return f"nothing here matches {view.filter.text!r}"
    return {"new": "waiting for the first answer", "down": "nothing is known of it now"}.get(
        node.health, "no GPUs"
    )


def node_head(node: NodeView, view: ViewState, width: int) -> Line:
    """Return the titles of the tenants' columns."""
    return tenant_table(node, width, view.glyphs).head(marks(view)).fitted(width, view.glyphs)


def process_columns() -> tuple[Column[ProcessView], ...]:
    column = Column[ProcessView]
    return (
        column("PID", 8, lambda p: [(str(p.pid), "")], 0, ">"),
        column("USER", 8, lambda p: [(p.user or "-", "" if p.user else "dim")], 4, grows=4),
        column("GPU", 3, lambda p: [("?" if p.card_index is None else str(p.card_index), "")], 1, ">"),
        column(
            "TENANT",
            14,
            lambda p: [(p.tenant or "no quota", "" if p.tenant else "warn")],
            2,
            grows=6,
        ),
        column("MEMORY", 6, lambda p: [size_cell(p.memory_bytes)], 3, ">"),
        column("GOT", 6, lambda p: [percent_cell(p.got, 1)], 5, ">"),
        column("COMMAND", 12, lambda p: [(p.command, "")], 6, grows=500),
    )


def process_head(view: ViewState, width: int) -> Line:
    return table_for(process_columns(), width, view.glyphs).head().fitted(width, view.glyphs)


def process_rows(node: NodeView, view: ViewState, width: int) -> list[Row]:
    """Return the processes on the node's cards."""
    table = table_for(process_columns(), width, view.glyphs)
    return [
        Row(partial(fitted_row, table, p, width), "process", node.host, p.card, str(p.pid))
        for p in processes_shown(node, view)
    ]
