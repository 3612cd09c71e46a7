# SPDX-License-Identifier: Apache-2.0
"""Draws the demo: on a terminal a table that is redrawn in place, elsewhere a few plain lines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from limiter.demo.cast import Actor
from limiter.demo.stage import Look
from limiter.tenant_view import table
from limiter.units import show_bytes

HEADINGS = ("TENANT", "MEMORY", "QUOTA", "", "GPU TIME", "LIMIT", "", "REFUSED", "LAUNCHES")
BAR_CELLS = 20
COLUMNS_BESIDE_BARS = 65
"""A line that wraps could not be redrawn in place, so bars shrink on narrow terminals."""
ERASE_BELOW = "\033[J"


class Screen:
    """Where the demo is shown."""

    def __init__(self, output: TextIO = sys.stdout) -> None:
        self._output = output
        self._is_terminal = output.isatty()
        self._table_lines = 0
        room = shutil.get_terminal_size((120, 0)).columns - COLUMNS_BESIDE_BARS
        self._bar_cells = min(BAR_CELLS, max(0, room // 2))

    def say(self, text: str) -> None:
        """Print a line that stays, above the table."""
        self._erase()
        print(text, file=self._output, flush=True)

    def draw(self, actors: Sequence[Actor], looks: Sequence[Look], shares: Sequence[float]) -> None:
        """Show the table, in place of the last one on a terminal; nothing elsewhere (see `keep`)."""
        if self._is_terminal:
            self._erase()
            text = self._table(actors, looks, shares)
            print(text, file=self._output, flush=True)
            self._table_lines = text.count("\n") + 1

    def keep(self, actors: Sequence[Actor], looks: Sequence[Look], shares: Sequence[float]) -> None:
        """Show the table and leave it."""
        self._erase()
        print(self._table(actors, looks, shares), file=self._output, flush=True)

    def _table(self, actors: Sequence[Actor], looks: Sequence[Look], shares: Sequence[float]) -> str:
        lines = [line(*row, self._bar_cells) for row in zip(actors, looks, shares, strict=True)]
        return table(HEADINGS, lines)

    def _erase(self) -> None:
        if self._table_lines:
            self._output.write(f"\033[{self._table_lines}A\r{ERASE_BELOW}")
            self._table_lines = 0


def line(actor: Actor, look: Look, share: float, bar_cells: int) -> tuple[str, ...]:
    """Return one tenant's cells."""
    limit = actor.role.compute_percent
    return (
        actor.role.name,
        show_bytes(look.used_bytes),
        actor.role.memory,
        bar(look.used_bytes / look.limit_bytes if look.limit_bytes else 0.0, bar_cells),
        f"{share:.1%}",
        f"{limit}%",
        bar(share * 100 / limit, bar_cells),
        str(look.refused),
        f"{look.launches:,}",
    )


def bar(part: float, cells: int = BAR_CELLS) -> str:
    """Return how full something is, as a row of cells."""
    full = round(min(1.0, max(0.0, part)) * cells)
    return "#" * full + "." * (cells - full)
