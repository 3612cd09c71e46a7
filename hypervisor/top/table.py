# SPDX-License-Identifier: Apache-2.0
"""Lines of cells with styles, and tables of them that fit a width. Pure.

A style is a name. The screen chooses its look. No information is shown by colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from hypervisor.top.text import Glyphs, width_of

Style = Literal["", "dim", "strong", "head", "title", "good", "warn", "bad", "util", "mem", "graph", "rest"]
STYLES: tuple[Style, ...] = (
    "", "dim", "strong", "head", "title", "good", "warn", "bad", "util", "mem", "graph", "rest",
)  # fmt: skip
Cell = tuple[str, Style]
T = TypeVar("T")


class Line:
    """Cells from left to right."""

    __slots__ = ("cells",)

    def __init__(self, *cells: Cell) -> None:
        self.cells: list[Cell] = [cell for cell in cells if cell[0]]

    def add(self, text: str, style: Style = "") -> Line:
        if text:
            self.cells.append((text, style))
        return self

    def extend(self, cells: Iterable[Cell]) -> Line:
        self.cells.extend(cell for cell in cells if cell[0])
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self.cells == other.cells

    __hash__ = None  # type: ignore[assignment]  # it can be added to

    @property
    def width(self) -> int:
        return sum(width_of(text) for text, _ in self.cells)

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.cells)

    def fitted(self, width: int, glyphs: Glyphs) -> Line:
        """Return the line cut or padded to exactly this width."""
        fit, room = Line(), width
        for text, style in self.cells:
            short = glyphs.cut(text, room)
            fit.add(short, style)
            room -= width_of(short)
            if room <= 0 or short != text:
                break
        return fit.add(" " * room)


def beside(left: Line, right: Line, width: int, glyphs: Glyphs) -> Line:
    """Return two lines as one of this width. The left one is cut if they do not fit."""
    room = max(0, width - right.width - 1)
    return Line(*left.fitted(room, glyphs).cells).add(" ").extend(right.cells).fitted(width, glyphs)


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column. `width`: cells without the gap. `rank`: columns of the highest rank are left out first."""

    title: str
    width: int
    cells: Callable[[T], Sequence[Cell]]
    rank: int = 0
    align: str = "<"
    grows: int = 0
    """Number of cells that may be added to the width if there is room."""


@dataclass(frozen=True)
class Table(Generic[T]):
    """The columns that fit, with their widths."""

    columns: tuple[tuple[Column[T], int], ...]
    glyphs: Glyphs
    indent: int = 0
    gap: int = field(default=1)

    def head(self, marks: dict[str, str] | None = None) -> Line:
        """Return the line of titles. `marks`: text behind a title, by title, to show the sort column."""
        line = Line((" " * self.indent, ""))
        for column, width in self.columns:
            title = column.title + (marks or {}).get(column.title, "")
            line.add(self.glyphs.pad(title, width, column.align), "head").add(" " * self.gap)
        return line

    def row(self, of: T, most: int | None = None) -> Line:
        """Return an object's line. `most`: number of columns from the left. None for all."""
        line = Line((" " * self.indent, ""))
        for column, width in self.columns[:most]:
            cell = Line(*column.cells(of))
            room = width - cell.width
            if room < 0:
                cell = cell.fitted(width, self.glyphs)
                room = 0
            if column.align == ">":
                line.add(" " * room).extend(cell.cells)
            else:
                line.extend(cell.cells).add(" " * room)
            line.add(" " * self.gap)
        return line


def table_for(
    columns: Sequence[Column[T]], width: int, glyphs: Glyphs, *, indent: int = 0, gap: int = 1
) -> Table[T]:
    """Return a table of the columns that fit. The remaining room goes to columns that can grow, in order."""
    room = width - indent
    chosen: list[Column[T]] = []
    for column in sorted(columns, key=lambda c: c.rank):
        if column.width + gap <= room:
            chosen.append(column)
            room -= column.width + gap
    kept = [column for column in columns if column in chosen]
    widths = []
    for column in kept:
        more = min(column.grows, room)
        room -= more
        widths.append(column.width + more)
    return Table(tuple(zip(kept, widths, strict=True)), glyphs, indent, gap)
