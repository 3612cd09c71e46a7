# SPDX-License-Identifier: Apache-2.0
"""Serves /healthz, /readyz and /metrics over TCP, for kubelets and Prometheus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(*, reasons: Callable[[], list[str]], metrics: Handler) -> web.Application:
    """Return the three pages. `reasons` returns the reasons that the daemon is not ready; empty if it is."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why = reasons()
        return web.Response(text="\n".join(why or ["ok"]) + "\n", status=503 if why else 200)

    app = web.Application(client_max_size=1024)
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app
