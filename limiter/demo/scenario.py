# SPDX-License-Identifier: Apache-2.0
"""Scenes of the demo, in order.  A scene ends when its point is made, or fails with a clear line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from limiter.demo.daemon import Host
from limiter.demo.display import DisplayRow, Screen
from limiter.demo.sampler import UsageSample, cpu_waits_ns, look, share, waited
from limiter.demo.tenants import DemoTenant, entitled
from limiter.demo.verdict import Verdict, Window, judge, problems_of
from limiter.errors import GpulimitError
from limiter.units import show_bytes

STEP_S = 0.25
PATIENCE_S = 30.0
SETTLE_S = 1.0
"""Time before a measurement, in which programs start and fill their first turns."""
AWAY_S = 2.0
"""Time for which the daemon is away; tenants notice it after half a second."""


@dataclass(slots=True)
class Outcome:
    """Outcome of the demo."""

    verdicts: list[Verdict]
    windows: list[Window]
    problems: list[str] = field(default_factory=list)
    """Problems that belong to no tenant."""

    @property
    def is_good(self) -> bool:
        return not self.problems and not any(verdict.problems for verdict in self.verdicts)

    @property
    def closing(self) -> str:
        """Return the outcome in one line."""
        if not self.is_good:
            return "NOT everything was as promised"
        if not any(verdict.doubts for verdict in self.verdicts):
            return "everything as promised"
        starved = max(window.starved for window in self.windows)
        return (
            "as promised, as far as this host lets it be seen: it is so busy that a program, or the daemon, "
            f"was without a CPU for {starved:.0%} of the time"
        )


class Story:
    """One run of the demo."""

    def __init__(self, screen: Screen, host: Host, actors: list[DemoTenant], seconds: float) -> None:
        self._screen = screen
        self._host = host
        self._actors = actors
        self._seconds = seconds / 3
        self._looks = {actor.tenant: UsageSample() for actor in actors}
        self._shares = {actor.tenant: 0.0 for actor in actors}
        self._most = dict(self._looks)
        self._windows: list[Window] = []
        self._problems: list[str] = []

    def run(self) -> Outcome:
        """Run all scenes.  Raises GpulimitError."""
        self._enter()
        self._memory_quota_holds()
        self._measure("three")
        self._one_dies()
        self._measure("two")
        self._it_comes_back()
        self._the_daemon_dies()
        self._the_daemon_comes_back()
        self._measure("after restart")
        for actor in self._actors:
            actor.stop()
        verdicts = [judge(actor, self._most[actor.tenant], self._windows) for actor in self._actors]
        return Outcome(verdicts, self._windows, self._problems + problems_of(self._windows))

    # ---- scenes ----

    def _enter(self) -> None:
        self._screen.say(f"  daemon  $ {self._host.command}   (metrics: {self._host.metrics_url})")
        self._host.start()
        for actor in self._actors:
            self._screen.say(f"  {actor.role.name:<7} $ {actor.command}")
            actor.start()
        self._screen.say("")
        self._wait(lambda: all(v.registered for v in self._looks.values()), "the tenants to register")
        self._pause(SETTLE_S)

    def _memory_quota_holds(self) -> None:
        small = self._actors[0]
        self._wait(lambda: self._looks[small.tenant].refused > 0, "a tenant to reach its memory quota")
        before = self._looks[small.tenant]
        self._wait(lambda: self._looks[small.tenant].launches > before.launches, "it to go on")
        self._screen.say(
            f"* {small.role.name} wanted more than its {small.role.memory}: refused at "
            f"{show_bytes(before.used_bytes)}, and goes on"
        )

    def _one_dies(self) -> None:
        victim = self._victim
        held = self._looks[victim.tenant].used_bytes
        self._screen.say(
            f"* {victim.role.name} is killed (kill -9) while it holds {show_bytes(held)}: "
            "its part goes to the others"
        )
        victim.kill()
        self._wait(lambda: self._looks[victim.tenant].booked_bytes == 0, "its memory to be given back")
        self._pause(SETTLE_S)

    def _it_comes_back(self) -> None:
        victim = self._victim
        self._screen.say(f"* {victim.role.name} starts again")
        victim.start()
        self._wait(lambda: self._looks[victim.tenant].registered, "it to register")
        self._pause(SETTLE_S)

    def _the_daemon_dies(self) -> None:
        self._screen.say(
            "* the daemon is killed (kill -9): memory quotas hold, "
            "programs go on in the card's own equal slices"
        )
        before = dict(self._looks)
        self._host.kill()
        self._pause(AWAY_S)
        for actor in self._actors:
            if self._looks[actor.tenant].launches <= before[actor.tenant].launches:
                self._problems.append(f"{actor.role.name} stood still while the daemon was away")

    def _the_daemon_comes_back(self) -> None:
        self._screen.say("* the daemon is started again")
        self._host.start()
        self._wait(self._all_are_back, "the programs to register again")
        self._pause(SETTLE_S)
        deadline = time.monotonic() + PATIENCE_S / 3
        while wrong := [fault for actor in self._actors for fault in self._faults_in_books(actor)]:
            if time.monotonic() > deadline:  # daemon and tenant may differ while an allocation is under way
                break
            self._step()
        if wrong:
            self._problems += wrong
        else:
            self._screen.say("* it has all three back: memory, quotas and GPU time are as they were")

    def _all_are_back(self) -> bool:
        return self._host.is_ready() and all(self._known(actor)["workers"] for actor in self._actors)

    def _known(self, actor: DemoTenant) -> dict[str, Any]:
        """Return the daemon's state of a tenant."""
        for tenant in self._host.state()["tenants"]:
            if tenant["tenant"] == actor.tenant:
                return dict(tenant)
        return {"workers": [], "gpus": []}

    def _faults_in_books(self, actor: DemoTenant) -> list[str]:
        """Return the names of the daemon's figures that differ from the tenant's own."""
        seen = look(actor)
        gpu = max(self._known(actor)["gpus"], key=lambda gpu: gpu.get("spent_ns", 0))
        right = {
            "memory": gpu.get("memory_used_bytes") == seen.used_bytes == seen.booked_bytes,
            "quota": gpu["memory_limit_bytes"] == actor.role.memory_bytes,
            "GPU time": gpu.get("spent_ns", 0) >= seen.spent_ns,
        }
        return [
            f"{actor.role.name}: wrong {what} after the restart"
            for what, is_right in right.items()
            if not is_right
        ]

    @property
    def _victim(self) -> DemoTenant:
        return self._actors[1]

    # ---- time passing ----

    def _measure(self, title: str) -> None:
        """Show the table for a while, and record the shares over that time."""
        due = self._due()
        first, waits, began_s = dict(self._looks), self._cpu_waits(), time.monotonic()
        self._pause(self._seconds)
        wall_s = time.monotonic() - began_s
        starved = {name: waited(waits[name], now, wall_s) for name, now in self._cpu_waits().items()}
        got = {}
        for actor in self._actors:
            self._shares[actor.tenant] = share(first[actor.tenant], self._looks[actor.tenant])
            got[actor.role.name] = self._shares[actor.tenant]
        self._windows.append(Window(title, due, scaled(got), max(starved.values())))
        self._screen.keep(self._rows())

    def _cpu_waits(self) -> dict[str, dict[int, int]]:
        pids = {actor.role.name: actor.process.pid for actor in self._actors if actor.process is not None}
        if self._host.pid is not None:
            pids["daemon"] = self._host.pid
        return {name: cpu_waits_ns(pid) for name, pid in pids.items()}

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise GpulimitError(f"demo: waited {PATIENCE_S:g} s for {what}")
            self._step()

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._step()

    def _step(self) -> None:
        time.sleep(STEP_S)
        for actor in self._actors:
            actor.check()
            earlier, now = self._looks[actor.tenant], look(actor)
            self._looks[actor.tenant] = now
            self._shares[actor.tenant] = share(earlier, now) if earlier.at_s else 0.0
            self._most[actor.tenant] = merged(self._most[actor.tenant], now)
        self._host.check()
        self._screen.draw(self._rows(), "daemon running" if self._host.runs else "no daemon")

    def _due(self) -> dict[str, float]:
        """Return the share of the GPU that is due to each tenant now."""
        if not self._host.runs:
            return {}  # without a daemon, weights have no effect
        return entitled(actor.role for actor in self._actors if actor.process is not None)

    def _rows(self) -> list[DisplayRow]:
        due = self._due()
        shares = scaled(self._shares)
        return [
            DisplayRow(
                actor.role.name,
                actor.role.memory,
                self._looks[actor.tenant],
                shares[actor.tenant],
                due.get(actor.role.name),
            )
            for actor in self._actors
        ]


def scaled(shares: Mapping[str, float]) -> dict[str, float]:
    """Return shares with a sum of at most 1: overlapping work was charged to each tenant."""
    whole = max(1.0, sum(shares.values()))
    return {name: part / whole for name, part in shares.items()}


def merged(most: UsageSample, now: UsageSample) -> UsageSample:
    """Return the larger memory and refusals of two samples."""
    return UsageSample(
        used_bytes=max(most.used_bytes, now.used_bytes),
        refused=max(most.refused, now.refused),
    )
