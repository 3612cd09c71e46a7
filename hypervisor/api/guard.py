# SPDX-License-Identifier: Apache-2.0
"""Guards that each HTTP call passes before its handler: the caller's rate, a body in time, plain errors.

Each error is answered in JSON, with the same line in a header, and logged once per cause. A client that hangs
up is no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from hypervisor.api.accounts import Accounts, CallerAccount, TooOften
from hypervisor.api.connection import IDLE_S, ApiConnection
from hypervisor.errors import Refused
from hypervisor.host.descriptors import shortage_of
from hypervisor.log import account_in_log

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SERVER_OPTIONS: dict[str, Any] = {
    "access_log": None,
    "auto_decompress": False,
    "lingering_time": 1.0,
    "keepalive_timeout": IDLE_S,
}
"""Options of aiohttp: a body is not decompressed before the guard has refused compressed ones."""


READERS = ("/v1/state", "/metrics")
COST_PER_S = 2000
"""Requests that are charged per second of work on such an answer."""


def guarded(app: web.Application, accounts: Accounts, *, timeout_s: float) -> web.Application:
    """Put the guards in front of an application's calls; a body must arrive within `timeout_s`."""

    @web.middleware
    async def phases(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = connection_of(request)
        if connection is None:
            return await plain_errors(request, handler)
        connection.request_began(request.content if request.can_read_body else None)
        account_in_log.set(connection.account.name)
        try:
            return await plain_errors(request, handler)
        finally:
            connection.request_ended()

    async def plain_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            async with turn(request):
                return await handler(request)
        except TooOften as error:
            response = answer(error.status, str(error))
            response.force_close()
            return response
        except Refused as error:
            return answer(error.status, str(error))
        except web.HTTPException as error:
            return error if error.status < 400 else answer_to(error)
        except ConnectionError:  # the client has hung up and would not get an answer
            return web.Response(status=499)
        except Exception as error:
            reason = shortage_of(error)
            if reason is not None:
                logger.error("a call failed: %s", reason)
                return answer(503, f"the daemon has {reason}")
            logger.exception("a call failed: %s", type(error).__name__)
            return answer(500, "the daemon has made a mistake; its log says which")

    @contextlib.asynccontextmanager
    async def turn(request: web.Request) -> AsyncIterator[None]:
        """Wait until the caller may be answered; calls that read usage segments are answered one by one."""
        account = account_of(request)
        if account is None or account.is_operator:
            yield
            return
        delay_s = accounts.charge(account, 1)
        if delay_s:
            await asyncio.sleep(delay_s)
        async with account.starting:
            await asyncio.sleep(0)
        if request.path not in READERS:
            yield
            return
        async with account.reading:
            began_s = time.monotonic()
            try:
                yield
            finally:
                took_s = time.monotonic() - began_s
                accounts.add(account, took_s * COST_PER_S)

    @web.middleware
    async def bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Read the body, so that no handler waits for it."""
        if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
            raise Refused(415, "a body must not be compressed")
        if request.can_read_body:
            try:
                async with asyncio.timeout(timeout_s):
                    await request.read()
            except TimeoutError as error:
                raise Refused(408, f"the body has not come within {timeout_s:g} s") from error
            except (web.RequestPayloadError, RuntimeError) as error:
                # RuntimeError: the connection had ended before the body was asked for.
                raise Refused(400, "the body is not whole") from error
        return await handler(request)

    app.middlewares.insert(0, phases)
    app.middlewares.append(bodies)
    return app


def connection_of(request: web.Request) -> ApiConnection | None:
    """Return the connection of a request, which keeps the deadlines; None if it is closed."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, ApiConnection) else None


def account_of(request: web.Request) -> CallerAccount | None:
    connection = connection_of(request)
    return connection.account if connection is not None else None


def answer(status: int, reason: str) -> web.Response:
    """Return a refusal; the connection ends if the body may not have been read."""
    headers = {"Gpulimit-Error": reason}
    if status == 503:
        headers["Retry-After"] = "1"
    response = web.json_response({"error": reason}, status=status, headers=headers)
    if status in (400, 408, 413, 415):
        response.force_close()
    return response


def answer_to(error: web.HTTPException) -> web.Response:
    response = answer(error.status, error.reason or http.HTTPStatus(error.status).phrase)
    with contextlib.suppress(KeyError):
        response.headers["Allow"] = error.headers["Allow"]
    return response
