# SPDX-License-Identifier: Apache-2.0
"""Follows a collection of the API server: a list, then every change of it.

After a failure (the server goes away, drops old versions, cuts the stream, sends invalid data), the watch
continues from its last version, or lists again. The reader then gets the whole collection and can find missed
changes.

Newer servers (by default Kubernetes 1.34 and later) send the collection at the head of the stream, which
costs them less than a list. If a server refuses or ignores that, the watch uses lists from then on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from hypervisor.errors import KubeError
from hypervisor.k8s.backoff import Backoff
from hypervisor.k8s.client import GONE, Client, Object

logger = logging.getLogger(__name__)
STREAM_S = (240, 300)
"""Range of the requested length of a stream; random, so that the streams of many nodes do not end
together."""
SILENCE_S = 30
"""Additional time without data before a stream counts as broken."""
MIN_S, STEADY_S = 0.5, 10.0
"""A stream that ends sooner than MIN_S is a failure; one that lasts STEADY_S resets the backoff."""
MAX_WAIT_S = 10.0
TOO_NEW = 504
NOT_UNDERSTOOD = (400, 422)
INITIAL_S = 5.0
"""Longest time for the collection at the head of a stream."""
MAX_INITIAL_OBJECTS = 100_000
INITIAL_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark at the end of the collection."""
COMPLAIN_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Listed:
    """The whole current collection; an object that is missing in it is gone."""

    items: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """A new or changed object."""

    item: Object


@dataclass(frozen=True, slots=True)
class Gone:
    """A deleted object, in its last state."""

    item: Object


Change = Listed | Put | Gone


class Watch:
    """One collection. Only one task may read `changes()`."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        field_selector: str = "",
        label_selector: str = "",
        stream_s: tuple[int, int] = STREAM_S,
        backoff: Backoff | None = None,
    ) -> None:
        self._client, self._path, self._stream_s = client, path, stream_s
        self._selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._backoff = backoff or Backoff(most_s=MAX_WAIT_S)
        self._version: str | None = None
        """Version to watch from; None if the collection must be listed."""
        self._newest = "0"
        """Oldest acceptable version of a list; empty for the newest one."""
        self._listed = ""
        """Version of the last list."""
        self._complained_ns = -COMPLAIN_NS
        self._asks_streams = True
        """True if the collection is requested at the head of the stream."""
        self.is_up = False
        """True while a stream is open."""
        self.restarts = 0
        """Number of restarts of the stream, without streams that ended on time."""
        self.lists = 0
        self.trouble = "not connected yet"
        self.heard_at_s = time.monotonic()
        """Time of the last data from the server; the start time before the first data."""

    def start_over(self) -> None:
        """Start again with a list, at once: the known state may be wrong."""
        self._version, self._newest = None, ""
        self._client.cut()

    @property
    def lists_by_stream(self) -> bool:
        """True until the server has shown that it sends no collection at the head of a stream."""
        return self._asks_streams

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield the collection, then its changes, until closed."""
        while True:
            try:
                if self._version is None and not self._asks_streams:
                    yield await self._list()
                async for change in self._follow():
                    yield change
            except KubeError as error:
                await self._recover(error)

    async def _list(self) -> Listed:
        # Without the second parameter, a version with a page size means the state at exactly that version.
        match = "NotOlderThan" if self._newest else ""
        query = {**self._selectors, "resourceVersion": self._newest, "resourceVersionMatch": match}
        listing = await self._client.list(self._path, query)
        self._version = self._newest = self._listed = listing.version
        self.lists += 1
        self._heard()
        return Listed(listing.items)

    async def _follow(self) -> AsyncGenerator[Change, None]:
        """Yield the changes in one stream, until it ends on time. Raises KubeError."""
        stream_s = random.randint(*self._stream_s)  # noqa: S311
        query = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(stream_s),
        }
        begin, version = time.monotonic(), self._version
        if version is None:
            query |= {
                "sendInitialEvents": "true",
                "resourceVersionMatch": "NotOlderThan",
                "resourceVersion": self._newest,
            }
        try:
            lines = self._client.lines(self._path, query, silence_s=stream_s + SILENCE_S)
            if version is None:
                listed = await self._initial(lines)
                if listed is None:  # it is to be listed
                    return
                yield listed
            async for line in lines:
                self._heard()
                if self._version is None:  # to be listed again
                    return
                self.is_up, self.trouble = True, ""
                change = self._take(line) if line.strip() else None
                if change is not None:
                    yield change
        finally:
            self.is_up = False
            if time.monotonic() - begin > STEADY_S:
                self._backoff.reset()
        if time.monotonic() - begin < MIN_S:
            raise KubeError(0, "the stream ends at once")
        if self._version == version:
            # Nothing happened, or the server was reset to before this version and would wait for ever.
            self._version, self._newest = None, ""
        self.is_up = True  # until the next one is refused

    async def _initial(self, lines: AsyncIterator[bytes]) -> Listed | None:
        """Return the collection at the head of a stream; None if the server sends none. Raises KubeError."""
        found: dict[tuple[str, str], Object] = {}
        try:
            async with asyncio.timeout(INITIAL_S):
                async for line in lines:
                    self._heard()
                    kind, item = event_of(line) if line.strip() else ("", {})
                    check_error(kind, item)
                    meta = item.get("metadata", {})
                    if kind == "BOOKMARK" and is_initial_end(meta):
                        self._version = self._newest = self._listed = version_of(meta)
                        self.lists += 1
                        self.is_up, self.trouble = True, ""
                        return Listed(tuple(found.values()))
                    if kind in ("ADDED", "MODIFIED"):
                        found[key_of(meta)] = item
                    elif kind == "DELETED":
                        found.pop(key_of(meta), None)
                    if len(found) > MAX_INITIAL_OBJECTS:
                        raise KubeError(0, "the collection at the head of the stream has no end")
        except KubeError as error:
            if error.status not in NOT_UNDERSTOOD:
                raise
            self._ask_lists(str(error))
            return None
        except TimeoutError:
            self._ask_lists("the collection did not end")
            return None
        raise KubeError(0, "the stream ends within the collection")

    def _ask_lists(self, why: str) -> None:
        self._asks_streams = False
        logger.info("watch on %s: asking for lists, not for streams that begin with one: %s", self._path, why)

    def _take(self, line: bytes) -> Change | None:
        kind, item = event_of(line)
        check_error(kind, item)
        self._version = self._newest = version_of(item.get("metadata", {}))
        # Only now the server is known to work: some servers open a stream and then send an error in it.
        self._backoff.reset()
        if kind == "BOOKMARK":
            return None
        return Gone(item) if kind == "DELETED" else Put(item)

    def _heard(self) -> None:
        self.heard_at_s = time.monotonic()

    async def _recover(self, error: KubeError) -> None:
        self.is_up, self.trouble = False, str(error)
        self.restarts += 1
        if error.status == GONE:
            # A list from a cache may have a version from which no watch is possible any more.
            self._newest = "" if self._version == self._listed else self._newest
            self._version = None
        elif error.status == TOO_NEW and self._version is None:
            self._newest = ""
        wait_s = self._backoff.next_s()
        now_ns = time.monotonic_ns()
        if now_ns - self._complained_ns >= COMPLAIN_NS:
            self._complained_ns = now_ns
            logger.warning("watch on %s: %s; trying again", self._path, error)
        await asyncio.sleep(wait_s)


def event_of(line: bytes) -> tuple[str, Object]:
    """Return the kind and the object of a line. Raises KubeError."""
    try:
        event = json.loads(line)
        kind, item = event["type"], event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise KubeError(0, f"the stream says {line[:60]!r}") from error
    if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR") or not isinstance(item, dict):
        raise KubeError(0, f"an event of type {kind!r}")
    if not isinstance(item.get("metadata", {}), dict):
        raise KubeError(0, "an event without metadata")
    return kind, item


def check_error(kind: str, item: Object) -> None:
    """Raise KubeError with the message of an event of type ERROR."""
    if kind == "ERROR":
        code = item.get("code")
        raise KubeError(code if isinstance(code, int) else 0, str(item.get("message", "an error")))


def version_of(meta: Object) -> str:
    """Return an object's version. Raises KubeError."""
    version = meta.get("resourceVersion")
    if not isinstance(version, str) or not version:
        raise KubeError(0, "an event without a version")
    return version


def key_of(meta: Object) -> tuple[str, str]:
    return str(meta.get("namespace", "")), str(meta.get("name", ""))


def is_initial_end(meta: Object) -> bool:
    annotations = meta.get("annotations")
    return isinstance(annotations, dict) and annotations.get(INITIAL_END) == "true"
