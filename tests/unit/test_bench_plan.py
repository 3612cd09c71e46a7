# SPDX-License-Identifier: Apache-2.0
"""Which measurement runs on which card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.schedule import HERE, JOBS, MEASUREMENTS, placed, program, wanted

LONGEST_S = 540


def cards_of(cards: int, *jobs: str) -> dict[str, int]:
    return {m.name: m.card for m in placed(wanted(jobs, 8.0), cards)}


@pytest.mark.parametrize("cards", [1, 2, 3, 4, 8])
def test_every_measurement_has_one_card_that_there_is(cards: int) -> None:
    found = placed(wanted((), 8.0), cards)
    assert [m.name for m in found] == [m.name for m in MEASUREMENTS]
    assert {m.card for m in found} <= set(range(cards))
    assert all(m.card == 0 for m in found if m.is_first_card_only)


def test_four_cards_do_everything_within_one_call() -> None:
    found = placed(wanted((), 8.0), 4)
    assert max(sum(m.seconds for m in found if m.card == card) for card in range(4)) <= LONGEST_S


def test_two_cards_do_half_of_the_shares_each_and_the_rest_in_another_call() -> None:
    assert cards_of(2, "share") == {"share-1": 0, "share-2": 1}
    rest = placed(wanted([job for job in JOBS if job not in ("share", "soak")], 8.0), 2)
    assert max(sum(m.seconds for m in rest if m.card == card) for card in range(2)) <= LONGEST_S


def test_only_what_is_asked_for_runs() -> None:
    assert cards_of(4, "top", "fair").keys() == {"top", "fair"}
    with pytest.raises(ValueError, match=r"'shares'; there are share, overhead"):
        wanted(["shares"], 8.0)


def test_the_soak_is_as_long_as_it_is_told() -> None:
    (soak,) = wanted(["soak"], 0.5)
    assert (soak.command, soak.seconds) == ("soak.py --minutes 0.5", 50)


@pytest.mark.parametrize("cards", [1, 2, 4])
def test_a_dry_run_prints_the_plan_and_builds_nothing(cards: int, tmp_path: Path) -> None:
    env = os.environ | {
        "DRY_RUN": "1",
        "CARDS": str(cards),
        "OUT": str(tmp_path / "out"),
        "PYTHON": sys.executable,
    }
    done = subprocess.run(
        ["bash", HERE / "all_on_gpu.sh"], env=env, capture_output=True, text=True, timeout=30, check=True
    )
    there = {m.name: m for m in placed(wanted((), 8.0), cards) if (HERE / program(m)).exists()}
    lines = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    assert {name: (int(card), command) for card, _, name, command in lines} == {
        name: (m.card, m.command) for name, m in there.items()
    }
    assert f"card {cards - 1}: " in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_job_that_there_is_not_ends_it(tmp_path: Path) -> None:
    env = os.environ | {"DRY_RUN": "1", "CARDS": "1", "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", HERE / "all_on_gpu.sh", "shares"], env=env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode != 0
    assert "no job is called 'shares'" in done.stderr
