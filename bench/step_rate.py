# SPDX-License-Identifier: Apache-2.0
"""What a tenant's completed steps, watched about every 2 ms of work, tell of its rate at any moment. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

Times = Sequence[Sequence[float]]
"""Moments, and how many steps were done until then."""


def done_at(times: Times, moment: float) -> float:
    """Steps done up to a moment, between two completions in proportion."""
    n = bisect_right([t for t, _ in times], moment)
    if n == 0:
        return 0.0
    if n == len(times):
        return times[-1][1]
    (t0, d0), (t1, d1) = times[n - 1], times[n]
    return d0 + (d1 - d0) * (moment - t0) / (t1 - t0)


def rate_between(times: Times, begin: float, end: float) -> float:
    """Steps a second."""
    return (done_at(times, end) - done_at(times, begin)) / (end - begin)


def lag_ms(times: Times, begin: float, window_s: float, rate: float) -> float:
    """How much later than `begin` the tenant seems to have come to its rate.

    It is the time for which the steps that are missing would have kept it busy: window − steps in it / rate.
    """
    return 1000 * (window_s - (done_at(times, begin + window_s) - done_at(times, begin)) / rate)


def of_neighbours(beside: Sequence[float], alone: Sequence[float]) -> list[float]:
    """Each rate over the mean of the one before it and the one after it; `alone` has one more."""
    return [rate * 2 / (before + after) for rate, before, after in zip(beside, alone, alone[1:], strict=False)]
