# SPDX-License-Identifier: Apache-2.0
"""An API server of our own making, as far as the daemon uses one: pods and events, lists in pages, watches
with bookmarks, versions, 410 in both forms, tokens. It also answers as a kubelet.

It runs on a thread with a loop of its own, so that tests can be plain functions and daemons real processes.
What a real server does beside this is tested against one in test_real_api.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import ssl
import threading
import uuid
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

Object = dict[str, Any]
T = TypeVar("T")
PODS = "/api/v1/pods"
BOOKMARK_S = 0.2
NO_INITIAL = (
    'ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for '
    "watch unless the WatchList feature gate is enabled"
)


class FakeApi:
    """A server and what it holds. All methods may be called from any thread."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0, collection: str = PODS) -> None:
        """`collection`: the path of another kind of objects, kept in place of pods."""
        self.port = port
        self._collection = collection
        self.tokens: set[str] | None = None
        """Who may come in; None: everybody."""
        self.gone_as_status = False
        """Old versions are refused by HTTP status, not by an event in the stream."""
        self.initial = "refused"
        """What becomes of sendInitialEvents: "refused", as by servers that have it off, "ignored", as by
        older ones, or "sent"."""
        self.after_initial: list[bytes] = []
        """Sent before the mark of the collection's end."""
        self.is_deaf = False
        """Changes are made but not told to watches: what a server that loses events looks like."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """(method, path, query) of all that came."""
        self.events: dict[str, Object] = {}
        self.answers: list[bytes] = []
        """Sent as they are to the next watches, instead of what is true."""
        self._tls = tls
        self._pods: dict[tuple[str, str], Object] = {}
        self._version = 100
        self._log: list[tuple[int, str, Object]] = []
        self._oldest = 0
        self._pages: dict[str, tuple[list[Object], int]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._news = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake api", daemon=True)
        self._thread.start()
        self.start()

    # ---- for tests ----

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, at the port it had before."""
        self._do(self._start())

    def stop(self) -> None:
        """End like a killed server: every connection is cut where it is."""
        self._do(self._stop())

    def close(self) -> None:
        self.stop()
        self._do(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def put(self, pod: Object) -> Object:
        """Make or replace a pod; return it as it is kept."""
        return self._do(self._put(pod))

    def annotate(self, name: str, /, namespace: str = "default", **annotations: str | None) -> Object:
        """Set or, with None, remove annotations "gpulimit.io/KEY"; __ in a key is a dot."""
        pod = copy.deepcopy(self._pods[namespace, name])
        kept = pod["metadata"].setdefault("annotations", {})
        for key, value in annotations.items():
            full = f"gpulimit.io/{key.replace('__', '.')}"
            if value is None:
                kept.pop(full, None)
            else:
                kept[full] = value
        return self.put(pod)

    def delete(self, name: str, namespace: str = "default") -> None:
        self._do(self._delete(namespace, name))

    def compact(self) -> None:
        """Forget everything but the present."""
        self._do(self._compact())

    def watches(self) -> int:
        """Return how many watches were begun."""
        return sum(query.get("watch") == "true" for _, _, query in self.requests)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    # ---- the store ----

    async def _put(self, pod: Object) -> Object:
        pod = copy.deepcopy(pod)
        meta = pod["metadata"]
        key = meta.setdefault("namespace", "default"), meta["name"]
        before = self._pods.get(key)
        meta.setdefault("uid", before["metadata"]["uid"] if before else str(uuid.uuid4()))
        self._pods[key] = pod
        await self._tell("MODIFIED" if before else "ADDED", pod)
        return pod

    async def _delete(self, namespace: str, name: str) -> None:
        await self._tell("DELETED", self._pods.pop((namespace, name)))

    async def _tell(self, kind: str, pod: Object) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        async with self._news:
            if not self.is_deaf:
                self._log.append((self._version, kind, copy.deepcopy(pod)))
            self._news.notify_all()

    async def _compact(self) -> None:
        self._version += 1
        self._oldest = self._version
        self._log.clear()
        self._pages.clear()

    # ---- the server ----

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._check])
        app.router.add_get(self._collection, self._get_pods)
        app.router.add_get("/pods", self._kubelet_pods)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}", self._get_pod)
        app.router.add_post("/api/v1/namespaces/{namespace}/events", self._post_event)
        app.router.add_patch("/api/v1/namespaces/{namespace}/events/{name}", self._patch_event)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        assert self._runner.addresses
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        assert runner.server is not None
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def _end_tasks(self) -> None:
        """End what still answers a cut connection: the loop is closed next."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    @web.middleware
    async def _check(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path, dict(request.query)))
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and bearer not in self.tokens:
            return refused(401, "Unauthorized")
        answer: web.StreamResponse = await handler(request)
        return answer

    def _selected(self, query: Any) -> list[Object]:
        node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
        return [p for p in self._pods.values() if not node or p["spec"].get("nodeName") == node]

    async def _get_pods(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        if query.get("watch") == "true":
            return await self._watch(request)
        if "continue" in query:
            page = self._pages.pop(query["continue"], None)
            if page is None:
                return refused(410, "The provided continue parameter is too old", "Expired")
            pods, version = page
        else:
            wanted = int(query.get("resourceVersion") or 0)
            if wanted and "limit" in query and query.get("resourceVersionMatch") != "NotOlderThan":
                return refused(400, "would be a list of the past, as this server does not keep it")
            if wanted > self._version:
                return refused(504, "Too large resource version", "Timeout")
            pods, version = self._selected(query), self._version
        limit = int(query.get("limit") or len(pods) or 1)
        token = ""
        if len(pods) > limit:
            token = f"page-{next(self._numbers)}"
            self._pages[token] = (pods[limit:], version)
        meta = {"resourceVersion": str(version), "continue": token}
        return web.json_response({"kind": "PodList", "metadata": meta, "items": pods[:limit]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        at = int(query.get("resourceVersion") or 0)
        wants_initial = query.get("sendInitialEvents") == "true"
        if wants_initial and self.initial == "refused":
            return refused(422, NO_INITIAL, "Invalid")
        if wants_initial and at > self._version:
            return refused(504, f"Too large resource version: {at}, current: {self._version}", "Timeout")
        # With the collection at the stream's head, the version is what it must not be older than.
        if at < self._oldest and self.gone_as_status and not wants_initial:
            return refused(410, f"too old resource version: {at} ({self._oldest})", "Expired")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        end = asyncio.get_running_loop().time() + float(query.get("timeoutSeconds") or 60)
        if self.answers:
            await response.write(self.answers.pop(0))
        elif wants_initial:
            with contextlib.suppress(ConnectionError):
                at = await self._send_initial(response, query)
                await self._stream(response, query, at, end)
        elif at < self._oldest:
            status = status_of(410, f"too old resource version: {at} ({self._oldest})", "Expired")
            await response.write(line_of("ERROR", status))
        else:
            with contextlib.suppress(ConnectionError):
                await self._stream(response, query, at, end)
        return response

    async def _send_initial(self, response: web.StreamResponse, query: Any) -> int:
        """Send the collection as a real server does; return its version."""
        version = self._version
        for one in self._selected(query):
            await response.write(line_of("ADDED", one))
        for line in self.after_initial:
            await response.write(line)
        if self.initial == "sent":
            meta = {"resourceVersion": str(version), "creationTimestamp": None}
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
            mark = {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"containers": None}}
            await response.write(line_of("BOOKMARK", {**mark, "status": {}}))
        return version

    async def _stream(self, response: web.StreamResponse, query: Any, at: int, end: float) -> None:
        node = query.get("fieldSelector", "").removeprefix("spec.nodeName=")
        loop = asyncio.get_running_loop()
        told = at
        while loop.time() < end:
            for version, kind, pod in [entry for entry in self._log if entry[0] > at]:
                at = version
                if not node or pod["spec"].get("nodeName") == node:
                    told = version
                    await response.write(line_of(kind, pod))
            async with self._news:
                if any(entry[0] > at for entry in self._log):
                    continue
                try:
                    await asyncio.wait_for(self._news.wait(), min(BOOKMARK_S, max(0.01, end - loop.time())))
                except TimeoutError:
                    if query.get("allowWatchBookmarks") == "true" and told < at:
                        told = at
                        await response.write(
                            line_of("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(at)}})
                        )

    async def _kubelet_pods(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "PodList", "metadata": {}, "items": list(self._pods.values())})

    async def _get_pod(self, request: web.Request) -> web.StreamResponse:
        pod = self._pods.get((request.match_info["namespace"], request.match_info["name"]))
        return web.json_response(pod) if pod else refused(404, "pods not found", "NotFound")

    async def _post_event(self, request: web.Request) -> web.StreamResponse:
        event = await request.json()
        name = event["metadata"]["name"]
        if name in self.events:
            return refused(409, "already exists", "AlreadyExists")
        self.events[name] = event
        return web.json_response(event, status=201)

    async def _patch_event(self, request: web.Request) -> web.StreamResponse:
        event = self.events.get(request.match_info["name"])
        if event is None:
            return refused(404, "not found", "NotFound")
        event.update(await request.json())
        return web.json_response(event)


def line_of(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def status_of(code: int, message: str, reason: str = "") -> Object:
    meta: Object = {}
    return {
        "kind": "Status",
        "status": "Failure",
        "metadata": meta,
        "message": message,
        "reason": reason,
        "code": code,
    }


def refused(code: int, message: str, reason: str = "") -> web.Response:
    return web.json_response(status_of(code, message, reason), status=code)


def pod(
    name: str,
    *,
    node: str = "node-a",
    namespace: str = "default",
    annotations: dict[str, str] | None = None,
    containers: tuple[str, ...] = ("main",),
    init: tuple[str, ...] = (),
    uid: str | None = None,
    phase: str = "Running",
    **parts: Any,
) -> Object:
    """Return a pod as the API has it, each container with an id of its own."""
    uid = uid or str(uuid.uuid4())
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "annotations": {f"gpulimit.io/{key}": value for key, value in (annotations or {}).items()},
        },
        "spec": {
            "nodeName": node,
            "initContainers": [{"name": name, "image": "x"} for name in init],
            "containers": [{"name": name, "image": "x"} for name in containers],
            **parts,
        },
        "status": {
            "phase": phase,
            "initContainerStatuses": [status(uid, name) for name in init],
            "containerStatuses": [status(uid, name) for name in containers],
        },
    }


def status(uid: str, container: str) -> Object:
    name = f"containerd://{container_id(uid, container)}"
    return {"name": container, "containerID": name, "state": {"running": {}}}


def container_id(uid: str, container: str, run: int = 0) -> str:
    """Return the id that a run of a pod's container has here."""
    return (uuid.uuid5(uuid.UUID(uid), f"{container} {run}").hex * 2)[:64]


def restarted(made: Object, container: str, run: int) -> Object:
    """Return a pod of which a container has been restarted: it has another id."""
    made = copy.deepcopy(made)
    for status in made["status"]["containerStatuses"]:
        if status["name"] == container:
            status["containerID"] = f"containerd://{container_id(made['metadata']['uid'], container, run)}"
    return made
