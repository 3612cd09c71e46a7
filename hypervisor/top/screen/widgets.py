# SPDX-License-Identifier: Apache-2.0
"""Widgets that show lines: a fixed block, and a scrolling list with a cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from hypervisor.top.row import Row
from hypervisor.top.screen.theme import CHOSEN, PALETTES
from hypervisor.top.table import Line


def strip_of(line: Line, width: int, theme: str, base: Style, over: Style | None = None) -> Strip:
    """Return a line as a textual strip. `over`: style below the cells' own styles, for the cursor's line."""
    palette = PALETTES[theme]
    ground = base + over if over is not None else base
    segments = [Segment(text, ground + palette[style]) for text, style in line.cells]
    return Strip(segments).adjust_cell_length(width, ground).simplify()


class Fixed(Widget):
    """Block of lines that does not scroll. Its height is the number of lines."""

    DEFAULT_CSS = "Fixed { height: auto; width: 1fr; }"

    def __init__(self, *, id: str, theme: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.theme = theme
        self._lines: list[Line] = []

    def show(self, lines: Sequence[Line], theme: str) -> None:
        """Replace the lines. Nothing is drawn if nothing has changed."""
        is_other_height = len(lines) != len(self._lines)
        if lines == self._lines and theme == self.theme:
            return
        self._lines, self.theme = list(lines), theme
        self.display = bool(lines)
        self.refresh(layout=is_other_height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        return strip_of(self._lines[y], self.size.width, self.theme, self.rich_style)


class Rows(ScrollView, can_focus=True):
    """A list of rows with a cursor. The cursor stays on its object while rows are added and removed.

    The last column is reserved for the scroll bar, even if there is none.
    """

    DEFAULT_CSS = """
    Rows { scrollbar-size-vertical: 1; scrollbar-gutter: stable; overflow-x: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        # A binding, as for the other keys: keys typed at once then take effect in their order.
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """A row was double-clicked, or chosen with Enter."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    def __init__(self, *, id: str, theme: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.theme = theme
        self.rows: list[Row] = []
        self.cursor = 0

    @property
    def chosen(self) -> Row | None:
        """The row under the cursor. None if it is a note or there is no row."""
        row = self.rows[self.cursor] if 0 <= self.cursor < len(self.rows) else None
        return row if row is not None and row.kind != "note" else None

    def show(self, rows: Sequence[Row], theme: str) -> None:
        """Replace the rows. Only lines that have changed are drawn."""
        before, shown, at, shade = self.chosen, self.rows, self.cursor, self.theme
        self.rows, self.theme = list(rows), theme
        self.virtual_size = Size(self.size.width, len(rows))
        if before is not None:
            same = [i for i, row in enumerate(self.rows) if row.key == before.key]
            self.cursor = same[0] if same else self.cursor
        self.cursor = self._nearest(self.cursor, 1)
        if len(shown) != len(self.rows) or at != self.cursor or shade != theme:
            self.refresh()
            return
        top = self.scroll_offset.y
        for index in range(top, min(top + self.size.height, len(shown))):
            if shown[index].line != self.rows[index].line:
                self.refresh_lines(index)

    def choose(self, key: tuple[str, ...]) -> None:
        """Put the cursor on the row with this key, if there is one."""
        for index, row in enumerate(self.rows):
            if row.key == key:
                self._go(index)
                return

    def _can_stand(self, index: int) -> bool:
        if not 0 <= index < len(self.rows) or self.rows[index].kind == "note":
            return False
        return index == 0 or not self.rows[index - 1].has_more

    def _nearest(self, index: int, way: int) -> int:
        """Return the nearest row for the cursor from `index` on. Search in the direction `way` first."""
        index = max(0, min(len(self.rows) - 1, index))
        step = 1 if way >= 0 else -1
        for candidates in (range(index, len(self.rows) if step > 0 else -1, step), range(index, -1, -1)):
            for candidate in candidates:
                if self._can_stand(candidate):
                    return candidate
        return next((i for i in range(len(self.rows)) if self._can_stand(i)), 0)

    def _go(self, index: int) -> None:
        self.cursor = index
        last = index
        while last < len(self.rows) - 1 and self.rows[last].has_more:
            last += 1
        top, height = self.scroll_offset.y, self.size.height
        if index < top:
            # With the cursor on the first object, also show the notes above it.
            is_first = not any(self._can_stand(i) for i in range(index))
            self.scroll_to(y=0 if is_first else index, animate=False)
        elif last >= top + height:
            self.scroll_to(y=last - height + 1, animate=False)
        self.refresh()

    def action_move(self, steps: int) -> None:
        target = self._nearest(self.cursor + steps, steps)
        if target == self.cursor and abs(steps) == 1:
            target = self._nearest(self.cursor + 2 * steps, steps)  # over the second line of a card
        self._go(target if (target - self.cursor) * steps > 0 else self.cursor)

    def action_page(self, way: int) -> None:
        self.action_move(way * max(1, self.size.height - 1))

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        while index > 0 and index < len(self.rows) and self.rows[index - 1].has_more:
            index -= 1
        if self._can_stand(index):
            self._go(index)
            if event.chain == 2:
                self.post_message(self.Opened(self.rows[index]))

    def action_open(self) -> None:
        if self.chosen is not None:
            self.post_message(self.Opened(self.chosen))

    def render_line(self, y: int) -> Strip:
        index = y + self.scroll_offset.y
        width = self.size.width
        if index >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        first = index
        while first > 0 and self.rows[first - 1].has_more:
            first -= 1
        is_chosen = first == self.cursor and self.has_focus and self.rows[index].kind != "note"
        over = CHOSEN[self.theme] if is_chosen else None
        return strip_of(self.rows[index].line, width, self.theme, self.rich_style, over)
