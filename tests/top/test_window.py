# SPDX-License-Identifier: Apache-2.0
"""Shares between two looks."""

from __future__ import annotations

import pytest

from hypervisor.top.share_window import MAX_SAMPLES, ShareWindow, Spent

MS = 1_000_000


def test_the_newest_look_that_is_a_second_old_is_compared_with() -> None:
    window: ShareWindow[str] = ShareWindow()
    assert window.swap(0, "a") is None
    assert window.swap(500 * MS, "b") is None
    assert window.swap(1000 * MS, "c") == (0, "a")
    assert window.swap(1400 * MS, "d") == (0, "a")
    assert window.swap(1500 * MS, "e") == (500 * MS, "b")
    assert window.swap(9000 * MS, "f") == (1500 * MS, "e")


def test_looks_far_apart_are_compared_with_the_last() -> None:
    window: ShareWindow[str] = ShareWindow()
    window.swap(0, "a")
    assert window.swap(5000 * MS, "b") == (0, "a")
    assert window.swap(10000 * MS, "c") == (5000 * MS, "b")


def test_time_that_stands_still_keeps_no_more_and_more_looks() -> None:
    window: ShareWindow[int] = ShareWindow()
    assert all(window.swap(7, n) is None for n in range(3 * MAX_SAMPLES))
    assert window.swap(2000 * MS, 0) == (7, 3 * MAX_SAMPLES - 1)


def test_whose_turn_it_is_does_not_show() -> None:
    """Turns of 30 and 10 ms, looked at every 50 ms."""
    spent: Spent[str] = Spent()
    at_ms, a, b = 0, 0, 0
    for look in range(60):
        found = spent.shares(look * 50 * MS, {"a": a * MS, "b": b * MS})
        if look >= 20:
            assert found["a"] == pytest.approx(0.25, abs=0.02)
            assert found["b"] == pytest.approx(0.75, abs=0.02)
        else:
            assert found == {} or look == 19
        for _ in range(50):
            if at_ms % 40 < 10:
                a += 1
            else:
                b += 1
            at_ms += 1


def test_what_cannot_be_compared_is_left_out() -> None:
    spent: Spent[str] = Spent()
    spent.shares(0, {"gone": 5, "anew": 900, "idle": 3, "more": 0})
    found = spent.shares(1000 * MS, {"anew": 2, "idle": 3, "more": 4000 * MS, "fresh": 7})
    assert found == {"idle": 0.0, "more": 1.0}
