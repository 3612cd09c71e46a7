# SPDX-License-Identifier: Apache-2.0
"""The local node: from the daemon if there is one, else from NVML and the tenants' usage segments."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import replace

from hypervisor.top import daemon_state
from hypervisor.top.assemble import Facts
from hypervisor.top.model import NodeView
from hypervisor.top.processes import ProcessReader, with_tenants
from hypervisor.top.share_window import Spent
from hypervisor.top.standalone import Cards, UsageReader, cards_with, held_on
from hypervisor.top.text import clean
from limiter import daemon_absence, daemon_client

FIRST_ANSWER_S = 10.0
UNKNOWN = "entitled shares, requests, weights and energy are not known"
MISSING = (
    f"no daemon: {UNKNOWN}, and quotas come from each program's environment; `gpulimit daemon` starts one"
)


def why_alone(error: daemon_client.NoDaemon) -> str:
    """Return the text that is shown if the daemon does not answer."""
    if error.kind == "missing" and not os.environ.get("GPULIMIT_SOCKET"):
        return MISSING
    return f"no daemon: {daemon_absence.meaning_of(error)}; {UNKNOWN}"


class Local:
    """Source of one node: the local one."""

    def __init__(self, *, is_simulated: bool = False, period_s: float = 1.0) -> None:
        self.host = clean(socket.gethostname())
        self.interval_s = period_s
        self._cards = Cards(is_simulated=is_simulated, period_s=period_s)
        self._books = UsageReader()
        self._processes = ProcessReader()
        self._spent: Spent[tuple[str, str]] = Spent()

    async def read(self) -> tuple[NodeView, ...]:
        """Return the local node as the only one."""
        try:
            state = await asyncio.to_thread(daemon_client.ask, "GET", "/v1/state")
        except daemon_client.NoDaemon as error:
            return (await self._alone(why_alone(error)),)
        except daemon_client.NodeRefused as error:
            return (await self._alone(f"the daemon refuses: {error}"),)
        except ValueError as error:
            return (await self._alone(f"the program on the daemon's socket is not a daemon: {error}"),)
        await self._cards.stop()
        return (await asyncio.to_thread(self._by_daemon, state if isinstance(state, dict) else {}),)

    async def close(self) -> None:
        await self._cards.stop()

    def _by_daemon(self, state: Facts) -> NodeView:
        self._processes.can_see_them = daemon_state.is_in_sight(state)
        now_ns = time.monotonic_ns()
        read_ns = daemon_state.read_at_ns(state) or now_ns
        cards = daemon_state.cards_in(state, self._spent.shares(read_ns, daemon_state.spent_in(state)))
        problems = daemon_state.problems_in(state)
        return NodeView(
            host=self.host,
            health="partial" if problems or any(card.is_bad for card in cards) else "up",
            at_s=now_ns / 1e9,
            cards=cards,
            processes=self._processes.look(daemon_state.held_in(state), now_ns=read_ns),
            problems=problems,
            may_change=daemon_state.may_change(state),
            sees_all=daemon_state.may_change(state),
        )

    async def _alone(self, why: str) -> NodeView:
        self._cards.start()
        await self._cards.wait(FIRST_ANSWER_S)
        return await asyncio.to_thread(self._by_books, why)

    def _by_books(self, why: str) -> NodeView:
        self._processes.can_see_them = True
        samples = self._cards.samples if self._cards.is_fresh() else ()
        by_card, held, unreadable = self._books.look()
        owners = {row.pid: row.tenant for row in held}
        cards = cards_with(samples, by_card, owners.keys())
        indexes = {uuid: card.index for card in cards for uuid, _ in card.on_parts()}
        rows = [replace(row, card_index=indexes.get(row.card)) for row in held]
        now_ns = time.monotonic_ns()
        nvml = () if samples else (f"no cards: {clean(self._cards.trouble or 'NVML shows none', 200)}",)
        return NodeView(
            host=self.host,
            health="partial" if cards else "down",
            at_s=now_ns / 1e9,
            cards=cards,
            processes=self._processes.look(
                with_tenants([*rows, *held_on(samples)], owners), now_ns=self._books.read_at_ns
            ),
            problems=(clean(why, 300), *nvml, *unreadable),
            has_daemon=False,
        )
