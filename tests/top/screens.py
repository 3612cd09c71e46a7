# SPDX-License-Identifier: Apache-2.0
"""The screen without a terminal: driven by textual's Pilot, and read back as text and colours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rich.color import Color
from rich.style import Style
from textual.pilot import Pilot

from hypervisor.top.model import NodeView
from hypervisor.top.options import TopOptions
from hypervisor.top.screen.app import TopApp
from hypervisor.top.view_state import ViewState

Story = Callable[[TopApp, Pilot[Any]], Awaitable[None]]
CLOCK = "every 1s  12:00:00"
NOW_S = 1000.0


class Given:
    """Nodes that stay as they are until the test says otherwise."""

    interval_s = 3600.0

    def __init__(self, *nodes: NodeView) -> None:
        self.nodes = nodes
        self.looks = 0
        self.is_closed = False

    async def read(self) -> tuple[NodeView, ...]:
        self.looks += 1
        return self.nodes

    async def close(self) -> None:
        self.is_closed = True


class StillApp(TopApp):
    """The screen with the clock standing still."""

    def now_s(self) -> float:
        return NOW_S

    def clock(self) -> str:
        words = super().clock().split("  ")
        return "  ".join([*words[:-2], CLOCK] if not self.is_paused else words[:-1])


def play(
    story: Story,
    *nodes: NodeView,
    size: tuple[int, int] = (80, 24),
    options: TopOptions | None = None,
    look: ViewState | None = None,
    source: Any = None,
    app_class: type[TopApp] = StillApp,
) -> TopApp:
    """Run the screen for as long as the story takes."""
    app = app_class(source or Given(*nodes), options or TopOptions(theme="dark"), look or ViewState())

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await story(app, pilot)

    asyncio.run(run())
    return app


def strips_of(app: TopApp) -> list[Any]:
    return app.screen._compositor.render_strips()


def text_of(app: TopApp) -> str:
    """Return what is on the screen."""
    return "\n".join(strip.text.rstrip() for strip in strips_of(app))


def styles_of(app: TopApp) -> dict[tuple[str, str], str]:
    """Return (text, background) colours of all that is shown, each with an example."""
    found: dict[tuple[str, str], str] = {}
    for strip in strips_of(app):
        for segment in strip:
            if segment.text.strip() and segment.style is not None:
                found.setdefault(colours_of(segment.style), segment.text.strip())
    return found


def colours_of(style: Style) -> tuple[str, str]:
    pair = name_of(style.color), name_of(style.bgcolor)
    return (pair[1], pair[0]) if style.reverse else pair


def name_of(color: Color | None) -> str:
    if color is None or color.is_default:
        return "default"
    return color.get_truecolor().hex


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it, 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
