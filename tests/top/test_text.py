# SPDX-License-Identifier: Apache-2.0
"""Cells: what a terminal is given is as wide as it should be, and nothing can steer it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.top.text import ASCII, UNICODE, Glyphs, clean, duration, percent, size, width_of

GLYPHS = (UNICODE, ASCII)


@given(st.text(max_size=40), st.integers(0, 60), st.sampled_from(GLYPHS))
def test_padded_text_has_exactly_its_width(text: str, width: int, glyphs: Glyphs) -> None:
    padded = glyphs.pad(clean(text), width)
    assert width_of(padded) == width
    assert padded.isprintable()


@given(st.text(max_size=300))
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    assert clean(text).isprintable()
    assert len(clean(text)) <= 128


@pytest.mark.parametrize("evil", ["\x1b[2J", "a\r\nb", "\x9b31m", "a\u202eb", "\u200b", "\x07", "\ud800"])
def test_what_steers_a_terminal_is_gone(evil: str) -> None:
    assert all(c not in clean(evil) for c in evil if not c.isprintable())


@given(st.one_of(st.none(), st.floats(-1, 2)), st.integers(1, 30), st.sampled_from(GLYPHS))
def test_bars_are_as_wide_as_they_should_be(ratio: float | None, width: int, glyphs: Glyphs) -> None:
    full, rest = glyphs.bar(ratio, width)
    assert len(full) + len(rest) == width
    assert bool(full) == bool(ratio and ratio > 0)


@given(st.lists(st.one_of(st.none(), st.floats(-1, 2)), max_size=50), st.integers(0, 30))
def test_graphs_are_as_wide_as_they_should_be(values: list[float | None], width: int) -> None:
    assert len(UNICODE.graph(values, width)) == width


def test_a_graph_leaves_gaps_where_nothing_was_known() -> None:
    assert UNICODE.graph([0.0, None, 1.0], 4) == " ▁ █"
    assert ASCII.graph([0.0, None, 1.0], 4) == " _ #"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "-"), (0, "0"), (1023, "1K"), (512 << 20, "512M"), (36_700_000_000, "34.2G"), (3 << 40, "3.0T")],
)
def test_sizes_take_five_cells(count: float | None, shown: str) -> None:
    assert size(count) == shown


@given(st.floats(0, 1e18))
def test_sizes_and_times_never_take_more(count: float) -> None:
    assert len(size(count)) <= 5
    assert len(duration(min(count, 8e6))) <= 5


def test_what_is_not_known_is_a_dash() -> None:
    assert percent(None) == size(None) == duration(None) == "-"
