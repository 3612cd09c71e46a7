# SPDX-License-Identifier: Apache-2.0
"""Colours of the styles. Each foreground has a contrast of at least 4.5 to 1 on its background.

`ansi` uses the terminal's own colours. There, important text is also bold or reversed, so that it stands out
on a terminal without colours too.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.theme import Theme

from hypervisor.top.table import Style as Name

MANY_COLOURS = ("256color", "-direct", "kitty")
THEMES = ("dark", "light", "ansi")


DARK: Mapping[Name, Style] = {
    "": Style(color="#d4d8dc"),
    "dim": Style(color="#98a2ad"),
    "strong": Style(color="#f0f3f6", bold=True),
    "head": Style(color="#8ab4d8", bold=True),
    "title": Style(color="#101418", bgcolor="#5fafd7", bold=True),
    "good": Style(color="#7ec699"),
    "warn": Style(color="#e5b567", bold=True),
    "bad": Style(color="#ff7b72", bold=True),
    "util": Style(color="#6cb6ff"),
    "mem": Style(color="#a5a5f5"),
    "graph": Style(color="#66abcc"),
    "rest": Style(color="#3a424a"),
}
LIGHT: Mapping[Name, Style] = {
    "": Style(color="#1f2429"),
    "dim": Style(color="#59636e"),
    "strong": Style(color="#000000", bold=True),
    "head": Style(color="#005f87", bold=True),
    "title": Style(color="#ffffff", bgcolor="#005f87", bold=True),
    "good": Style(color="#1a6b34"),
    "warn": Style(color="#855300", bold=True),
    "bad": Style(color="#b3261e", bold=True),
    "util": Style(color="#0b5cad"),
    "mem": Style(color="#5a3fb0"),
    "graph": Style(color="#256280"),
    "rest": Style(color="#c6ccd2"),
}
ANSI: Mapping[Name, Style] = {
    "": Style(),
    "dim": Style(),
    "strong": Style(bold=True),
    "head": Style(bold=True, underline=True),
    "title": Style(reverse=True, bold=True),
    "good": Style(color="green"),
    "warn": Style(color="yellow", bold=True),
    "bad": Style(color="red", bold=True, reverse=True),
    "util": Style(color="blue"),
    "mem": Style(color="magenta"),
    "graph": Style(color="cyan"),
    "rest": Style(dim=True),
}
PALETTES: Mapping[str, Mapping[Name, Style]] = {"dark": DARK, "light": LIGHT, "ansi": ANSI}
CHOSEN: Mapping[str, Style] = {
    "dark": Style(bgcolor="#26333f"),
    "light": Style(bgcolor="#d5e4f0"),
    "ansi": Style(reverse=True),
}
"""Style of the cursor's line in the focused table."""
TEXTUAL_THEMES = {"dark": "gpulimit-dark", "light": "gpulimit-light", "ansi": "ansi-dark"}


def theme(name: str, background: str, panel: str) -> Theme:
    """Return the textual theme for a palette with the given colours."""
    styles = PALETTES[name]

    def colour(style: Name) -> str:
        found = styles[style].color
        assert found is not None
        return found.name

    primary = styles["title"].bgcolor
    assert primary is not None
    return Theme(
        name=TEXTUAL_THEMES[name],
        primary=primary.name,
        background=background,
        surface=background,
        panel=panel,
        foreground=colour(""),
        warning=colour("warn"),
        error=colour("bad"),
        success=colour("good"),
        dark=name == "dark",
    )


def themes() -> tuple[Theme, ...]:
    """Return the two themes that textual does not provide."""
    return theme("dark", "#101418", "#1c2329"), theme("light", "#fafafa", "#e8ecef")


def guess(environment: Mapping[str, str]) -> str:
    """Return the theme that fits the terminal's environment variables.

    A terminal with few or no colours gets `ansi`: shades would look alike there. COLORFGBG "15;0" is light on
    dark.
    """
    term = environment.get("TERM", "")
    is_rich = environment.get("COLORTERM", "") in ("truecolor", "24bit") or term.endswith(MANY_COLOURS)
    if not is_rich or environment.get("NO_COLOR"):
        return "ansi"
    background = environment.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"
