# SPDX-License-Identifier: Apache-2.0
"""A line of a list, and what it stands for. Pure."""

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
    """One line; a note stands for nothing and cannot be chosen."""

    made: Line | Callable[[], Line]
    """The line, or what makes it: of thousands, a screen shows a few."""
    kind: Kind = "note"
    host: str = ""
    card: str = ""
    name: str = ""
    """A tenant's key, a process's pid, or what tells instances apart."""
    part: str = ""
    """UUID of the MIG device that a tenant is on; of the card where it is on that."""
    has_more: bool = False
    """The next row belongs to the same thing."""

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
    """Return a bar; `mark` is a ratio that is marked in it."""
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
    """Return "34.2G/79.6G"."""
    return f"{size(part)}/{size(whole)}"


def percent_cell(ratio: float | None, digits: int = 0) -> Cell:
    return percent(ratio, digits), "dim" if ratio is None else ""


def size_cell(count: float | None) -> Cell:
    return size(count), "dim" if count is None else ""
