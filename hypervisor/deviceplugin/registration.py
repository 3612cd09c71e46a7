# SPDX-License-Identifier: Apache-2.0
"""Registers the plugin with the kubelet, and again after each restart of the kubelet.

A starting kubelet removes the sockets of all plugins and recreates its own. So both are watched: if the
plugin's is gone or the kubelet's is a new one, the plugin starts over. If the kubelet hangs up while both
sockets stay, most likely another plugin has registered the same resource. The plugin reports that and
registers again, with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from hypervisor.deviceplugin import api_v1beta1 as messages
from hypervisor.deviceplugin.service import Note, Service

logger = logging.getLogger(__name__)
OWN_SOCKET, KUBELET_SOCKET = "gpulimit.sock", "kubelet.sock"
LOOK_S = 1.0
APPEAR_S = 0.5
"""Interval at which a missing kubelet is looked for: one stat() of its socket."""
ANSWER_S = 5.0
SILENCE_S = 5.0
"""Time after a registration within which the kubelet must call ListAndWatch."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
ENDING_S = 1.0


@dataclass(frozen=True, slots=True)
class Sockets:
    """Identities of the two socket files, see `inode_of`; 0 if a socket is missing."""

    own: int
    kubelet: int


class PluginRegistration:
    """Keeps the plugin registered with the kubelet."""

    def __init__(self, service: Service, note: Note, *, folder: Path, resource: str) -> None:
        self._service = service
        self._note = note
        self._own = folder / OWN_SOCKET
        self._kubelet = folder / KUBELET_SOCKET
        self._resource = resource
        self._tried = 0
        """Identity of the kubelet's socket at the last registration."""
        self.registrations = 0
        self.trouble = "it has not begun"
        """Reason that the kubelet does not know the plugin; "" if it does."""

    @property
    def is_up(self) -> bool:
        return not self.trouble and self._service.is_watched

    async def run(self, ready: asyncio.Event) -> None:
        """Wait for `ready`, then offer devices until cancelled."""
        refreshing = asyncio.create_task(self._refresh(), name="device plugin: cards")
        pause_s = FIRST_PAUSE_S
        try:
            await ready.wait()
            while True:
                has_served = await self._serve()
                pause_s = FIRST_PAUSE_S if has_served else min(MAX_PAUSE_S, pause_s * 2)
                if await self._pause(0.1 if has_served else pause_s):
                    pause_s = FIRST_PAUSE_S
        finally:
            refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await refreshing

    async def _pause(self, pause_s: float) -> bool:
        """Wait before the next try. Return True early if a new kubelet's socket appears."""
        end_s = time.monotonic() + pause_s
        while (left_s := end_s - time.monotonic()) > 0:
            await asyncio.sleep(min(APPEAR_S, left_s))
            if inode_of(self._kubelet) not in (0, self._tried):
                return True
        return False

    async def _refresh(self) -> None:
        while True:
            self._service.refresh()
            await asyncio.sleep(LOOK_S)

    def _fail(self, reason: str) -> None:
        if reason != self.trouble:
            self._note("plugin_not_registered", reason, logging.WARNING)
        self.trouble = reason

    async def _serve(self) -> bool:
        """Register and serve until the kubelet restarts; return True if there was no failure before."""
        self._tried = inode_of(self._kubelet)
        if not self._tried:
            self._fail(f"{self._kubelet} is not there")
            return False
        self._service.refresh()  # an empty first list would fail pods that are being admitted
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._service.handlers(),))
        try:
            self._own.unlink(missing_ok=True)
            if server.add_insecure_port(f"unix://{self._own}") == 0:
                raise OSError(f"cannot listen on {self._own}")
            await server.start()
            sockets = self.sockets()
            await self.register()
            return await self._watch(sockets)
        except grpc.aio.AioRpcError as error:
            self._fail(f"the kubelet refuses: {error.code().name}: {error.details()}")
        except (OSError, RuntimeError) as error:
            self._fail(str(error))
        finally:
            await server.stop(ENDING_S)
        return False

    def sockets(self) -> Sockets:
        return Sockets(inode_of(self._own), inode_of(self._kubelet))

    async def register(self) -> None:
        """Register with the kubelet. Raises AioRpcError."""
        async with grpc.aio.insecure_channel(f"unix://{self._kubelet}") as channel:
            register = channel.unary_unary(
                messages.path_of("Registration", "Register"),
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=messages.CLASSES["Empty"].FromString,
            )
            request = messages.new(
                "RegisterRequest",
                version=messages.VERSION,
                endpoint=OWN_SOCKET,
                resource_name=self._resource,
                options=messages.new("DevicePluginOptions", get_preferred_allocation_available=True),
            )
            await register(request, timeout=ANSWER_S)
        self.registrations += 1
        self.trouble = ""
        self._note("plugin_registered", f"{self._resource} is offered to the kubelet", logging.INFO)

    async def _watch(self, sockets: Sockets) -> bool:
        """Wait until the plugin must start over.

        Return True after a restart of the kubelet, False if the kubelet has dropped the plugin.
        """
        unwatched_s = 0.0
        while unwatched_s < SILENCE_S:
            await asyncio.sleep(LOOK_S)
            now = self.sockets()
            if now != sockets and now.kubelet == 0:
                self._fail("the kubelet is away")
            elif now != sockets:
                self._fail("the kubelet has restarted")
                return True
            unwatched_s = 0.0 if self._service.is_watched or now.kubelet == 0 else unwatched_s + LOOK_S
        self._fail(f"the kubelet does not listen: is there another plugin for {self._resource}?")
        return False


def inode_of(path: Path) -> int:
    """Return the identity of the file at a path: a hash of inode and creation time; 0 if there is none."""
    try:
        state = os.stat(path)  # noqa: PTH116
    except OSError:
        return 0
    return hash((state.st_ino, state.st_dev, state.st_ctime_ns)) or 1
