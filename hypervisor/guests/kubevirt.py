# SPDX-License-Identifier: Apache-2.0
"""Source of the guests that KubeVirt runs on this node. Only this module knows KubeVirt's API.

A machine is scraped if it has the annotation or label kubevirt.io/gpu-metrics-collector with one of VALUES,
optionally followed by `:PORT`. Its address is status.VSOCKCID, which KubeVirt sets on machines with
spec.domain.devices.autoattachVSOCK.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hypervisor.guests.target import Target
from hypervisor.k8s.client import Client, Object
from hypervisor.k8s.watch import Gone, Listed, Put, Watch
from hypervisor.scraper.endpoint import ANY_CID, HOST_CID, MAX_PORT, Endpoint

logger = logging.getLogger(__name__)
PATH = "/apis/kubevirt.io/v1/virtualmachineinstances"
MARK = "kubevirt.io/gpu-metrics-collector"
NODE = "kubevirt.io/nodeName"
VALUES = ("gpulimit-vsock", "prometheus-vsock", "dcgm-vsock", "vsock")
LAG_S = 5.0
"""Largest delay of a working watch."""


class KubeVirt:
    """A source of targets."""

    name = "kubevirt"

    def __init__(
        self,
        client: Client,
        *,
        node: str,
        port: int,
        token_file: str = "",
        ca_file: str = "",
        server_name: str = "",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the source; `port` is the agent's default port in guests."""
        self._client = client
        self._watch = Watch(client, PATH, label_selector=f"{NODE}={node}")
        self._node, self._port = node, port
        self._secrets = (token_file, ca_file, server_name)
        self._changed = changed
        self._machines: dict[str, Target] = {}
        self._was_up_s = 0.0

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(self._machines.values())

    @property
    def is_up(self) -> bool:
        return self._watch.is_up

    @property
    def confirmed_at_s(self) -> float:
        """Latest time.monotonic() at which the list was known to be right."""
        if self._watch.is_up:
            self._was_up_s = time.monotonic() - LAG_S
        return self._was_up_s

    def reread(self) -> None:
        """Do nothing: the cluster tells of each change."""

    async def close(self) -> None:
        """Close the connection to the cluster."""
        await self._client.close()

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async for change in self._watch.changes():
            match change:
                case Listed(items):
                    self._machines.clear()
                    for item in items:
                        self._put(item)
                case Put(item):
                    self._put(item)
                case Gone(item):
                    self._machines.pop(key_of(item), None)
            self._changed()

    def _put(self, item: Object) -> None:
        try:
            target = self._target(item)
        except (AttributeError, TypeError, ValueError) as error:
            logger.warning("%s: a machine that makes no sense: %s", key_of(item), error)
            target = None
        if target is None:
            self._machines.pop(key_of(item), None)
        else:
            self._machines[key_of(item)] = target

    def _target(self, item: Object) -> Target | None:
        """Return a machine's target; None if this node does not scrape it. An odd object raises any
        exception.
        """
        meta, status = item.get("metadata", {}), item.get("status") or {}
        wish = (meta.get("annotations") or {}).get(MARK) or (meta.get("labels") or {}).get(MARK) or ""
        port = self._port_of(str(wish), key_of(item))
        is_here = status.get("nodeName") == self._node and status.get("phase") == "Running"
        if port is None or not is_here or meta.get("deletionTimestamp"):
            return None
        cid = status.get("VSOCKCID")
        is_address = isinstance(cid, int) and not isinstance(cid, bool) and HOST_CID < cid < ANY_CID
        token_file, ca_file, server_name = self._secrets
        return Target(
            namespace=str(meta["namespace"]),
            name=str(meta["name"]),
            node=self._node,
            endpoint=Endpoint("vsock", str(cid), port) if is_address else None,
            source=self.name,
            uid=str(meta.get("uid", "")),
            token_file=token_file,
            ca_file=ca_file,
            server_name=server_name,
        )

    def _port_of(self, wish: str, key: str) -> int | None:
        """Return the port in an annotation; None if the machine is not to be scraped."""
        word, _, port = wish.partition(":")
        if not wish:
            return None
        if word not in VALUES or (port and not (port.isascii() and port.isdecimal())):
            logger.info("%s: %s: %r is none of %s, with :PORT or without", key, MARK, wish, ", ".join(VALUES))
            return None
        if port and not 0 < int(port) <= MAX_PORT["vsock"]:
            return None
        return int(port) if port else self._port


def key_of(item: Object) -> str:
    """Return a machine's name in the cluster, "NAMESPACE/NAME"."""
    meta = item.get("metadata")
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}" if isinstance(meta, dict) else "/"
