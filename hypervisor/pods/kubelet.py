# SPDX-License-Identifier: Apache-2.0
"""Lists this node's pods from the kubelet while the API server's watch is down.

Event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from hypervisor.errors import KubeError
from hypervisor.k8s.client import Client
from hypervisor.k8s.watch import Watch
from hypervisor.pods.tenants import PodTenants

WATCH_DOWN_S = 2.0
"""Time for which the watch may be down before the kubelet is asked."""
PERIOD_S = 5.0
MIN_PAUSE_S = 0.5
"""Shortest time between two requests, however many processes wait for their pod."""


class KubeletPods:
    """Asks the kubelet while the watch is down, and at once if `wanted` is set: a process of an unknown pod
    wants to register.
    """

    def __init__(self, client: Client, watch: Watch, tenants: PodTenants, wanted: asyncio.Event) -> None:
        self._client = client
        self._watch = watch
        self._tenants = tenants
        self._wanted = wanted
        self._doubted_at_s = -PERIOD_S
        """Time at which the kubelet last knew a pod that the watch had not named."""
        self.trouble = ""
        """Reason that the last request failed; "" if it succeeded."""
        self.is_in_use = False
        """True if the known pods come from the kubelet, because the watch is down."""

    def superseded(self) -> None:
        """Note that the watch has listed all pods."""
        self.is_in_use = False

    async def run(self) -> None:
        """Send the requests that are due, until cancelled."""
        asked_at_s = -PERIOD_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MIN_PAUSE_S):  # not wait_for, which can lose a cancellation
                    await self._wanted.wait()
            is_due = self._watch_is_down() and time.monotonic() - asked_at_s >= PERIOD_S
            if self._wanted.is_set() or is_due:
                self._wanted.clear()
                asked_at_s = time.monotonic()
                await self._ask()
                await asyncio.sleep(MIN_PAUSE_S)

    def _watch_is_down(self) -> bool:
        return not self._watch.is_up and time.monotonic() - self._watch.heard_at_s > WATCH_DOWN_S

    async def _ask(self) -> None:
        try:
            listing = await self._client.list("/pods")
        except KubeError as error:
            self.trouble = str(error)
            return
        self.trouble = ""
        if not self._watch_is_down():
            # The watch is newer than the list, except for a pod that only the kubelet knows at once.
            may_doubt = time.monotonic() - self._doubted_at_s >= PERIOD_S
            if self._tenants.merge_list(listing.items, is_trusted=may_doubt):
                self._doubted_at_s = time.monotonic()
                self._watch.start_over()
            return
        # A kubelet that has just started without an API server knows no pods: a pod that is missing in its
        # list may be there.
        self._tenants.on_list(listing.items, is_whole=False)
        self.is_in_use = True
        # The list may be older than the last change of the watch, which starts over with a list of its own.
        self._watch.start_over()

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


class NoKubelet:
    """Stand-in where no kubelet is named. The members are those of `KubeletPods`."""

    trouble = ""
    is_in_use = False

    def superseded(self) -> None:
        """Do nothing."""

    async def run(self) -> None:
        """Return at once."""

    async def close(self) -> None:
        """Do nothing."""
