# SPDX-License-Identifier: Apache-2.0
"""Serves simulated nodes, each on its own port, with the faults of their pages."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from aiohttp import web

from hypervisor.exporter import health, scrape
from hypervisor.exporter.exporter import Exporter
from hypervisor.simulator.node import SimulatedNode
from hypervisor.simulator.spec import Fault, Plan

PERIOD_S = 1.0
SLOW_S = 3.0
FLAP_S, DOWN_S = 30.0, 10.0
NOISE_BYTES = 64 << 10
HUGE_LINE = b'gpulimit_gpu_info{gpu_uuid="GPU-%d"} 1\n' * 4096


class Served:
    """A node and its pages."""

    def __init__(self, plan: Plan, compat: Sequence[str]) -> None:
        self.node = SimulatedNode(plan)
        self.exporter = Exporter(compat=compat)
        self._page = scrape.handler(self.exporter.page)

    def look(self, now_s: float) -> None:
        self.exporter.publish(self.node.step(now_s))

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        faults = self.node.plan.faults
        if is_down(faults, time.monotonic()):
            if request.transport is not None:
                request.transport.abort()
            raise web.HTTPServiceUnavailable
        if "slow" in faults:
            await asyncio.sleep(SLOW_S)
        if "garbage" in faults:
            return web.Response(body=os.urandom(NOISE_BYTES))
        if "huge" in faults:
            return await endless(request)
        return await self._page(request)

    def application(self) -> web.Application:
        nvml = "nvml: has not done its work lately"
        return health.application(
            reasons=lambda: [nvml] if "nvml-down" in self.node.plan.faults else [], metrics=self.metrics
        )


def is_down(faults: frozenset[Fault], now_s: float) -> bool:
    return "down" in faults or ("flapping" in faults and now_s % FLAP_S < DOWN_S)


async def endless(request: web.Request) -> web.StreamResponse:
    """Write for as long as a client reads."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain; version=0.0.4"})
    await response.prepare(request)
    while True:
        await response.write(HUGE_LINE)


async def serve(
    plans: Sequence[Plan], host: str, port: int, compat: Sequence[str], told: asyncio.Event
) -> None:
    """Serve nodes on `port` and the ones after it, until cancelled; `told` is set once all listen."""
    served = [Served(plan, compat) for plan in plans]
    runners: list[web.AppRunner] = []
    try:
        for place, one in enumerate(served):
            one.look(time.time())
            runner = web.AppRunner(
                one.application(), access_log=None, handle_signals=False, shutdown_timeout=0.2
            )
            runners.append(runner)
            await runner.setup()
            await web.TCPSite(runner, host, port + place).start()
        told.set()
        while True:
            begin = time.monotonic()
            for one in served:
                one.look(time.time())
                await asyncio.sleep(0)
            await asyncio.sleep(max(0.0, begin + PERIOD_S - time.monotonic()))
    finally:
        for runner in runners:
            await runner.cleanup()
