# SPDX-License-Identifier: Apache-2.0
"""A line of a list, and the object that it shows. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hypervisor.top.table import Cell, Line, Style
from hypervisor.top.text import Glyphs, percent, size

Kind = Literal["note", "card", "tenant", "vgpu", "mig", "process", "node"]
FULL, NEARLY_FULL = 0.97, 0.90
HOT_C, WARM_C = 87.0, 80.0


@dataclass(slots=True)
class Row:
    """One line. A note shows no object and cannot be selected."""

    made: Line | Callable[[], Line]
    """The line, or a function that makes it at its first use: a screen shows only a few of thousands."""
    kind: Kind = "note"
    host: str = ""
    card: str = ""
    name: str = ""
    """A tenant's key, a process's pid, or the key of a vGPU or MIG instance."""
    part: str = ""
    """UUID of the MIG device or card that a tenant is on."""
    has_more: bool = False
    """True if the next row shows the same object."""

    @property
    def line(self) -> Line:
        if not isinstance(self.made, Line):
            self.made = self.made()
        return self.made

    @property
    def key(self) -> tuple[str, ...]:
        return self.kind, self.host, self.card, self.name, self.part


def bar_cells(
    ratio: float | None, width: int, style: Style, glyphs: Glyphs, *, mark: float | None = None
) -> list[Cell]:
    """Return the cells of a bar. `mark`: a ratio to mark in the bar. None for no mark."""
    full, rest = glyphs.bar(ratio, width)
    if ratio is None:
        return [(" " * width, "")]
    if mark is None:
        return [(full, style), (rest, "rest")]
    at = min(width - 1, max(0, int(mark * width)))
    if at < len(full):
        return [(full[:at], style), (glyphs.due, "strong"), (full[at + 1 :], style), (rest, "rest")]
    at -= len(full)
    return [(full, style), (rest[:at], "rest"), (glyphs.due, "strong"), (rest[at + 1 :], "rest")]


def memory_style(ratio: float | None) -> Style:
    if ratio is None or ratio < NEARLY_FULL:
        return "mem"
    return "bad" if ratio >= FULL else "warn"


def heat_style(celsius: float | None) -> Style:
    if celsius is None:
        return "dim"
    return "bad" if celsius >= HOT_C else "warn" if celsius >= WARM_C else ""


def of_text(part: float | None, whole: float | None) -> str:
    """Return two sizes in bytes as text, as in "34.2G/79.6G"."""
    return f"{size(part)}/{size(whole)}"


def percent_cell(ratio: float | None, digits: int = 0) -> Cell:
    return percent(ratio, digits), "dim" if ratio is None else ""


def size_cell(count: float | None) -> Cell:
    return size(count), "dim" if count is None else ""
