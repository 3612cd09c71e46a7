# SPDX-License-Identifier: Apache-2.0
"""Work on a card that is not the current one is charged to the card that does it, and held to its limit."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .conftest import Program
from .machine import MS, POINTS, WARM_S, Host, Machine

TWO = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_SIM_GPUS": "2"}
WINDOW_S = 2.0
BEHIND = 2 * POINTS
"""So much below the limit of the slower card a launch on both may keep the other."""


@pytest.fixture
def shares(machine: Any, program: Program, start_process: Any) -> Any:
    """Run tests/c/compute/other_card.c; return both cards' shares, and what was charged for each, in ns."""

    def run(how: str, compute: str, least: float = 0.0) -> tuple[list[float], list[int], int]:
        """Once more if this host stalled and card 1 did less than it might have."""
        for _ in range(3):
            with Host() as host:
                found = once(how, compute)
            if found[0][1] > least or not host.stalled:
                break
        return found

    def once(how: str, compute: str) -> tuple[list[float], list[int], int]:
        it: Machine = machine(**TWO, GPULIMIT_COMPUTE=compute)
        seconds = str(WARM_S + WINDOW_S + 0.5)
        process = start_process([program("compute/other_card"), how, seconds, str(MS)], env=it.environ)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        time.sleep(WARM_S)
        busy = it.shares(WINDOW_S)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, out + err
        return busy, [device.used_ns for device in it.books().devices], int(out)

    return run


@pytest.mark.parametrize("how", ["kernel", "function", "graph", "nothing"])
def test_it_is_held_to_the_limit_of_the_card_that_does_it(shares: Any, how: str) -> None:
    (first, second), charged, launches = shares(how, "0=100,1=30", 30 - POINTS)
    assert first == 0
    assert second == pytest.approx(30, abs=POINTS)
    assert charged[1] == pytest.approx(launches * MS, rel=0.02)
    assert charged[0] < MS


@pytest.mark.parametrize("how", ["kernel", "graph"])
def test_the_limit_of_the_current_card_does_not_hold_it_back(shares: Any, how: str) -> None:
    (first, second), charged, launches = shares(how, "0=10,1=100", 95)
    assert first == 0
    assert second > 95
    assert charged[1] == pytest.approx(launches * MS, rel=0.02)


@pytest.mark.parametrize(("compute", "slower"), [("0=60,1=20", 20), ("0=20,1=60", 20)])
def test_a_launch_on_several_cards_is_held_by_each_of_them(shares: Any, compute: str, slower: int) -> None:
    busy, charged, launches = shares("multi", compute, slower - BEHIND)
    assert max(busy) < slower + POINTS
    assert min(busy) > slower - BEHIND
    for ns in charged:
        assert ns == pytest.approx(launches * MS, rel=0.02)
