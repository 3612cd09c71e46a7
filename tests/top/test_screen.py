# SPDX-License-Identifier: Apache-2.0
"""The screen as it is kept in tests/golden/top, and what keys do to it.

`GPULIMIT_RENEW_GOLDEN=1` writes the golden screens anew, those of docs/top.md with them; look at them.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hypervisor.top.bars import KEYS
from hypervisor.top.model import NodeView
from hypervisor.top.options import TopOptions
from hypervisor.top.screen.app import TopApp
from hypervisor.top.screen.theme import guess
from hypervisor.top.screen.widgets import Fixed, Rows
from tests.conftest import ROOT
from tests.top.nodes import BATCH, CARD, FULL_NODE, NODE, QUIET, history
from tests.top.screens import NOW_S, Given, contrast, play, styles_of, text_of

GOLDEN = ROOT / "tests" / "golden" / "top"
DOCUMENT = ROOT / "docs" / "top.md"
SIZES = ((80, 24), (120, 40), (200, 50))
LEAST_CONTRAST = 4.5
DECORATION = "░"


def fleet() -> tuple[NodeView, ...]:
    now_s = NOW_S - 1
    up = [replace(NODE, host=f"gpu-a{n:02}", at_s=now_s, may_change=False) for n in range(1, 9)]
    busy = replace(CARD, utilization=0.97, temperature_c=88, power_w=690)
    up[3] = replace(up[3], cards=(busy, *[replace(QUIET, uuid=f"GPU-{n}", index=n) for n in range(1, 8)]))
    odd = replace(FULL_NODE, host="gpu-a09", at_s=now_s, problems=("NVML does not answer there",))
    stale = replace(NODE, host="gpu-a10", health="stale", at_s=now_s - 20, problems=("no answer in time",))
    down = NodeView("gpu-a11", "down", problems=("cannot be reached, 4 times in a row",))
    return (*up, odd, stale, down)


def alone() -> NodeView:
    card = replace(CARD, requested=None, reserved_bytes=None)
    why = (
        "no daemon: entitled shares, requests, weights and energy are not known, and quotas come from each "
        "program's environment; `gpulimit daemon` starts one"
    )
    tenants = tuple(replace(t, due=None, enforcement="standalone") for t in card.tenants[:2])
    return replace(
        NODE, cards=(replace(card, tenants=tenants),), has_daemon=False, problems=(why,), health="partial"
    )


SCREENS: dict[str, tuple[NodeView, ...]] = {
    "node": (NODE,),
    "full": (FULL_NODE,),
    "alone": (alone(),),
    "fleet": (),
    "fleet-node": (),
}


async def arrange(name: str, app: TopApp, pilot: Pilot[Any]) -> None:
    if name == "fleet-node":
        app.go_to("gpu-a10")
    app.history = history(*(replace(n, health="up") for n in app.nodes))
    app.draw()
    await pilot.pause()


Drawn = tuple[str, dict[tuple[str, str], str]]


def drawn(name: str, size: tuple[int, int]) -> tuple[Drawn, Drawn]:
    """Return text and colours, dark and light."""
    is_many = name.startswith("fleet")
    found: list[Drawn] = []

    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        await arrange(name, app, pilot)
        found.append((text_of(app), styles_of(app)))
        await pilot.press("t")
        await pilot.pause()
        found.append((text_of(app), styles_of(app)))

    options = TopOptions(theme="dark", hosts=("x",) if is_many else ())
    play(story, *(fleet() if is_many else SCREENS[name]), size=size, options=options)
    return found[0], found[1]


def coloured(theme: str, styles: dict[tuple[str, str], str]) -> list[str]:
    """Return a line for each pair of colours, for the golden file."""
    return [
        f"{theme} {text} on {ground} {contrast(text, ground):.1f}:1  e.g. {example[:24]}"
        for (text, ground), example in sorted(styles.items())
    ]


def compare(path: Path, text: str) -> None:
    if os.environ.get("GPULIMIT_RENEW_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", SCREENS)
def test_screens_are_the_golden_ones(name: str, size: tuple[int, int]) -> None:
    """Light and dark show the same, each in colours that can be read."""
    (dark, dark_styles), (light, light_styles) = drawn(name, size)
    assert light == dark
    for styles in (dark_styles, light_styles):
        for (text, ground), example in styles.items():
            if not example.strip(DECORATION):
                continue
            assert contrast(text, ground) >= LEAST_CONTRAST, (text, ground, example)
    lines = [dark, "", *coloured("dark", dark_styles), *coloured("light", light_styles), ""]
    compare(GOLDEN / f"{name}-{size[0]}x{size[1]}.txt", "\n".join(lines))


def test_the_document_shows_the_golden_screens_and_all_keys() -> None:
    """The blocks of docs/top.md are made here, so that they stay true."""
    text = DOCUMENT.read_text()
    screens = {name: drawn(name, (100, 30))[0][0] for name in ("node", "fleet")}
    for name, screen in screens.items():
        text = re.sub(
            rf"(<!-- screen: {name} -->\n\n```text\n).*?(\n```)",
            lambda match, screen=screen: match[1] + trimmed(screen) + match[2],
            text,
            flags=re.S,
        )
    rows = "\n".join(f"| {key.keys} | {key.does} |" for key in KEYS)
    text = re.sub(r"(\| key \| does \|\n\| --- \| --- \|\n)(\|[^\n]*\n)+", lambda m: m[1] + rows + "\n", text)
    compare(DOCUMENT, text)


def trimmed(screen: str) -> str:
    """Return a screen without the empty lines in its middle."""
    return re.sub(r"\n\n\n+", "\n\n", screen)


def chosen(app: TopApp) -> str:
    row = app.query_one("#main", Rows).chosen
    return row.line.text.split()[0] if row is not None and row.kind == "tenant" else (row.card if row else "")


def test_the_cursor_moves_over_things_and_stays_on_them() -> None:
    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        assert chosen(app) == CARD.uuid
        await pilot.press("down")
        assert chosen(app) == "batch"
        await pilot.press("j", "j")
        assert chosen(app) == "research/train-0"
        app.take(
            (
                replace(
                    NODE,
                    cards=(
                        replace(CARD, tenants=(*CARD.tenants, replace(BATCH, name="aaa", key="aaa"))),
                        QUIET,
                    ),
                ),
            )
        )
        await pilot.pause()
        assert chosen(app) == "research/train-0", "rows came before it"
        await pilot.press("end")
        assert chosen(app) == QUIET.uuid
        await pilot.press("down")
        assert chosen(app) == QUIET.uuid
        await pilot.press("home")
        assert chosen(app) == CARD.uuid
        await pilot.press("up", "down", "k")
        assert chosen(app) == CARD.uuid
        app.take((replace(NODE, cards=()),))
        await pilot.pause()
        assert app.query_one("#main", Rows).chosen is None
        await pilot.press("down", "up", "end", "enter", "f", "z")

    play(story, NODE)


def test_folding_sorting_and_choosing_what_is_shown() -> None:
    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        await pilot.press("f")
        assert "4 tenants folded" in text_of(app)
        await pilot.press("enter")
        assert "batch" in text_of(app)
        assert "TENANT▲" in text_of(app)
        await pilot.press("s")
        assert "GOT▼" in text_of(app)
        order = [line.split()[0] for line in text_of(app).split("\n") if "runs" in line or "idle" in line]
        assert order == ["batch", "research/train-0", "notebook"]
        await pilot.press("i")
        assert "GOT▲" in text_of(app)
        await pilot.press("p")
        assert "4121" not in text_of(app)
        await pilot.press("p", "c", "c")
        assert "GPU 0 " not in text_of(app), "a line for each card"

    play(story, NODE)


def test_the_filter_is_applied_while_it_is_typed_and_dropped_with_escape() -> None:
    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        await pilot.press("slash", *"user", "colon", *"alice", "space", *"bat")
        await pilot.pause()
        shown = text_of(app)
        assert "batch" in shown
        assert "notebook" not in shown
        await pilot.press("enter")
        assert "filter: user:alice bat" in text_of(app)
        await pilot.press("escape")
        assert "notebook" in text_of(app)
        await pilot.press("slash", *"colour", "colon", *"red", "enter")
        await pilot.pause()
        assert app.view.filter.text != "colour:red"
        await pilot.press("escape")
        assert not app.query_one("#filter").display
        await pilot.press("down")
        assert chosen(app), "keys are the list's again"

    play(story, NODE)


def test_pausing_holds_the_screen_still() -> None:
    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        await pilot.press("space")
        assert "PAUSED" in text_of(app)
        app.take((replace(NODE, cards=()),))
        await pilot.pause()
        assert "UNLIMITED" in text_of(app)
        await pilot.press("space")
        app.take((replace(NODE, cards=()),))
        await pilot.pause()
        assert "UNLIMITED" not in text_of(app)

    play(story, NODE)


def test_a_tab_for_each_node() -> None:
    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        assert "gpu-a11" in text_of(app)
        await pilot.press("down", "enter")
        assert app.tab == "gpu-a02"
        assert "train.py" in text_of(app)
        await pilot.press("right", "right_square_bracket")
        assert app.tab == "gpu-a04"
        await pilot.press("left")
        assert app.tab == "gpu-a03"
        await pilot.press("escape")
        assert app.tab == ""
        assert app.query_one("#main", Rows).chosen.host == "gpu-a03", "the cursor is where one comes from"  # type: ignore[union-attr]
        await pilot.press("left")
        assert app.tab == "gpu-a11"
        assert "cannot be reached, 4 times in a row" in text_of(app)
        await pilot.click("#tabs", offset=(2, 0))
        await pilot.press("escape")
        assert app.tab == ""
        for _ in range(4):
            await pilot.press("s")
        assert text_of(app).index("gpu-a11 ") < text_of(app).rindex("gpu-a01")
        await pilot.press("z")
        await pilot.pause()

    play(story, *fleet(), size=(120, 40), options=TopOptions(theme="dark", hosts=("x",)))


def test_help_fits_and_closes() -> None:
    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert "Keys" in text_of(app)
        await pilot.press("q")
        await pilot.pause()
        assert "batch" in text_of(app)

    play(story, NODE)


def test_a_tiny_terminal_and_a_resized_one() -> None:
    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        for size in ((20, 5), (10, 3), (300, 80), (80, 24)):
            await pilot.resize_terminal(*size)
            await has_size(app, pilot, size)
            assert all(len(line) <= size[0] for line in text_of(app).split("\n"))
        assert "batch" in text_of(app)

    play(story, NODE)


def test_a_terminal_that_is_resized_once_is_laid_out_for_its_new_width() -> None:
    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        await pilot.pause(0.3)
        await pilot.resize_terminal(100, 30)
        await has_size(app, pilot, (100, 30))
        assert app.query_one("#keys", Fixed)._lines[0].width == 100

    play(story, NODE)


async def has_size(app: TopApp, pilot: Pilot[Any], size: tuple[int, int]) -> None:
    """Wait until the screen is drawn at this size."""
    async with asyncio.timeout(30):
        while app.screen.size != size:
            await pilot.pause(0.02)
    await pilot.pause()


def test_while_the_size_changes_it_is_hardly_drawn_and_then_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that is dragged changes twenty times a second. The whole screen is laid out each time."""
    sizes: list[int] = []
    draw = TopApp._draw
    monkeypatch.setattr(TopApp, "_draw", lambda app: (sizes.append(app.size.width), draw(app)))

    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        await pilot.pause(0.3)
        sizes.clear()
        for width in range(60, 100):
            await pilot.resize_terminal(width, 30)
        await has_size(app, pilot, (99, 30))
        assert 1 <= len(sizes) <= 10 and sizes[-1] == 99
        assert "batch" in text_of(app)

    play(story, NODE)


def test_the_theme_follows_the_terminal_or_the_key() -> None:
    rich = {"TERM": "xterm-256color"}
    assert guess(rich) == guess({**rich, "COLORFGBG": "15;0"}) == guess({"COLORTERM": "truecolor"}) == "dark"
    assert guess({**rich, "COLORFGBG": "0;default;15"}) == "light"
    assert guess({"TERM": "linux"}) == guess({}) == guess({**rich, "NO_COLOR": "1"}) == "ansi"

    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        dark = set(styles_of(app))
        await pilot.press("t")
        await pilot.pause()
        assert not set(styles_of(app)) & dark

    play(story, NODE)


def test_the_terminal_s_own_colours_tell_nothing_by_colour_alone() -> None:
    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        assert "UNLIMITED" in text_of(app)
        assert "LOST" in text_of(app)

    play(story, FULL_NODE, size=(120, 40), options=TopOptions(theme="ansi"))


def test_the_interval_can_be_changed_and_the_source_is_closed() -> None:
    source = Given(NODE)

    async def story(app: TopApp, pilot: Pilot[Any]) -> None:
        looks = source.looks
        await pilot.press("plus")
        await pilot.pause(0.1)
        assert app.interval_s == 1800
        assert source.looks > looks, "it looks at once"
        await pilot.press("minus")
        assert app.interval_s == 3600

    play(story, source=source)
    assert source.is_closed
