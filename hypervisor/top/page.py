# SPDX-License-Identifier: Apache-2.0
"""The lines around the lists, and a whole page of plain text for output that cannot be redrawn. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hypervisor.top.cluster_rows import cluster_head, cluster_rows, totals_lines, watts
from hypervisor.top.history import History
from hypervisor.top.model import NodeView, totals_of
from hypervisor.top.node_rows import node_head, node_rows, process_head, process_rows
from hypervisor.top.row import of_text
from hypervisor.top.table import Line, beside
from hypervisor.top.text import percent
from hypervisor.top.view_state import ViewState

TALL = 1 << 20


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def status_line(node: NodeView, view: ViewState, width: int, right: str = "") -> Line:
    """Return a node's totals in one line: as many as fit, the most important first."""
    totals = totals_of((node,))
    line = Line((" gpulimit top ", "title"), (f" {node.host} ", "strong"))
    if node.health in ("stale", "down"):
        line.add(f" {node.health.upper()} ", "bad")
    if not node.has_daemon:
        line.add(" no daemon ", "warn")
    if not node.sees_all:
        line.add(" your own tenants ", "warn")
    pieces = [
        (f" {counted(len(node.cards), 'GPU')}", ""),
        (f"  {counted(totals.tenants, 'tenant')}", ""),
        (f"  {totals.waiting} throttled" if totals.waiting else "", "warn"),
        (f"  {watts(totals)}", ""),
        (f"  util {percent(totals.utilization)}", ""),
        (f"  mem {of_text(totals.memory_bytes, totals.total_bytes)}", ""),
    ]
    for text, style in pieces if len(node.cards) > 1 else pieces[:3]:
        if line.width + len(text) + len(right) + 2 <= width:
            line.add(text, "warn" if style else "")
    return beside(line, Line((right + " ", "dim")), width, view.glyphs)


def cluster_line(nodes: Sequence[NodeView], view: ViewState, width: int, right: str = "") -> Line:
    line = Line((" gpulimit top ", "title"), (f" {counted(len(nodes), 'node')} ", "strong"))
    return beside(line, Line((right + " ", "dim")), width, view.glyphs)


def problem_lines(node: NodeView, view: ViewState, width: int) -> list[Line]:
    """Return a node's problems, wrapped to the width."""
    return [line for problem in node.problems for line in wrapped(problem, view, width)]


def wrapped(problem: str, view: ViewState, width: int) -> list[Line]:
    lines, text = [], ""
    for word in problem.split(" "):
        if text and len(text) + 1 + len(word) > width - 4:
            lines.append(text)
            text = word
        else:
            text = f"{text} {word}" if text else word
    lines.append(text)
    return [
        Line((" ! " if i == 0 else "   ", "warn"), (t, "warn")).fitted(width, view.glyphs)
        for i, t in enumerate(lines)
    ]


def page(
    nodes: Sequence[NodeView], view: ViewState, history: History, *, width: int, now_s: float
) -> list[Line]:
    """Return a whole page: the overview if there are many nodes, then each node."""
    lines: list[Line] = []
    if len(nodes) > 1:
        lines += [cluster_line(nodes, view, width)]
        lines += totals_lines(totals_of(tuple(nodes)), history, view, width)
        lines += [cluster_head(nodes, view, width)]
        lines += [row.line for row in cluster_rows(nodes, view, width=width, now_s=now_s)]
    for node in nodes:
        if len(nodes) > 1:
            lines.append(Line())
        lines += node_page(node, view, history, width)
    return lines


def node_page(node: NodeView, view: ViewState, history: History, width: int) -> list[Line]:
    lines = [status_line(node, view, width), *problem_lines(node, view, width)]
    rows = node_rows(node, view, history, width=width, height=TALL)
    if any(row.kind == "tenant" for row in rows):
        lines.append(node_head(node, view, width))
    lines += [row.line for row in rows]
    processes = process_rows(node, view, width) if view.has_processes else []
    if processes:
        lines += [Line(), process_head(view, width), *(row.line for row in processes)]
    return lines


def plain(lines: Sequence[Line]) -> str:
    """Return lines as plain text, without their styles."""
    return "\n".join(line.text.rstrip() for line in lines)
