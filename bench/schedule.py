# SPDX-License-Identifier: Apache-2.0
"""Assigns the measurements of all_on_gpu.sh to any number of cards.

    python bench/schedule.py --cards 2 share top       # a line for each: card, seconds, name, command
    python bench/schedule.py --cards 4                 # all jobs

A job is one or several measurements. The longest is assigned first, to the card with the least work. A measurement that
needs the first card goes there. Each card runs its measurements one after the other, in the order of the table below.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMITS = "--limits 10,25,50,75,90 --seconds 10 --free-seconds 2"


@dataclass(frozen=True)
class Measurement:
    """One program on one card. `name`: name of its results."""

    job: str
    name: str
    seconds: int
    """Approximate time on an H100, for the assignment."""
    command: str
    """A program of bench/ with its options. All get --library and --out too."""
    is_first_card_only: bool = False
    card: int = 0


MEASUREMENTS = (
    Measurement("share", "share-1", 430, f"share.py --workloads memory_bound,gemm_512,long_12ms,graph,training,cooperative,four_streams {LIMITS}"),
    Measurement("share", "share-2", 430, f"share.py --workloads gemm_4096,long_300ms,bursts,triton,compiled,jax {LIMITS}"),
    Measurement("overhead", "overhead", 100, "overhead.py --rounds 3 --turns 8"),
    Measurement("fair", "fair", 200, "fair.py --seconds 4"),
    Measurement("gang", "gang", 60, "gang.py --parts waits,pair", is_first_card_only=True),
    Measurement("top", "top", 30, "top_beside_smi.py"),
    Measurement("idle", "idle", 90, "idle.py"),
    Measurement("soak", "soak", 0, "soak.py --minutes {soak_minutes}"),
    Measurement("tests", "gpu", 150, "on_gpu.sh -q", is_first_card_only=True),
)
JOBS = tuple(dict.fromkeys(m.job for m in MEASUREMENTS))


def program(measurement: Measurement) -> str:
    return measurement.command.split()[0]


def wanted(jobs: Sequence[str], soak_minutes: float) -> list[Measurement]:
    """Return the measurements of the named jobs, or of all if none is named. Raises ValueError for an unknown job."""
    for job in jobs:
        if job not in JOBS:
            raise ValueError(f"no job is called {job!r}; there are {', '.join(JOBS)}")
    chosen = [m for m in MEASUREMENTS if not jobs or m.job in jobs]
    soak = {"seconds": int(60 * soak_minutes) + 20}
    return [
        replace(m, command=m.command.format(soak_minutes=f"{soak_minutes:g}"), **(soak if m.job == "soak" else {}))
        for m in chosen
    ]


def placed(measurements: Sequence[Measurement], cards: int) -> list[Measurement]:
    """Return the measurements in the same order, each with its card."""
    busy = [0] * cards
    card_of: dict[str, int] = {}
    for m in sorted(measurements, key=lambda m: (not m.is_first_card_only, -m.seconds)):
        card = 0 if m.is_first_card_only else busy.index(min(busy))
        busy[card] += m.seconds
        card_of[m.name] = card
    return [replace(m, card=card_of[m.name]) for m in measurements]


def main() -> None:
    """Print the plan, and on stderr the time of each card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}; all if none is named")
    parser.add_argument("--cards", type=int, required=True)
    options = parser.parse_args()
    if options.cards < 1:
        parser.error(f"--cards: {options.cards} is less than one")
    try:
        chosen = wanted(options.jobs, float(os.environ.get("SOAK_MINUTES") or 8))
    except ValueError as error:
        parser.error(str(error))
    plan = placed(chosen, options.cards)
    there = [m for m in plan if (HERE / program(m)).exists()]
    for m in there:
        print(m.card, m.seconds, m.name, m.command)
    for m in plan:
        if m not in there:
            print(f"{m.name}: left out, there is no bench/{program(m)}", file=sys.stderr)
    for card in range(options.cards):
        own = [m for m in there if m.card == card]
        print(f"card {card}: {' '.join(m.name for m in own) or 'nothing'}, about {sum(m.seconds for m in own)} s", file=sys.stderr)


if __name__ == "__main__":
    main()
