# SPDX-License-Identifier: Apache-2.0
"""Counts the calls on the Unix socket, and their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
RECEIVED, SENT = "received", "sent"


class RequestStats:
    """Messages by (type, direction), and registrations by result."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        self.registrations: Counter[str] = Counter({"accepted": 0, "refused": 0, "failed": 0})

    def counted(self, app: web.Application) -> web.Application:
        """Count an application's calls."""

        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            kind = kind_of(request)
            self.messages[kind, RECEIVED] += 1
            response = await handler(request)
            self._answered(kind, response)
            return response

        app.middlewares.insert(0, count)
        return app

    def _answered(self, kind: str, response: web.StreamResponse) -> None:
        command = response.headers.get("Gpulimit-Command", "").partition(" ")[2]
        if command:
            self.messages[command, SENT] += 1
        if kind != "register":
            return
        result = "accepted" if response.status == 200 else "failed" if response.status >= 500 else "refused"
        self.registrations[result] += 1
        self.messages[result, SENT] += 1


def kind_of(request: web.Request) -> str:
    """Return the kind of a call; operators' calls are one kind."""
    resource = request.match_info.route.resource
    return {
        "/v1/workers": "register",
        "/v1/workers/{id}/commands": "poll",
        "/v1/workers/{id}/results": "result",
    }.get(resource.canonical if resource is not None else "", "operator")
