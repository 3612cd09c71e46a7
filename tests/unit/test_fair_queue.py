# SPDX-License-Identifier: Apache-2.0
"""Work of several users is done in turn."""

from __future__ import annotations

import asyncio

from hypervisor.api.fair_queue import FairQueue


def test_one_users_much_work_delays_another_users_by_one_piece() -> None:
    done: list[str] = []

    async def scenario() -> None:
        queue = FairQueue()
        for number in range(100):
            queue.put("much", lambda number=number: done.append(f"much {number}"))
        queue.put("little", lambda: done.append("little"))
        assert queue.waiting("much") == 100
        while queue.waiting("much"):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert done[:3] == ["much 0", "little", "much 1"]
    assert done[3:] == [f"much {number}" for number in range(2, 100)]


def test_work_that_fails_stops_no_other() -> None:
    done: list[int] = []

    async def scenario() -> None:
        queue = FairQueue()
        queue.put("a", lambda: [][1])
        queue.put("a", lambda: done.append(1))
        queue.put("b", lambda: done.append(2))
        while queue.waiting("a") or queue.waiting("b"):
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert sorted(done) == [1, 2]
