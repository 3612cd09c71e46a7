# SPDX-License-Identifier: Apache-2.0
"""The line of tabs, the line of keys, and the table of all keys for the help dialog. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypervisor.top.model import NodeView
from hypervisor.top.table import Line, Style
from hypervisor.top.text import Glyphs, width_of

OVERVIEW = ""
"""Name of the tab of all nodes. Every other tab has its node's name."""
SIGNS: dict[str, tuple[str, Style]] = {"stale": ("~", "warn"), "down": ("x", "bad"), "new": ("?", "dim")}


@dataclass(frozen=True, slots=True)
class Key:
    """A key and its effect. `hint`: its text in the line of keys. If empty, the key is not in that line."""

    keys: str
    does: str
    hint: str = ""
    is_for_many: bool = False
    is_for_node: bool = False
    is_change: bool = False


KEYS = (
    Key("↑ ↓ j k PgUp PgDn Home End", "move; the mouse and its wheel also work"),
    Key("Tab", "move to the processes, or back"),
    Key("← → [ ]", "other node", "node", is_for_many=True),
    Key("Enter", "on a node: show it; on a card: fold or unfold it"),
    Key("Esc", "back to all nodes; drop the filter"),
    Key("/", "filter: words, `user:bob`, `util>90`, `mem>=80`, `state:waits`, `!idle`", "filter"),
    Key(
        "s",
        "sort by name, share, memory, time waited; nodes by name, load, memory, temperature, state",
        "sort",
    ),
    Key("z", "suspend the tenant: its launches wait", "suspend", is_for_node=True, is_change=True),
    Key("r", "resume the tenant", "resume", is_for_node=True, is_change=True),
    Key("e", "change the tenant's quota", "quota", is_for_node=True, is_change=True),
    Key("i", "reverse the order", "invert"),
    Key("c", "cards in two lines, in one line, or as many lines as fit", "compact", is_for_node=True),
    Key("f", "fold or unfold the card", "fold", is_for_node=True),
    Key("p", "processes on or off", "procs", is_for_node=True),
    Key("a", "also tenants and processes on cards where they hold nothing and never ran"),
    Key("Space", "pause the screen, or continue", "pause"),
    Key("+ -", "refresh more often, or less often"),
    Key("t", "dark or light"),
    Key("? h F1", "these keys", "help"),
    Key("q", "quit", "quit"),
)


def shown_tabs(nodes: Sequence[NodeView], selected: str, width: int) -> list[tuple[str, Line]]:
    """Return the tabs that fit the width: the selected one and its neighbours."""
    tabs = [(OVERVIEW, tab("all", None, is_selected=selected == OVERVIEW))]
    tabs += [(n.host, tab(n.host, n.health, is_selected=selected == n.host)) for n in nodes]
    at = next((i for i, (name, _) in enumerate(tabs) if name == selected), 0)
    first = last = at
    room = width - tabs[at][1].width - 4
    while first > 0 or last < len(tabs) - 1:
        grown = False
        for index in (last + 1, first - 1):
            if 0 <= index < len(tabs) and tabs[index][1].width <= room:
                room -= tabs[index][1].width
                first, last, grown = min(first, index), max(last, index), True
        if not grown:
            break
    shown = tabs[first : last + 1]
    if first > 0:
        shown.insert(0, (tabs[first - 1][0], Line(("‹ ", "dim"))))
    if last < len(tabs) - 1:
        shown.append((tabs[last + 1][0], Line((" ›", "dim"))))
    return shown


def tab(name: str, health: str | None, *, is_selected: bool) -> Line:
    sign, style = SIGNS.get(health or "", ("", ""))
    return Line((f" {name}{sign} ", "title" if is_selected else style or "dim"))


def tabs_line(nodes: Sequence[NodeView], selected: str, width: int, glyphs: Glyphs) -> Line:
    line = Line()
    for _, one in shown_tabs(nodes, selected, width):
        line.extend(one.cells)
    return line.fitted(width, glyphs)


def tab_at(nodes: Sequence[NodeView], selected: str, width: int, x: int) -> str | None:
    """Return the tab that is at a column."""
    for name, one in shown_tabs(nodes, selected, width):
        if x < one.width:
            return name
        x -= one.width
    return None


def keys_line(
    width: int, glyphs: Glyphs, *, has_many: bool, may_change: bool, is_overview: bool = False
) -> Line:
    """Return the line of the keys that have an effect here. Keys that do not fit are left out, except help
    and quit.
    """
    wanted = [
        key
        for key in KEYS
        if key.hint
        and (has_many or not key.is_for_many)
        and (may_change or not key.is_change)
        and not (is_overview and key.is_for_node)
    ]
    always = wanted[-2:]
    line, room = Line(), width - sum(hint_width(key) for key in always)
    for key in wanted[:-2]:
        if hint_width(key) <= room:
            room -= hint_width(key)
            add_hint(line, key)
    for key in always:
        add_hint(line, key)
    return line.fitted(width, glyphs)


def sign_of(key: Key) -> str:
    return {"← → [ ]": "←→", "? h F1": "?"}.get(key.keys, key.keys)


def hint_width(key: Key) -> int:
    return width_of(sign_of(key)) + len(key.hint) + 3


def add_hint(line: Line, key: Key) -> None:
    line.add(f" {sign_of(key)}", "head").add(f" {key.hint} ", "dim")
