# SPDX-License-Identifier: Apache-2.0
"""Renders a card, its vGPUs and its MIG instances as lines. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from hypervisor.top.history import History
from hypervisor.top.model import CardView, Mig, NodeView, Vgpu, VgpuHostView
from hypervisor.top.row import Kind, Row, bar_cells, heat_style, memory_style, of_text
from hypervisor.top.table import Cell, Line, beside
from hypervisor.top.tenant_rows import INDENT
from hypervisor.top.text import Glyphs, duration, number, percent, size
from hypervisor.top.view_state import ViewState

RECENT_S = 24 * 3600.0
"""Time for which the last Xid of a card is shown."""
COMPACT_BAR = 8
WIDE = 150
SMALL_GRAPH = 8
SHORT_REASONS = {
    "sw_power_cap": "power cap",
    "hw_slowdown": "slowed down",
    "sw_thermal": "hot",
    "hw_thermal": "too hot",
    "hw_power_brake": "power brake",
    "sync_boost": "sync boost",
    "display_clocks": "display clocks",
}


def card_rows(
    node: NodeView, card: CardView, view: ViewState, history: History, width: int, *, compact: bool
) -> list[Row]:
    """Return a card's own rows: two lines, or one if `compact` is set."""
    is_folded = (node.host, card.uuid) in view.folded
    if compact:
        line = partial(compact_line, node, card, view, history, width, is_folded)
        return [Row(line, "card", node.host, card.uuid)]
    place: tuple[Kind, str, str] = "card", node.host, card.uuid
    return [
        Row(partial(title_line, node, card, view, history, width), *place, has_more=True),
        Row(partial(figures_line, node, card, view, history, width), *place),
    ]


def fold_mark(card: CardView, glyphs: Glyphs, *, is_folded: bool) -> str:
    if not (card.tenants or card.vgpus or card.migs):
        return " "
    return glyphs.folded if is_folded else glyphs.unfolded


def index_of(card: CardView) -> str:
    return "?" if card.index is None else str(card.index)


def flags(card: CardView, now_s: float) -> list[Cell]:
    """Return the cells of a card's faults and warnings, worst first."""
    cells: list[Cell] = []
    if card.is_lost:
        cells.append(("  LOST", "bad"))
    elif card.error:
        cells.append((f"  {card.error}", "bad"))
    if card.last_xid_at_s is not None and 0 <= now_s - card.last_xid_at_s < RECENT_S:
        numbers = ",".join(number for number, _ in card.xids) or "?"
        cells.append((f"  Xid {numbers} {duration(now_s - card.last_xid_at_s)} ago", "bad"))
    if card.ecc_uncorrected:
        cells.append((f"  {card.ecc_uncorrected} ECC", "bad"))
    if card.unregistered:
        cells.append((f"  {card.unregistered} no quota", "warn"))
    cells += [(f"  {SHORT_REASONS.get(reason, reason)}", "warn") for reason in card.held_down_by]
    return cells


def title_line(node: NodeView, card: CardView, view: ViewState, history: History, width: int) -> Line:
    is_folded = (node.host, card.uuid) in view.folded
    left = Line(
        (fold_mark(card, view.glyphs, is_folded=is_folded), "dim"),
        (f" GPU {index_of(card)} ", "title"),
        (f" {card.name or card.uuid}", "bad" if card.is_bad else "strong"),
    )
    folded = sum(len(tenants) for _, tenants in card.on_parts())
    if is_folded and folded:
        left.add(f"  {folded} tenants folded", "dim")
    left.extend(flags(card, time.time()))
    right = Line()
    graph = SMALL_GRAPH if width >= WIDE else 0
    if width >= WIDE:
        right.add(f"{card.uuid}   ", "dim")
        right.extend(promise_cells(card))
    power = view.glyphs.graph(history.relative(node.host, card.uuid, "power"), graph)
    heat = view.glyphs.graph(history.of(node.host, card.uuid, "heat"), graph)
    right.extend(reading_cells(card, view.glyphs, power, heat))
    return beside(left, right, width, view.glyphs)


def promise_cells(card: CardView) -> list[Cell]:
    """Return the cell of the GPU time and memory that quotas reserve."""
    if card.requested is None and card.reserved_bytes is None:
        return []
    return [(f"promised {percent(card.requested)} {size(card.reserved_bytes)}   ", "dim")]


def reading_cells(card: CardView, glyphs: Glyphs, power: str = "", heat: str = "") -> list[Cell]:
    """Return power and temperature, each with its graph if given, and the clock, at fixed columns."""
    clock = None if card.clock_hz is None else card.clock_hz / 1e6
    return [
        (f"{number(card.power_w)} W".rjust(7), "dim" if card.power_w is None else ""),
        (" " + power if power else "", "graph"),
        (f"{number(card.temperature_c)} {glyphs.degree}C".rjust(8), heat_style(card.temperature_c)),
        (" " + heat if heat else "", "graph"),
        ((f"{number(clock)} MHz" if clock else "").rjust(10), "dim"),
    ]


def figures_line(node: NodeView, card: CardView, view: ViewState, history: History, width: int) -> Line:
    """Return utilisation and memory, each with a bar and a graph of its history."""
    glyphs = view.glyphs
    fixed = len("  gpu 100% ") + len("  mem 34.2G/79.6G ") + 2
    room = max(0, width - fixed)
    bar = min(20, max(6, room // 5))
    graph = max(0, (room - 2 * bar) // 2)
    util, mem = card.utilization, card.memory_ratio
    line = Line(("  gpu ", "dim"), (percent(util).rjust(4) + " ", "" if util is not None else "dim"))
    line.extend(bar_cells(util, bar, "util", glyphs)).add(" ")
    line.add(glyphs.graph(history.of(node.host, card.uuid, "util"), graph), "graph")
    line.add("  mem ", "dim").add(of_text(card.memory_bytes, card.total_bytes).rjust(11) + " ")
    line.extend(bar_cells(mem, bar, memory_style(mem), glyphs)).add(" ")
    line.add(glyphs.graph(history.of(node.host, card.uuid, "mem"), graph), "graph")
    return line.fitted(width, glyphs)


def compact_line(
    node: NodeView, card: CardView, view: ViewState, history: History, width: int, is_folded: bool
) -> Line:
    """Return the only line of a compact card."""
    glyphs = view.glyphs
    util, mem = card.utilization, card.memory_ratio
    right = Line((percent(util).rjust(5) + " ", "" if util is not None else "dim"))
    right.extend(bar_cells(util, COMPACT_BAR, "util", glyphs)).add(" ")
    if width >= 70:
        right.add(glyphs.graph(history.of(node.host, card.uuid, "util"), min(40, (width - 60) // 2)), "graph")
    right.add(of_text(card.memory_bytes, card.total_bytes).rjust(12) + " ")
    right.extend(bar_cells(mem, COMPACT_BAR, memory_style(mem), glyphs))
    right.add(f"{number(card.power_w)}W".rjust(6))
    right.add(f"{number(card.temperature_c)}{glyphs.degree}".rjust(5), heat_style(card.temperature_c))
    left = Line((fold_mark(card, glyphs, is_folded=is_folded), "dim"), (f" {index_of(card)} ", "title"))
    name: Cell = (f" {card.name.removeprefix('NVIDIA ')}", "bad" if card.is_bad else "strong")
    wrong = flags(card, time.time())
    is_roomy = left.width + Line(name, *wrong).width < width - right.width
    # If the name and all flags do not fit, the flags come before the name.
    first = [(text.removeprefix(" "), style) for text, style in wrong[:1]]
    left.extend([name, *wrong] if is_roomy else [*first, *wrong[1:], name])
    return beside(left, right, width, glyphs)


def vgpu_rows(node: NodeView, card: CardView, view: ViewState, width: int) -> Iterator[Row]:
    """Yield a line about the card's vGPU hosting and a line per vGPU. Yield nothing if it hosts no vGPUs."""
    if card.vgpu_host is None and not card.vgpus:
        return
    host = card.vgpu_host or VgpuHostView()
    words = [word for word in (host.mode, host.policy, f"ARR {host.arr}" if host.arr else "") if word]
    if host.timeslice_s:
        words.append(f"slice {host.timeslice_s * 1000:g} ms")
    words.append("1 instance" if len(card.vgpus) == 1 else f"{len(card.vgpus)} instances")
    title = Line((" " * INDENT, ""), ("vGPU  ", "head"), ("  ".join(words), "dim"))
    yield Row(title.fitted(width, view.glyphs))
    for vgpu in card.vgpus:
        line = partial(vgpu_line, vgpu, view.glyphs, width)
        yield Row(line, "vgpu", node.host, card.uuid, vgpu.key)


def instance_figures(
    utilization: float | None, used: float | None, total: float | None, glyphs: Glyphs
) -> list[Cell]:
    ratio = None if used is None or not total else used / total
    return [
        (percent(utilization).rjust(5) + " ", "dim" if utilization is None else ""),
        *bar_cells(utilization, COMPACT_BAR, "util", glyphs),
        (of_text(used, total).rjust(13) + " ", ""),
        *bar_cells(ratio, COMPACT_BAR, memory_style(ratio), glyphs),
    ]


def vgpu_line(vgpu: Vgpu, glyphs: Glyphs, width: int) -> Line:
    mark, style = (glyphs.hollow, "dim") if vgpu.is_active is False else (glyphs.dot, "good")
    line = Line((" " * INDENT, ""))
    line.add(mark, "good" if style == "good" else "dim").add(" ")
    line.add(glyphs.pad(vgpu.type or vgpu.key, 20), "strong").add(" ")
    line.extend(instance_figures(vgpu.utilization, vgpu.memory_bytes, vgpu.total_bytes, glyphs))
    line.add("  vm ", "dim").add(glyphs.cut(vgpu.vm or "-", max(8, min(36, width - 70))))
    if vgpu.licence and vgpu.licence not in ("licensed", "1"):
        line.add(f"  {vgpu.licence}", "warn")
    if vgpu.driver and width >= WIDE:
        line.add(f"  driver {vgpu.driver}", "dim")
    return line.fitted(width, glyphs)


NO_MIG = Line((" " * INDENT, ""), ("MIG", "head"), ("  on, no instances", "dim"))


def mig_row(node: NodeView, card: CardView, mig: Mig, view: ViewState, width: int) -> Row:
    """Return the row of a MIG device."""
    return Row(partial(mig_line, mig, view.glyphs, width), "mig", node.host, card.uuid, mig.key)


def mig_line(mig: Mig, glyphs: Glyphs, width: int) -> Line:
    line = Line((" " * INDENT, ""), ("MIG ", "head"))
    line.add(glyphs.pad(mig.profile or mig.key, 18), "strong").add(" ")
    line.extend(instance_figures(mig.utilization, mig.memory_bytes, mig.total_bytes, glyphs))
    numbers = [f"gi {mig.gpu_instance}" if mig.gpu_instance else "", f"ci {mig.compute_instance}"]
    line.add("  " + " ".join(n for n in numbers if n.strip() != "ci"), "dim")
    return line.fitted(width, glyphs)
