# SPDX-License-Identifier: Apache-2.0
"""Registers with the kubelet, and does it again whenever the kubelet needs it.

A kubelet that starts removes all plugins' sockets and makes its own anew, so both are looked at: if ours is
gone or its is another, the plugin starts over. If the kubelet hangs up while both stay, another plugin has
most likely registered the same resource: that is said, and registering is tried again with growing pauses.
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
"""Interval at which a kubelet that is away is looked for: one stat() of its socket."""
ANSWER_S = 5.0
SILENCE_S = 5.0
"""How long a kubelet that took the registration may leave the plugin unwatched."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
ENDING_S = 1.0


@dataclass(frozen=True, slots=True)
class Sockets:
    """Which files the two sockets are; 0: not there."""

    own: int
    kubelet: int


class PluginRegistration:
    """The plugin's life beside the kubelet."""

    def __init__(self, service: Service, note: Note, *, folder: Path, resource: str) -> None:
        self._service = service
        self._note = note
        self._own = folder / OWN_SOCKET
        self._kubelet = folder / KUBELET_SOCKET
        self._resource = resource
        self._tried = 0
        """The kubelet's socket, when registering was last tried."""
        self.registrations = 0
        self.trouble = "it has not begun"
        """Why the kubelet does not know the plugin; "": it does."""

    @property
    def is_up(self) -> bool:
        return not self.trouble and self._service.is_watched

    async def run(self, ready: asyncio.Event) -> None:
        """Offer devices for ever, once `ready` is set."""
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
        """Wait before the next try; end early, with True, when a new kubelet's socket is there."""
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
        """Register and serve until the kubelet restarts; True if all was well until then."""
        self._tried = inode_of(self._kubelet)
        if not self._tried:
            self._fail(f"{self._kubelet} is not there")
            return False
        self._service.refresh()  # the first list must not be empty: pods that are just admitted would fail
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
        """Tell the kubelet about us. Raises AioRpcError."""
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
        """Return when the plugin must start over: True after a restart of the kubelet, False when the kubelet
        has dropped us.
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
    """Return which file a path is, by its inode and the time that it was made; 0: there is none."""
    try:
        state = os.stat(path)  # noqa: PTH116
    except OSError:
        return 0
    return hash((state.st_ino, state.st_dev, state.st_ctime_ns)) or 1
