# SPDX-License-Identifier: Apache-2.0
"""Posts Events about pods, which `kubectl describe pod` shows.

No caller waits for them: a background task sends them one by one. It sends the same Event at most every ten
minutes (the server then increments its count), and drops Events if too many wait or the server is away.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
import time
from collections import Counter
from dataclasses import dataclass

from hypervisor.errors import KubeError
from hypervisor.k8s.client import Client, Object

logger = logging.getLogger(__name__)
MAX_WAITING_EVENTS = 100
MAX_REMEMBERED_EVENTS = 1024
AGAIN_S = 600.0
PAUSE_S = 0.2
MAX_MESSAGE_CHARS = 1000
NORMAL = frozenset({"QuotaChanged"})
"""Reasons of type Normal; all others are warnings."""
EXISTS = 409


@dataclass(frozen=True, slots=True)
class Subject:
    """The pod that an event is about."""

    uid: str
    namespace: str
    name: str


class PodEvents:
    """Sends events. Event loop only; `post` queues, `run` sends."""

    def __init__(self, client: Client, *, component: str, host: str) -> None:
        self._client, self._component, self._host = client, component, host
        self._waiting: asyncio.Queue[tuple[Subject, str, str]] = asyncio.Queue(MAX_WAITING_EVENTS)
        self._sent_s: dict[tuple[str, str, str], float] = {}
        self._times: dict[str, int] = {}
        """Number of times that each event was sent since this daemon started, by name."""
        self.counts: Counter[str] = Counter(sent=0, dropped=0, failed=0)

    def post(self, subject: Subject, reason: str, message: str) -> None:
        """Queue an event about a pod, unless it was sent recently."""
        key, now_s = (subject.uid, reason, message), time.monotonic()
        if now_s - self._sent_s.get(key, -AGAIN_S) < AGAIN_S:
            return
        try:
            self._waiting.put_nowait((subject, reason, message))
        except asyncio.QueueFull:
            self.counts["dropped"] += 1
            return
        if len(self._sent_s) >= MAX_REMEMBERED_EVENTS:
            self._sent_s.clear()
            self._times.clear()
        self._sent_s[key] = now_s

    async def run(self) -> None:
        """Send events until cancelled."""
        while True:
            subject, reason, message = await self._waiting.get()
            try:
                await self._send(self.event(subject, reason, message))
                self.counts["sent"] += 1
            except KubeError as error:
                self.counts["failed"] += 1
                logger.debug("event %s of %s not sent: %s", reason, subject.name, error)
            await asyncio.sleep(PAUSE_S)

    async def _send(self, event: Object) -> None:
        path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events"
        try:
            await self._client.create(path, event)
        except KubeError as error:
            if error.status != EXISTS:
                raise
            name = event["metadata"]["name"]
            self._times[name] = times = self._times.get(name, 1) + 1
            change = {"count": times, "lastTimestamp": event["lastTimestamp"]}
            await self._client.patch(f"{path}/{name}", change)

    def event(self, subject: Subject, reason: str, message: str) -> Object:
        """Return an event; the same about the same pod has the same name."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        digest = hashlib.sha256(f"{subject.uid} {reason} {message}".encode()).hexdigest()[:16]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{subject.name[:200]}.{digest}", "namespace": subject.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": subject.name,
                "namespace": subject.namespace,
                "uid": subject.uid,
            },
            "reason": reason,
            "message": message[:MAX_MESSAGE_CHARS],
            "type": "Normal" if reason in NORMAL else "Warning",
            "source": {"component": self._component, "host": self._host},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
