# SPDX-License-Identifier: Apache-2.0
"""Registers processes: identifies the caller, chooses its tenant, and builds the answer. Event loop only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypervisor.errors import Refused, SegmentError, SegmentFull, SegmentHeld
from hypervisor.model import (
    ClientHints,
    Origin,
    Peer,
    PodRef,
    ProcessKey,
    Registration,
    RegistrationRequest,
    TenantName,
    Worker,
)
from hypervisor.node.events import record_event
from hypervisor.node.node import Node

CONFLICT = 409
"""Status of a refusal that passes once another tenant's process ends."""
MAX_REFUSALS = 1024


class Registrar:
    """Admits processes to the node's tenants.

    `before_register` is called first, with the process's origin. `resolve_pod` returns the process's pod as
    the cluster knows it. Both may raise Refused.
    """

    def __init__(
        self,
        node: Node,
        *,
        before_register: Callable[[Origin], None],
        resolve_pod: Callable[[Origin], PodRef | None],
    ) -> None:
        self._node = node
        self._before_register = before_register
        self._resolve_pod = resolve_pod
        self._refusals: dict[ProcessKey, str] = {}
        """Last refusal of each process that may ask again."""

    def register(self, connection: Any, hints: ClientHints, caller: Peer | None = None) -> Registration:
        """Register a process; `caller` identifies it if the connection does not. Raises Refused."""
        node = self._node
        if not node.tenant_segments.gpus:
            raise Refused(503, "the daemon does not know this node's GPUs yet: NVML has not answered")
        calling = node.peers.again(caller) if caller is not None else node.peers.held(connection)
        with calling as (peer, pidfd):
            return self._register(peer, pidfd, hints)

    def _register(self, peer: Peer, pidfd: int, said: ClientHints) -> Registration:
        node, hints = self._node, replace(said, pid=peer.namespace_pid)
        try:
            self._before_register(peer.origin)
            pod = self._resolve_pod(peer.origin)
            request = RegistrationRequest(peer.key, peer.origin, hints, pod, at_s=time.time())
            is_known = node.registry.worker_of(peer.key) is not None
            worker, gone = self._admit(request)
        except Refused as error:
            self._record_refusal(peer.key, f"process {peer.key.host_pid} ({hints.name}): {error}")
            raise
        self._refusals.pop(peer.key, None)
        for earlier in gone:
            node.exits.clean_up(earlier)
        try:
            node.exits.watch(peer.key, pidfd)
            self._open_segments(worker)
        except (SegmentError, OSError) as error:
            node.exits.unwatch(peer.key)
            node.registry.remove(worker.id, now_ns=time.monotonic_ns())
            record_event(node.events, "segment_failed", str(error), tenant=worker.tenant, level=logging.ERROR)
            raise Refused(status_of(error), str(error)) from error
        if is_known:
            # The process may have called exec and left the slot of the old program.
            node.tenant_segments.reap(worker.tenant)
        return self._answer(worker, request)

    def _admit(self, request: RegistrationRequest) -> tuple[Worker, list[Worker]]:
        """Add a process to the registry, and remove dead processes and tenants first. Raises Refused."""
        node = self._node
        empty = node.registry.blocking_tenant(request)
        if empty is not None:
            node.removal.forget_if_dead(empty)
        try:
            return node.registry.register(request, now_ns=time.monotonic_ns())
        except Refused as error:
            if error.status != CONFLICT or not self._notice_deaths():
                raise
        return node.registry.register(request, now_ns=time.monotonic_ns())

    def _notice_deaths(self) -> bool:
        """Handle processes that have ended meanwhile; return True if there were any."""
        have_ended = self._node.exits.notice()
        return self._node.removal.release_dead() or have_ended

    def _record_refusal(self, key: ProcessKey, text: str) -> None:
        """Record a refusal, once for a process that asks repeatedly."""
        if self._refusals.get(key) == text:
            return
        if len(self._refusals) >= MAX_REFUSALS:
            self._refusals.clear()
        self._refusals[key] = text
        record_event(self._node.events, "refused", text, level=logging.WARNING)

    def _open_segments(self, worker: Worker) -> None:
        """Open or make the segments of a worker's tenant, and publish its quota. Raises SegmentError."""
        node = self._node
        tenant = node.registry.tenants[worker.tenant]
        opened = node.tenant_segments.open_tenants.get(worker.tenant)
        if opened is not None and (worker.tenant in node.health.corrupt or not opened.usage.is_whole):
            node.tenant_segments.reopen(tenant)
            node.health.renewed(worker.tenant)
        node.recovery.open(tenant)
        node.health.unopened.pop(worker.tenant, None)
        node.tenant_segments.publish([tenant])
        node.recovery.save()
        text = f"process {worker.key.host_pid} ({worker.name})"
        record_event(node.events, "registered", text, tenant=worker.tenant, level=logging.DEBUG)

    def _answer(self, worker: Worker, request: RegistrationRequest) -> Registration:
        node = self._node
        opened = node.tenant_segments.open_tenants[worker.tenant]
        return Registration(
            worker=worker.id,
            host_pid=worker.key.host_pid,
            tenant=worker.tenant,
            usage=opened.usage.name,
            policy=opened.policy.name,
            source=node.registry.source_for(request, node.registry.tenants[worker.tenant]),
        )

    def hand_over(self, connection: Any, name: TenantName) -> None:
        """Send a tenant's segments to its process, which otherwise opens them in its /dev/shm."""
        try:
            self._node.tenant_segments.hand_over(name, connection)
        except OSError as error:
            text = f"{error.strerror}"
            record_event(self._node.events, "files_not_sent", text, tenant=name, level=logging.WARNING)


def status_of(error: Exception) -> int:
    """Return the HTTP status for a failure: a final one only if a retry cannot succeed."""
    return 409 if isinstance(error, SegmentHeld) else 503 if isinstance(error, SegmentFull | OSError) else 500
