# SPDX-License-Identifier: Apache-2.0
"""What happens in the demo, in order.  A scene ends when its point is made, or fails with a clear line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from limiter.demo.cast import Actor, company
from limiter.demo.screen import Screen
from limiter.demo.stage import Look, look, share
from limiter.demo.verdict import Verdict, compare
from limiter.errors import GpulimitError
from limiter.units import show_bytes

STEP_S = 0.25
START_TIMEOUT_S = 30.0
SETTLE_S = 1.0
"""Left out of the measured shares: programs start, learn, and fill their first period."""


class Story:
    """One performance."""

    def __init__(self, screen: Screen, variables: Mapping[str, str], seconds: float) -> None:
        self._screen = screen
        self._seconds = seconds
        self._actors = company(variables)
        self._looks = {actor.tenant: Look() for actor in self._actors}
        self._shares = {actor.tenant: 0.0 for actor in self._actors}
        self._measured: dict[str, list[float]] = {actor.tenant: [] for actor in self._actors}

    def run(self) -> list[Verdict]:
        """Play it; return promise and outcome per tenant.  Raises GpulimitError."""
        try:
            self._enter()
            self._memory_quota_holds()
            self._measure(self._seconds / 2)
            self._a_dead_process_gives_its_memory_back()
            self._measure(self._seconds / 2)
            for actor in self._actors:
                actor.stop()
            return compare(self._actors, self._looks, self._measured)
        finally:
            for actor in self._actors:
                actor.leave()

    def _enter(self) -> None:
        for actor in self._actors:
            self._screen.say(f"  {actor.role.name:<7} $ {actor.command}")
            actor.start()
        self._wait(lambda: all(v.registered for v in self._looks.values()), "the tenants to register")

    def _memory_quota_holds(self) -> None:
        small = self._actors[0]
        self._wait(lambda: self._looks[small.tenant].refused > 0, "a tenant to reach its memory quota")
        self._pause(SETTLE_S)
        before = self._looks[small.tenant]
        self._wait(lambda: self._looks[small.tenant].launches > before.launches, "it to go on")
        self._screen.say(
            f"\n{small.role.name} wanted more than its {small.role.memory}: refused at "
            f"{show_bytes(before.used_bytes)}, and goes on"
        )

    def _a_dead_process_gives_its_memory_back(self) -> None:
        victim = self._actors[1]
        held = self._looks[victim.tenant].used_bytes
        self._screen.say(f"\n{victim.role.name} is killed with SIGKILL while it holds {show_bytes(held)}")
        victim.kill()
        self._wait(lambda: not self._looks[victim.tenant].registered, "its death to be seen")
        victim.start()
        self._wait(lambda: self._looks[victim.tenant].used_bytes >= held, "its memory to come back")
        now = self._looks[victim.tenant]
        self._screen.say(
            f"it starts again and gets {show_bytes(now.used_bytes)} of its {victim.role.memory}: "
            "what the dead process held has come back"
        )
        self._pause(SETTLE_S)

    def _measure(self, seconds: float) -> None:
        """Show the table for a while and note the shares over that time."""
        first = dict(self._looks)
        self._pause(seconds)
        for tenant, noted in self._measured.items():
            noted.append(share(first[tenant], self._looks[tenant]))
            self._shares[tenant] = noted[-1]
        self._screen.keep(*self._picture())

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                raise GpulimitError(f"demo: waited {START_TIMEOUT_S:g} s for {what}")
            self._step()

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._step()

    def _step(self) -> None:
        time.sleep(STEP_S)
        for actor in self._actors:
            actor.check()
            earlier, self._looks[actor.tenant] = self._looks[actor.tenant], look(actor)
            self._shares[actor.tenant] = share(earlier, self._looks[actor.tenant])
        self._screen.draw(*self._picture())

    def _picture(self) -> tuple[list[Actor], list[Look], list[float]]:
        tenants = [actor.tenant for actor in self._actors]
        return self._actors, [self._looks[t] for t in tenants], [self._shares[t] for t in tenants]
