# SPDX-License-Identifier: Apache-2.0
"""Scenarios of fair.py: how a card is divided while nothing changes.

Throughput over the own free rate is the share of GPU time where a load saturates the card and is not limited by power
(memory_bound). A host-bound load's GPU time is its step's by the profiler times its rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from child import prepare, together

MIN_ALONE_S = 1.0
KERNEL_MS = 0.75
"""Of memory_bound, about."""
SERVED, EVERY_S = 7, 0.02
"""Kernels of a request, about 5 ms, and the time from one request to the next."""


def alone(side: Any, tenant: int, load: str, seconds: float) -> float:
    """Steps a second of a tenant's first process that has the card to itself."""
    return float(together([side.child(tenant)], [{"run": load, "seconds": max(MIN_ALONE_S, seconds / 3)}])[0]["rate"])


def saturating(weights: Sequence[int], copies: Sequence[int], side: Any, seconds: float) -> dict[str, Any]:
    """Tenants that keep the queue full; `copies` are processes of each."""
    groups = [[side.child(t, c) for c in range(count)] for t, count in enumerate(copies)]
    prepare([child for group in groups for child in group], ["memory_bound"])
    for t, weight in enumerate(weights):
        side.set_quota(t, weight=str(weight))
    free = [alone(side, t, "memory_bound", seconds) for t in range(len(groups))]
    flat = [(t, child) for t, group in enumerate(groups) for child in group]
    answers = together([child for _, child in flat], [{"run": "memory_bound", "seconds": seconds}] * len(flat))
    rates = [sum(a["rate"] for (t, _), a in zip(flat, answers, strict=True) if t == n) for n in range(len(groups))]
    of_alone = [rate / one for rate, one in zip(rates, free, strict=True)]
    wanted = [weight / sum(weights) for weight in weights]
    shares = [part / sum(of_alone) for part in of_alone]
    errors = [100 * (share / want - 1) for share, want in zip(shares, wanted, strict=True)]
    row = (
        f"entitled {joined(wanted, '.3f')}  achieved {joined(shares, '.3f')}  relative error {joined(errors, '+.1f')} %  "
        f"throughput over alone {sum(of_alone):.3f}"
    )
    return {"alone": free, "rates": rates, "errors": errors, "rows": [row]}


def host_bound(load: str, request: int, side: Any, seconds: float) -> dict[str, Any]:
    """A tenant that is slower than the GPU, inside its request, beside one that keeps the queue full."""
    first, other = side.child(0), side.child(1)
    prepare([first], [load])
    prepare([other], ["memory_bound"])
    side.set_quota(0, request=str(request))
    side.set_quota(1)
    step_s = first.ask({"duty": load})["step_s"]
    free = [alone(side, 0, load, seconds), alone(side, 1, "memory_bound", seconds)]
    answers = together([first, other], [{"run": load, "seconds": seconds}, {"run": "memory_bound", "seconds": seconds}])
    rates = [answer["rate"] for answer in answers]
    duty, used, left = step_s * free[0], step_s * rates[0], rates[1] / free[1]
    row = (
        f"needs {100 * duty:.1f} % of the GPU (request {request} %), runs at {rates[0] / free[0]:.3f} of alone; "
        f"the other at {left:.3f}; sum of GPU time {100 * (used + left):.1f} %"
    )
    return {"alone": free, "rates": rates, "step_s": step_s, "rows": [row]}


def latency(side: Any, seconds: float) -> dict[str, Any]:
    """A `high` tenant that serves requests of about 5 ms beside one that keeps the queue full."""
    server, other = side.child(0), side.child(1)
    ask = {"requests": SERVED, "every": EVERY_S, "seconds": seconds}
    prepare((server, other), ["memory_bound"])
    side.set_quota(0, priority="high", request="50")
    side.set_quota(1)
    one = together([server], [ask])[0]
    free = alone(side, 1, "memory_bound", seconds)
    both = together([server, other], [ask, {"run": "memory_bound", "seconds": seconds}])
    bound = 1.10 * one["p99"] + KERNEL_MS
    used = SERVED * both[0]["count"] / seconds / free
    row = (
        f"p50 {both[0]['p50']:.2f} ms (alone {one['p50']:.2f}), p99 {both[0]['p99']:.2f} ms (alone {one['p99']:.2f}, "
        f"bound {bound:.2f}); the other at {both[1]['rate'] / free:.3f} of alone, {1 - used:.3f} is left to it"
    )
    return {"alone": one, "served": both[0], "other": both[1]["rate"] / free, "rows": [row]}


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
