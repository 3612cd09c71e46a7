# SPDX-License-Identifier: Apache-2.0
"""Scenarios of fair.py: division of a card while nothing changes.

If a load saturates the card and is not limited by power (memory_bound), its throughput over its free rate is its share
of GPU time. Free rates are measured before and after, since hosts change with time. A host-bound load varies by 15 % from
second to second. So one process of it runs all the time, while its neighbour works and rests by turns. Each turn is
compared with the time before and after it. The load's GPU time is that of its step, by the profiler, times its rate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from child import Child, prepare, together
from step_rate import of_neighbours, rate_between

ALONE_S = 0.5
HALF_ALONE = 0.375
"""Seconds for which requests are served alone, before and after, per second beside the other tenant."""
TURNS = 7
MIN_TURN_S, TURN_OF_SECONDS = 0.4, 0.11
SETTLE_S = 0.15
"""Time left out at the beginning of each turn and each pause."""
KERNEL_MS = 0.75
"""Approximate length of the kernel of memory_bound."""
SERVED, EVERY_S = 7, 0.02
"""Number of kernels of a request, about 5 ms, and the time from one request to the next."""


def alone(side: Any, tenant: int) -> float:
    """Return steps per second of memory_bound in a tenant's first process, alone on the card."""
    return float(together([side.child(tenant)], [{"run": "memory_bound", "seconds": ALONE_S}])[0]["rate"])


def saturating(weights: Sequence[int], copies: Sequence[int], side: Any, seconds: float) -> dict[str, Any]:
    """Measure tenants that keep the queue full. `copies`: number of processes of each tenant."""
    groups = [[side.child(t, c) for c in range(count)] for t, count in enumerate(copies)]
    prepare([child for group in groups for child in group], ["memory_bound"])
    for t, weight in enumerate(weights):
        side.set_quota(t, weight=str(weight))
    before = [alone(side, t) for t in range(len(groups))]
    flat = [(t, child) for t, group in enumerate(groups) for child in group]
    answers = together([child for _, child in flat], [{"run": "memory_bound", "seconds": seconds}] * len(flat))
    after = [alone(side, t) for t in range(len(groups))]
    rates = [sum(a["rate"] for (t, _), a in zip(flat, answers, strict=True) if t == n) for n in range(len(groups))]
    free = [(one + other) / 2 for one, other in zip(before, after, strict=True)]
    of_alone = [rate / one for rate, one in zip(rates, free, strict=True)]
    wanted = [weight / sum(weights) for weight in weights]
    shares = [part / sum(of_alone) for part in of_alone]
    errors = [100 * (share / want - 1) for share, want in zip(shares, wanted, strict=True)]
    drift = max(abs(100 * (late / early - 1)) for early, late in zip(before, after, strict=True))
    row = (
        f"entitled {joined(wanted, '.3f')}  achieved {joined(shares, '.3f')}  relative error {joined(errors, '+.1f')} %  "
        f"throughput over alone {sum(of_alone):.3f} (alone before and after differ by {drift:.1f} %)"
    )
    return {"alone": [before, after], "rates": rates, "errors": errors, "rows": [row]}


def host_bound(load: str, request: int, side: Any, seconds: float) -> dict[str, Any]:
    """Measure a host-bound tenant inside its request, beside one that by turns keeps the queue full and rests."""
    first, other = side.child(0), side.child(1)
    prepare([first], [load])
    prepare([other], ["memory_bound"])
    side.set_quota(0, request=str(request))
    side.set_quota(1)
    free = [alone(side, 1)]
    turns = by_turns(first, load, other, max(MIN_TURN_S, TURN_OF_SECONDS * seconds))
    free.append(alone(side, 1))
    step_s = first.ask({"duty": load})["step_s"]  # last: a profiler may leave something behind
    ratios = of_neighbours(turns["beside"], turns["alone"])
    duty, used = (step_s * statistics.median(turns[when]) for when in ("alone", "beside"))
    left = statistics.median(turns["other"]) / statistics.mean(free)
    low, middle, high = statistics.quantiles(ratios, n=4)
    slow, usual, fast = statistics.quantiles(turns["alone"], n=4)
    row = (
        f"needs {100 * duty:.1f} % of the GPU (request {request} %), runs at {middle:.3f} of alone (quartiles {low:.3f} {high:.3f}, "
        f"{len(ratios)} turns; alone {usual:.0f} a second, quartiles {slow:.0f} {fast:.0f}); the other at {left:.3f}; "
        f"sum of GPU time {100 * (used + left):.1f} %"
    )
    return {"turns": turns, "ratios": ratios, "free": free, "step_s": step_s, "rows": [row]}


def by_turns(first: Child, load: str, other: Child, turn_s: float) -> dict[str, list[float]]:
    """Return the rates of `first` in each pause and each turn of `other`, and those of `other` in its turns."""
    at = time.monotonic() + 0.2
    first.tell({"watch": load, "seconds": (2 * TURNS + 1) * turn_s, "at": at})
    other.tell({"pulses": "memory_bound", "on": turn_s, "off": turn_s, "count": TURNS, "at": at + turn_s})
    times, pulses = first.answer()["times"], other.answer()["pulses"]
    turns = [(pulse["begin"] + SETTLE_S, pulse["begin"] + turn_s) for pulse in pulses]
    begins = [at + SETTLE_S, *(pulse["end"] + SETTLE_S for pulse in pulses)]
    ends = [at + (2 * n + 1) * turn_s for n in range(TURNS + 1)]
    return {
        "alone": [rate_between(times, begin, end) for begin, end in zip(begins, ends, strict=True)],
        "beside": [rate_between(times, *turn) for turn in turns],
        "other": [rate_between(pulse["times"], *turn) for pulse, turn in zip(pulses, turns, strict=True)],
    }


def latency(side: Any, seconds: float) -> dict[str, Any]:
    """Measure a `high` tenant that serves requests of about 5 ms, beside one that keeps the queue full."""
    server, other = side.child(0), side.child(1)
    ask = {"requests": SERVED, "every": EVERY_S, "seconds": seconds}
    prepare((server, other), ["memory_bound"])
    side.set_quota(0, priority="high", request="50")
    side.set_quota(1)
    free = [alone(side, 1)]
    half = ask | {"seconds": HALF_ALONE * seconds}
    one = together([server], [half])[0]["ms"]
    served, ran = together([server, other], [ask, {"run": "memory_bound", "seconds": seconds}])
    one += together([server], [half])[0]["ms"]
    free.append(alone(side, 1))
    rate = statistics.mean(free)
    alone_50, alone_99, p50, p99 = (part_of(ms, part) for ms in (one, served["ms"]) for part in (0.50, 0.99))
    bound, used = 1.10 * alone_99 + KERNEL_MS, SERVED * len(served["ms"]) / seconds / rate
    row = (
        f"p50 {p50:.2f} ms (alone {alone_50:.2f}), p99 {p99:.2f} ms (alone {alone_99:.2f}, bound {bound:.2f}); "
        f"the other at {ran['rate'] / rate:.3f} of alone, {1 - used:.3f} is left to it"
    )
    return {"alone_ms": one, "served_ms": served["ms"], "other": ran["rate"] / rate, "rows": [row]}


def part_of(values: Sequence[float], part: float) -> float:
    """Return the quantile `part` of the values."""
    return sorted(values)[int(len(values) * part)]


def joined(values: Sequence[float], form: str) -> str:
    return " ".join(format(v, form) for v in values)


SCENARIOS: dict[str, Callable[[Any, float], dict[str, Any]]] = {
    "two-1:1": partial(saturating, (100, 100), (1, 1)),
    "two-1:3": partial(saturating, (100, 300), (1, 1)),
    "three-1:2:5": partial(saturating, (100, 200, 500), (1, 1, 1)),
    "3-processes-against-1": partial(saturating, (100, 100), (3, 1)),
    "training": partial(host_bound, "training", 60),
    "gemm-512": partial(host_bound, "gemm_512", 60),
    "requests": latency,
}
