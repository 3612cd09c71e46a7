# SPDX-License-Identifier: Apache-2.0
"""Draws the demo: on a terminal a table that is redrawn in place, elsewhere a plain line now and then."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from limiter.demo.sampler import UsageSample
from limiter.tenant_status import table
from limiter.units import show_bytes

HEADINGS = ("TENANT", "MEMORY", "QUOTA", "", "ENTITLED", "GPU TIME", "", "REFUSED", "LAUNCHES")
BAR_CELLS = 20
COLUMNS_BESIDE_BARS = 69
"""A line that wraps could not be redrawn in place, so bars shrink on narrow terminals."""
ERASE_BELOW = "\033[J"
LINE_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class DisplayRow:
    """One tenant at one moment; shares are parts of the GPU's time."""

    name: str
    memory: str
    look: UsageSample
    share: float
    entitled: float | None
    """Share that is due; None without a daemon."""


class Screen:
    """Terminal or log on which the demo is shown."""

    def __init__(self, output: TextIO = sys.stdout) -> None:
        self._output = output
        self._is_terminal = output.isatty()
        self._table_lines = 0
        self._began_s = time.monotonic()
        self._line_at_s = 0.0
        room = shutil.get_terminal_size((120, 0)).columns - COLUMNS_BESIDE_BARS
        self._bar_cells = min(BAR_CELLS, max(0, room // 2))

    def say(self, text: str) -> None:
        """Print a line that stays, above the table."""
        self._erase()
        print(text, file=self._output, flush=True)

    def draw(self, rows: Sequence[DisplayRow], note: str) -> None:
        """Show the current state: on a terminal the table, in place of the last one; elsewhere one line every
        two
        seconds.
        """
        now = time.monotonic()
        stamp = f"{now - self._began_s:5.1f} s"
        if self._is_terminal:
            self._erase()
            text = f"{self._table(rows)}\n{stamp}, {note}"
            print(text, file=self._output, flush=True)
            self._table_lines = text.count("\n") + 1
        elif now - self._line_at_s >= LINE_EVERY_S:
            self._line_at_s = now
            cells = " | ".join(plain(row) for row in rows)
            print(f"{stamp}  {cells} | {note}", file=self._output, flush=True)

    def keep(self, rows: Sequence[DisplayRow]) -> None:
        """Show the table, and keep it on the screen."""
        self._erase()
        print(self._table(rows), file=self._output, flush=True)

    def _table(self, rows: Sequence[DisplayRow]) -> str:
        return table(HEADINGS, [line(row, self._bar_cells) for row in rows])

    def _erase(self) -> None:
        if self._table_lines:
            self._output.write(f"\033[{self._table_lines}A\r{ERASE_BELOW}")
            self._table_lines = 0


def line(row: DisplayRow, bar_cells: int) -> tuple[str, ...]:
    """Return one tenant's cells."""
    look = row.look
    return (
        row.name,
        show_bytes(look.used_bytes),
        row.memory,
        bar(look.used_bytes / look.limit_bytes if look.limit_bytes else 0.0, bar_cells),
        "-" if row.entitled is None else f"{row.entitled:.1%}",
        f"{row.share:.1%}",
        bar(row.share, bar_cells),
        str(look.refused),
        f"{look.launches:,}",
    )


def plain(row: DisplayRow) -> str:
    """Return one tenant in a few words."""
    if not row.look.registered:
        return f"{row.name} -"
    due = "" if row.entitled is None else f" (due {row.entitled:.0%})"
    return f"{row.name} {row.share:.0%}{due}, {show_bytes(row.look.used_bytes)}"


def bar(part: float, cells: int = BAR_CELLS) -> str:
    """Return a fraction as a bar of cells."""
    full = round(min(1.0, max(0.0, part)) * cells)
    return "#" * full + "." * (cells - full)
