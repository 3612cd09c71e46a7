# SPDX-License-Identifier: Apache-2.0
"""Formats text and numbers for cells of a terminal. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

MAX_CHARACTERS = 128
UNITS = ("", "K", "M", "G", "T", "P")


def clean(text: object, most: int = MAX_CHARACTERS) -> str:
    """Return text that is safe on one line of a terminal: each control character becomes "?"."""
    plain = str(text)[:most]
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else "?" for c in plain)


def width_of(text: str) -> int:
    """Return the number of cells that a text takes."""
    return len(text) if text.isascii() else sum(map(cells_of, text))


def cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Symbols of a terminal's character set."""

    blocks: str
    """Cells of a bar, from empty to full."""
    rest: str
    """Cell of the empty part of a bar."""
    sparks: str
    """Cells of a graph, from low to high."""
    ellipsis: str
    folded: str
    unfolded: str
    marked: str
    dot: str
    hollow: str
    due: str
    degree: str

    def bar(self, ratio: float | None, width: int) -> tuple[str, str]:
        """Return the full and the empty part of a bar of `width` cells."""
        steps = len(self.blocks) - 1
        part = min(1.0, max(0.0, ratio or 0.0))
        filled = round(part * width * steps)
        if part > 0:
            filled = max(1, filled)
        whole, more = divmod(filled, steps)
        full = self.blocks[-1] * whole + (self.blocks[more] if more else "")
        return full, self.rest * (width - len(full))

    def graph(self, values: Iterable[float | None], width: int) -> str:
        """Return the last `width` ratios as a graph, the newest on the right; None leaves a gap."""
        last = list(values)[-width:] if width > 0 else []
        top = len(self.sparks) - 1
        text = "".join(" " if v is None else self.sparks[min(top, max(0, int(v * (top + 1))))] for v in last)
        return text.rjust(max(0, width))

    def cut(self, text: str, width: int) -> str:
        """Return the text cut to `width` cells, with a mark where text is missing."""
        if width_of(text) <= width:
            return text
        kept, used = [], 0
        for character in text:
            used += cells_of(character)
            if used > width - 1:
                break
            kept.append(character)
        return "".join(kept) + self.ellipsis if width > 0 else ""

    def pad(self, text: str, width: int, align: str = "<") -> str:
        """Return the text cut or padded to exactly `width` cells."""
        short = self.cut(text, width)
        space = " " * (width - width_of(short))
        return space + short if align == ">" else short + space


UNICODE = Glyphs(" ▏▎▍▌▋▊▉█", "░", "▁▂▃▄▅▆▇█", "…", "▸", "▾", "▌", "●", "○", "┃", "°")
ASCII = Glyphs(" #", ".", "_.-=+*%#", "~", ">", "v", ">", "*", "o", "|", " ")


def percent(ratio: float | None, digits: int = 0) -> str:
    return "-" if ratio is None else f"{ratio * 100:.{digits}f}%"


def size(count: float | None) -> str:
    """Return bytes in at most five cells: 0, 512M, 34.2G, 1.5T."""
    if count is None:
        return "-"
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 1 if unit >= 3 and value < 99.95 else 0
    return f"{value:.{digits}f}{UNITS[unit]}"


def number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def duration(seconds: float | None) -> str:
    """Return a time in at most five cells: 0s, 90s, 4m, 3h, 2d."""
    if seconds is None:
        return "-"
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
