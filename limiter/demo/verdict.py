# SPDX-License-Identifier: Apache-2.0
"""What was promised to each tenant against what it got.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from limiter.demo.cast import Actor
from limiter.demo.stage import Look
from limiter.tenant_view import table
from limiter.units import show_bytes

OVER_POINTS = 3.0
"""Percent points of GPU time that a tenant may show above its limit: a second's share is cut at launches, and
the books may be read between a launch and its charge."""
UNDER_PART = 0.75
"""Part of its limit that a tenant with endless work should reach on a GPU whose limits add up to 90 %."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One tenant."""

    name: str
    memory_bytes: int
    memory_limit_bytes: int
    refused: int
    share_percent: float
    limit_percent: int
    problems: tuple[str, ...]


def compare(
    actors: Sequence[Actor], looks: Mapping[str, Look], shares: Mapping[str, Sequence[float]]
) -> list[Verdict]:
    """Judge every tenant by its last look and the mean of its measured shares."""
    return [judge(actor, looks[actor.tenant], shares[actor.tenant]) for actor in actors]


def judge(actor: Actor, seen: Look, shares: Sequence[float]) -> Verdict:
    percent = 100 * sum(shares) / max(1, len(shares))
    limit = actor.role.compute_percent
    problems = []
    if seen.used_bytes > seen.limit_bytes:
        problems.append("more memory than its quota")
    if percent > limit + OVER_POINTS:
        problems.append("more GPU time than its limit")
    if percent < limit * UNDER_PART:
        problems.append("far less GPU time than it may use")
    for result in actor.results:
        if result["completed"] is not None and result["completed"] != result["kernels"]:
            problems.append("kernels were lost")
    return Verdict(
        name=actor.role.name,
        memory_bytes=seen.used_bytes,
        memory_limit_bytes=seen.limit_bytes,
        refused=seen.refused,
        share_percent=percent,
        limit_percent=limit,
        problems=tuple(problems),
    )


def describe(verdicts: Sequence[Verdict]) -> str:
    """Return the closing table."""
    headings = ("TENANT", "MEMORY QUOTA", "HELD", "REFUSED", "GPU LIMIT", "GOT", "AS PROMISED")
    return table(
        headings,
        [
            (
                v.name,
                show_bytes(v.memory_limit_bytes),
                show_bytes(v.memory_bytes),
                str(v.refused),
                f"{v.limit_percent}%",
                f"{v.share_percent:.1f}%",
                "; ".join(v.problems) or "yes",
            )
            for v in verdicts
        ],
    )
