# SPDX-License-Identifier: Apache-2.0
"""Computes a tenant's rate at any moment from its completed steps, recorded about every 2 ms of work. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

Times = Sequence[Sequence[float]]
"""Pairs of a moment and the number of steps done until then."""


def done_at(times: Times, moment: float) -> float:
    """Return the steps done up to a moment, interpolated between two completions."""
    n = bisect_right([t for t, _ in times], moment)
    if n == 0:
        return 0.0
    if n == len(times):
        return times[-1][1]
    (t0, d0), (t1, d1) = times[n - 1], times[n]
    return d0 + (d1 - d0) * (moment - t0) / (t1 - t0)


def rate_between(times: Times, begin: float, end: float) -> float:
    """Return the steps per second between two moments."""
    return (done_at(times, end) - done_at(times, begin)) / (end - begin)


def lag_ms(times: Times, begin: float, window_s: float, rate: float) -> float:
    """Return the delay in ms after `begin` with which the tenant reached its rate.

    It is the time that the missing steps would have taken: window − steps in it / rate.
    """
    return 1000 * (window_s - (done_at(times, begin + window_s) - done_at(times, begin)) / rate)


def of_neighbours(beside: Sequence[float], alone: Sequence[float]) -> list[float]:
    """Return each rate over the mean of the rates alone before and after it. `alone` has one more element."""
    return [rate * 2 / (before + after) for rate, before, after in zip(beside, alone, alone[1:], strict=False)]
