# SPDX-License-Identifier: Apache-2.0
"""Demand of simulated tenants on a GPU, and their quotas. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from hypervisor.scheduler.types import SchedParams
from limiter.units import PERCENT

PEOPLE = ("vision", "speech", "search", "maps", "fraud", "gen", "rank", "lab")
WORK = ("train", "serve", "eval", "batch", "notebook", "embed")


@dataclass(frozen=True, slots=True)
class Wave:
    """A value that goes up and down between two bounds."""

    low: float
    high: float
    period_s: float
    phase: float

    def at(self, now_s: float) -> float:
        swing = (1 + math.sin(now_s * math.tau / self.period_s + self.phase)) / 2
        return self.low + (self.high - self.low) * swing


def wave(dice: random.Random, low: float, high: float) -> Wave:
    """Return a wave that stays between these, with a period of half a minute to five minutes."""
    first, second = sorted(dice.uniform(low, high) for _ in range(2))
    return Wave(first, second, dice.uniform(30, 300), dice.uniform(0, math.tau))


@dataclass(frozen=True, slots=True)
class LoadDemand:
    """Limits and demand of one tenant."""

    weight: int
    limit_percent: int
    request_percent: int
    quota_part: float
    """Memory quota, as a fraction of the GPU's memory."""
    demand: Wave
    memory: Wave
    """Memory in use, as a fraction of its quota."""

    @property
    def terms(self) -> SchedParams:
        return SchedParams(self.limit_percent, self.request_percent, self.weight)

    def wanted(self, now_s: float) -> float:
        """Return the fraction of the GPU's time that it would use alone."""
        return min(self.limit_percent / PERCENT, self.demand.at(now_s))


def wishes(dice: random.Random, count: int) -> list[LoadDemand]:
    """Return the tenants of one GPU, whose quotas fit on it."""
    return [
        LoadDemand(
            weight=dice.choice((50, 100, 100, 200, 300)),
            limit_percent=dice.choice((100, 100, 100, 50, 30)),
            request_percent=dice.choice((0, 0, 10, 20)) if count <= 4 else 0,
            quota_part=dice.uniform(0.5, 0.95) / count,
            demand=wave(dice, 0.0, 1.2) if dice.random() < 0.8 else Wave(0, 0, 60, 0),
            memory=wave(dice, 0.15, 0.98),
        )
        for _ in range(count)
    ]


def pod_name(dice: random.Random) -> tuple[str, str]:
    """Return a namespace and a pod's name."""
    letters = "bcdfghjklmnpqrstvwxz2456789"
    suffix = "".join(dice.choice(letters) for _ in range(5))
    return dice.choice(PEOPLE), f"{dice.choice(WORK)}-{suffix}"
