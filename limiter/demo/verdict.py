# SPDX-License-Identifier: Apache-2.0
"""Compares each tenant's share with its due.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from limiter.demo.sampler import UsageSample
from limiter.demo.tenants import DemoTenant
from limiter.tenant_status import table
from limiter.units import show_bytes

TOLERATED_POINTS = 5.0
"""Tolerance in percent points between a tenant's share and its due: a window of some seconds cuts turns, and
a segment may be read between a launch and its charge."""
STARVED = 0.1
"""Fraction of time without a CPU above which a tenant cannot claim its due: its share then describes the host
rather than the daemon."""
MIN_IN_USE = 0.5
"""Smallest fraction of time for which the GPU should be in use while programs have endless work."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some seconds without a change of tenants; shares of the GPU's time by the tenant's name."""

    title: str
    entitled: Mapping[str, float]
    got: Mapping[str, float]
    starved: float = 0.0
    """Fraction of time for which the most delayed program, or the daemon, waited for a CPU."""

    @property
    def in_use(self) -> float:
        return sum(self.got.values())

    def part(self, name: str) -> float:
        """Return a tenant's part of the used time."""
        return self.got.get(name, 0.0) / self.in_use if self.in_use else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One tenant."""

    name: str
    memory_bytes: int
    """Largest sampled memory."""
    memory_limit_bytes: int
    refused: int
    problems: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    """Findings that the host may have caused."""


def judge(actor: DemoTenant, most: UsageSample, windows: Sequence[Window]) -> Verdict:
    """Judge a tenant by its peak memory, and by its share in each of its windows."""
    name = actor.role.name
    problems: list[str] = []
    doubts: list[str] = []
    if most.used_bytes > actor.role.memory_bytes:
        problems.append("more memory than its quota")
    for window in windows:
        if name not in window.entitled:
            continue
        off = 100 * (window.part(name) - window.entitled[name])
        if abs(off) > TOLERATED_POINTS:
            found = f"{abs(off):.0f} points too {'much' if off > 0 else 'little'} ({window.title})"
            (problems if window.starved < STARVED else doubts).append(found)
    for result in actor.results:
        if result["completed"] is not None and result["completed"] != result["kernels"]:
            problems.append("kernels were lost")
    return Verdict(
        name=name,
        memory_bytes=most.used_bytes,
        memory_limit_bytes=actor.role.memory_bytes,
        refused=most.refused,
        problems=tuple(problems),
        doubts=tuple(doubts),
    )


def problems_of(windows: Sequence[Window]) -> list[str]:
    """Return problems of the GPU as a whole, for windows in which the programs had enough CPU time."""
    return [
        f"the GPU was in use only {window.in_use:.0%} of the time ({window.title})"
        for window in windows
        if window.in_use < MIN_IN_USE and window.starved < STARVED
    ]


def describe(verdicts: Sequence[Verdict], windows: Sequence[Window]) -> str:
    """Return the closing table: for each window the share that was due to a tenant, and the share that it
    got.
    """
    shares = [title for window in windows for title in (f"{window.title.upper()}: DUE", "GOT")]
    headings = ("TENANT", "QUOTA", "HELD", "REFUSED", *shares, "AS PROMISED")
    lines = [
        (
            v.name,
            show_bytes(v.memory_limit_bytes),
            show_bytes(v.memory_bytes),
            str(v.refused),
            *(cell for window in windows for cell in cells(window, v.name)),
            "; ".join((*v.problems, *(f"{doubt}, busy host" for doubt in v.doubts))) or "yes",
        )
        for v in verdicts
    ]
    in_use = [cell for window in windows for cell in ("", f"{window.in_use:.1%}")]
    return table(headings, [*lines, ("GPU in use", "", "", "", *in_use, "")])


def cells(window: Window, name: str) -> tuple[str, str]:
    if name not in window.entitled:
        return "-", "-"
    return f"{window.entitled[name]:.1%}", f"{window.got[name]:.1%}"
