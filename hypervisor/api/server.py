# SPDX-License-Identifier: Apache-2.0
"""Serves the HTTP calls on the Unix socket and over TCP.

Workers register and poll for commands. Operators read the state and change quotas. The connection identifies
the caller, never the request's text. It is identified for each request, and again after each long wait: a
process may pass its connection to another process and end. This module bounds all bodies and checks all
fields. The node makes the decisions.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from aiohttp import web
from limiter._native import lib

from hypervisor.errors import Refused
from hypervisor.host.tcp_endpoints import TcpEndpoints
from hypervisor.model import ClientHints, Peer, ProcessKey, Registration, TenantName, Worker, WorkerId
from hypervisor.node.commands import Command
from hypervisor.node.quota_changes import FIELDS, QuotaChange
from limiter import quota
from limiter.errors import QuotaError

MAX_BODY_BYTES = 64 << 10
MAX_WAIT_S = 60.0
MAX_TEXT_CHARS = 256
VERSION = int(lib.GL_LAYOUT_VERSION)
"""Version of the shared-memory layout. The daemon refuses a library with another version."""
WORKERS = "/v1/workers"


class NodeApi(Protocol):
    """The part of the node that the calls use."""

    def peer(self, connection: Any) -> Peer: ...
    def register(self, connection: Any, hints: ClientHints, caller: Peer | None = None) -> Registration: ...
    async def saved(self) -> None: ...
    def find_caller(self, endpoints: TcpEndpoints, hints: ClientHints) -> Peer: ...
    def is_caller(self, endpoints: TcpEndpoints, key: ProcessKey) -> bool: ...
    def hand_over(self, connection: Any, tenant: TenantName) -> None: ...
    def worker(self, worker_id: WorkerId) -> Worker: ...
    async def next_command(self, worker_id: WorkerId, after: int, wait_s: float) -> Command | None: ...
    def finished(self, worker_id: WorkerId, number: int, message: str, *, ok: bool) -> None: ...
    def is_operator(self, peer: Peer) -> bool: ...
    async def state(self, peer: Peer | None) -> dict[str, Any]: ...
    def quota_of(self, tenant: TenantName, peer: Peer | None) -> dict[str, Any]: ...
    def set_quota(self, tenant: TenantName, wanted: quota.Quota | None) -> dict[str, Any]: ...
    def change_quota(self, tenant: TenantName, change: QuotaChange) -> dict[str, Any]: ...
    def suspend(self, tenant: TenantName, *, is_suspended: bool) -> list[str]: ...


class Server:
    """Both applications: the one for the Unix socket, and the one for TCP."""

    def __init__(self, node: NodeApi) -> None:
        self._node = node

    def unix_application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[refusals])
        self._add_workers_calls(app)
        self._add_operators_calls(app, self._caller)
        return app

    def tcp_application(self, operators: str, processes: str) -> web.Application:
        """Return the application for TCP: the two tokens of operators and processes; "" disables that set of
        calls.

        The processes' token allows only registration and its follow-up calls. It does not identify the
        process: the daemon looks up the holder of the connection.
        """

        @web.middleware
        async def bearer(request: web.Request, handler: Handler) -> web.StreamResponse:
            token = processes if request.path.startswith(WORKERS) else operators
            given = request.headers.get("Authorization", "")
            if not token:
                raise Refused(403, "this call is not served over TCP")
            if not is_same(given, f"Bearer {token}"):
                raise Refused(401, "this call needs the token")
            return await handler(request)

        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[refusals, bearer])
        self._add_workers_calls(app)
        self._add_operators_calls(app, lambda _: None)
        return app

    def _add_workers_calls(self, app: web.Application) -> None:
        app.add_routes(
            [
                web.post(WORKERS, self._register),
                web.get(WORKERS + "/{id}/commands", self._commands),
                web.post(WORKERS + "/{id}/results", self._results),
            ]
        )

    def _add_operators_calls(
        self, app: web.Application, caller_of: Callable[[web.Request], Peer | None]
    ) -> None:
        node = self._node

        def check_writer(request: web.Request) -> None:
            peer = caller_of(request)
            if peer is not None and not node.is_operator(peer):
                raise Refused(403, "only root and the daemon's group may change this")

        async def state(request: web.Request) -> web.Response:
            return web.json_response(await node.state(caller_of(request)))

        async def show(request: web.Request) -> web.Response:
            return web.json_response(node.quota_of(tenant_in(request), caller_of(request)))

        async def change(request: web.Request) -> web.Response:
            body = await body_of(request)
            check_writer(request)
            return web.json_response(node.set_quota(tenant_in(request), quota_in(body)))

        async def change_some(request: web.Request) -> web.Response:
            body = await body_of(request)
            check_writer(request)
            return web.json_response(node.change_quota(tenant_in(request), change_in(body)))

        async def drop(request: web.Request) -> web.Response:
            check_writer(request)
            return web.json_response(node.set_quota(tenant_in(request), None))

        def suspending(*, is_suspended: bool) -> Handler:
            async def handle(request: web.Request) -> web.Response:
                check_writer(request)
                warnings = node.suspend(tenant_in(request), is_suspended=is_suspended)
                return web.json_response({"warnings": warnings}) if warnings else web.Response(status=204)

            return handle

        app.add_routes(
            [
                web.get("/v1/state", state),
                web.get("/v1/tenants/{tenant}/quota", show),
                web.put("/v1/tenants/{tenant}/quota", change),
                web.patch("/v1/tenants/{tenant}/quota", change_some),
                web.delete("/v1/tenants/{tenant}/quota", drop),
                web.post("/v1/tenants/{tenant}/suspend", suspending(is_suspended=True)),
                web.post("/v1/tenants/{tenant}/resume", suspending(is_suspended=False)),
            ]
        )

    async def _register(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        if body.get("version") != VERSION:
            raise Refused(422, f"this daemon speaks version {VERSION}, not {body.get('version')!a}")
        hints, endpoints, caller = hints_in(body), endpoints_of(request), None
        if endpoints is not None:
            caller = await asyncio.to_thread(self._node.find_caller, endpoints, hints)
        answer = self._node.register(connection_of(request), hints, caller)
        if body.get("files") is True and endpoints is None:
            self._node.hand_over(connection_of(request), answer.tenant)
        await self._node.saved()
        headers = {
            "Gpulimit-Worker": answer.worker,
            "Gpulimit-Host-Pid": str(answer.host_pid),
            "Gpulimit-Tenant": answer.tenant,
            "Gpulimit-Usage": answer.usage,
            "Gpulimit-Policy": answer.policy,
            "Gpulimit-Source": answer.source,
        }
        shown = {
            name.removeprefix("Gpulimit-").lower().replace("-", "_"): text for name, text in headers.items()
        }
        return web.json_response(shown, headers=headers)

    async def _commands(self, request: web.Request) -> web.Response:
        worker = await self._own_worker(request)
        after = number_in(request.query, "after", most=1 << 62)
        wait_s = number_in(request.query, "wait", most=int(MAX_WAIT_S))
        command = await self._node.next_command(worker.id, after, wait_s)
        if command is None:
            return web.Response(status=204)
        shown = {"number": command.number, "name": command.name, "argument": command.argument}
        headers = {"Gpulimit-Command": f"{command.number} {command.name}"}
        return web.json_response({"commands": [shown]}, headers=headers)

    async def _results(self, request: web.Request) -> web.Response:
        body = await body_of(request)
        worker = await self._own_worker(request)
        number, ok = body.get("number"), body.get("ok")
        if not isinstance(number, int) or not isinstance(ok, bool):
            raise Refused(422, "number must be a whole number, and ok true or false")
        self._node.finished(worker.id, number, text_in(body, "message"), ok=ok)
        return web.Response(status=204)

    def _caller(self, request: web.Request) -> Peer:
        return self._node.peer(connection_of(request))

    async def _own_worker(self, request: web.Request) -> Worker:
        """Return the worker in the path. Raises Refused if it is not the caller."""
        worker = self._node.worker(WorkerId(request.match_info["id"]))
        endpoints = endpoints_of(request)
        if endpoints is None:
            is_caller = self._caller(request).key == worker.key
        else:
            is_caller = await asyncio.to_thread(self._node.is_caller, endpoints, worker.key)
        if not is_caller:
            raise Refused(403, "this worker is another process")
        return self._node.worker(worker.id)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn a Refused exception into an answer with the same line in header and body."""
    try:
        return await handler(request)
    except Refused as error:
        return web.json_response(
            {"error": str(error)}, status=error.status, headers={"Gpulimit-Error": error.header}
        )


def connection_of(request: web.Request) -> Any:
    """Return the socket of a request. Raises Refused if it is closed."""
    connection = request.transport and request.transport.get_extra_info("socket")
    if connection is None:
        raise Refused(403, "the caller has gone")
    return connection


def endpoints_of(request: web.Request) -> TcpEndpoints | None:
    """Return the ends of a TCP connection; None for a Unix socket, whose peer the kernel names."""
    transport = request.transport
    if transport is None:
        raise Refused(403, "the caller has gone")
    return TcpEndpoints.of(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))


def is_same(given: str, expected: str) -> bool:
    """True if two texts are equal. The time does not depend on their lengths or on where they differ."""
    one, other = (hashlib.sha256(t.encode(errors="surrogateescape")).digest() for t in (given, expected))
    return hmac.compare_digest(one, other)


async def body_of(request: web.Request) -> dict[str, Any]:
    """Return the JSON object in a body. Raises Refused if it is none; aiohttp refuses a body that is too
    large.
    """
    try:
        data = json.loads(await request.read())
    except (ConnectionError, web.RequestPayloadError) as error:
        raise Refused(403, "the caller has gone") from error
    except (ValueError, RecursionError) as error:
        raise Refused(422, "the body is not JSON") from error
    if not isinstance(data, dict):
        raise Refused(422, "the body is not a JSON object")
    return data


def text_in(body: Mapping[str, Any], key: str) -> str:
    """Return a text field without control characters, which could steer a terminal."""
    value = body.get(key, "")
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        raise Refused(422, f"{key} must be text of at most {MAX_TEXT_CHARS} characters")
    return "".join(c if c.isprintable() else "?" for c in value)


def texts_in(body: Mapping[str, Any], key: str) -> dict[str, str]:
    value = body.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise Refused(422, f"{key} must be an object of texts")
    return value


def number_in(query: Mapping[str, str], key: str, *, most: int) -> int:
    text = query.get(key, "0")
    if not (text.isascii() and text.isdecimal()) or len(text) > 20:
        raise Refused(422, f"{key} must be a whole number")
    return min(int(text), most)


def tenant_in(request: web.Request) -> TenantName:
    return TenantName(request.match_info["tenant"])


def quota_in(body: Mapping[str, Any]) -> quota.Quota:
    """Return the quota in {"memory": "4GiB", "compute": 30, "request": …, "weight": …, "priority": …}."""
    variables, flags = {}, {}
    for key, value in body.items():
        variable = f"GPULIMIT_{key.upper()}"
        if variable not in quota.VARIABLES or key == "tenant" or not key.islower():
            raise Refused(422, f"{key[:40]!a} is no part of a quota")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise Refused(422, f"{key} must be text or a whole number")
        variables[variable], flags[variable] = str(value), key
    try:
        return quota.read({k: v for k, v in variables.items() if v}, flags=flags)
    except QuotaError as error:
        raise Refused(422, str(error)) from error


def change_in(body: Mapping[str, Any]) -> QuotaChange:
    """Return the changed fields in {"memory": "4GiB", "request": null}; null removes a field."""
    cleared = [key for key, value in body.items() if value in (None, "", "none")]
    for key in cleared:
        if key not in FIELDS:
            raise Refused(422, f"{key[:40]!a} is no part of a quota")
    return QuotaChange(quota_in({k: v for k, v in body.items() if k not in cleared}), cleared)


def hints_in(body: Mapping[str, Any]) -> ClientHints:
    """Return a process's claims about itself. Raises Refused if a field is invalid."""
    try:
        own_quota = quota.read(texts_in(body, "environment"))
    except QuotaError as error:
        raise Refused(422, str(error)) from error
    pid, ticks = body.get("pid", 0), body.get("start_ticks", 0)
    return ClientHints(
        pid=pid if isinstance(pid, int) and 0 <= pid < 1 << 32 else 0,
        name=text_in(body, "name")[:15],
        tenant=text_in(body, "tenant") or own_quota.tenant or "",
        quota=own_quota,
        is_nvml_only=body.get("view") is True,
        start_ticks=ticks if isinstance(ticks, int) and 0 <= ticks < 1 << 64 else 0,
    )
