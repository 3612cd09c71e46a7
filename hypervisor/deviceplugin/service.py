# SPDX-License-Identifier: Apache-2.0
"""Serves the kubelet's calls: the list of devices, the preferred allocation, and a container's edits.

Calls are stateless and do not name a pod. A container's edits follow from its devices alone, whatever the
order and number of Allocate calls. The kubelet's checkpoint tells which pod the devices belong to
(`checkpoint_file`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from hypervisor.deviceplugin import api_v1beta1 as messages
from hypervisor.deviceplugin import slices
from hypervisor.deviceplugin.allocation import ContainerAllocator, answer_of
from hypervisor.deviceplugin.health import DeviceHealth
from hypervisor.deviceplugin.slices import Placement
from hypervisor.model import Gpu, GpuUuid
from limiter.errors import GpulimitError

PATIENCE_S = 5.0
"""Longest time that an Allocate waits for a daemon that is not ready, or a card that does not answer well.

The kubelet fails a pod permanently if Allocate fails. After a pause of the node or of this process, a call
that was queued meanwhile may arrive before the first reading of the cards.
"""
LOOK_S = 0.05

Note = Callable[[str, str, int], None]
"""(kind, text, level)"""


class DeviceSource(Protocol):
    """The part of the node that the service reads."""

    def gpu_health(self) -> dict[GpuUuid, bool]: ...
    def gpu(self, uuid: GpuUuid) -> Gpu | None: ...
    def reasons_not_ready(self) -> list[str]: ...


class Service:
    """The gRPC service; `refresh` is called about once a second."""

    def __init__(
        self,
        node: DeviceSource,
        allocator: ContainerAllocator,
        note: Note,
        *,
        per_gpu: int,
        placement: Placement,
    ) -> None:
        self._node = node
        self._allocator = allocator
        self._note = note
        self._per_gpu = per_gpu
        self._placement: Placement = placement
        self.health = DeviceHealth()
        self.allocations: Counter[str] = Counter(granted=0, refused=0)
        self._streams: set[asyncio.Event] = set()
        self.lost_stream = asyncio.Event()
        """Set when the kubelet has closed ListAndWatch."""

    @property
    def is_watched(self) -> bool:
        """True while the kubelet holds a ListAndWatch stream open."""
        return bool(self._streams)

    def refresh(self) -> None:
        """Read the cards, and send changes to the kubelet."""
        changed = self.health.look(self._node.gpu_health(), now_ns=time.monotonic_ns())
        for gpu in changed:
            word = "offered" if self.health.healthy[gpu] else "not offered: it does not answer well"
            self._note("card_offered" if self.health.healthy[gpu] else "card_withheld", f"{gpu}: {word}", 20)
        if changed:
            for stream in self._streams:
                stream.set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the service for a server."""
        calls = {
            "GetDevicePluginOptions": self.options,
            "ListAndWatch": self.list_and_watch,
            "GetPreferredAllocation": self.preferred,
            "Allocate": self.allocate,
            "PreStartContainer": self.pre_start,
        }
        handlers = {}
        for name, (asked, _) in messages.SERVICES["DevicePlugin"].items():
            make = (
                grpc.unary_stream_rpc_method_handler
                if name == "ListAndWatch"
                else grpc.unary_unary_rpc_method_handler
            )
            handlers[name] = make(
                calls[name],
                request_deserializer=messages.CLASSES[asked].FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
        return grpc.method_handlers_generic_handler(f"{messages.PACKAGE}.DevicePlugin", handlers)

    async def options(self, _: Any, __: Any) -> Any:
        return messages.new("DevicePluginOptions", get_preferred_allocation_available=True)

    async def pre_start(self, _: Any, __: Any) -> Any:
        return messages.new("PreStartContainerResponse")

    async def list_and_watch(self, _: Any, context: Any) -> AsyncIterator[Any]:
        """Send the list of devices now and at each change."""
        changed = asyncio.Event()
        self._streams.add(changed)
        self.lost_stream.clear()
        try:
            while not context.cancelled():
                changed.clear()
                yield self.listing()
                await changed.wait()
        finally:
            self._streams.discard(changed)
            if not self._streams:
                self.lost_stream.set()

    def listing(self) -> Any:
        """Return all slices of all cards."""
        return messages.new(
            "ListAndWatchResponse",
            devices=[
                messages.new("Device", ID=name, health=messages.HEALTHY if good else messages.UNHEALTHY)
                for gpu, good in sorted(self.health.healthy.items())
                for name in slices.names(gpu, self._per_gpu)
            ],
        )

    async def preferred(self, request: Any, context: Any) -> Any:
        try:
            chosen = [
                slices.preferred(
                    list(one.available_deviceIDs),
                    list(one.must_include_deviceIDs),
                    one.allocation_size,
                    placement=self._placement,
                )
                for one in request.container_requests
            ]
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return messages.new(
            "PreferredAllocationResponse",
            container_responses=[
                messages.new("ContainerPreferredAllocationResponse", deviceIDs=devices) for devices in chosen
            ],
        )

    async def allocate(self, request: Any, context: Any) -> Any:
        """Return the edits for containers with these devices. Fails while limits cannot be enforced."""
        self.allocations["refused"] += 1  # until it is granted
        wanted = [list(one.devices_ids) for one in request.container_requests]
        await self._wait_until_well({device for devices in wanted for device in devices})
        reasons = self._node.reasons_not_ready()
        if reasons:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"not ready: {reasons[0]}")
        try:
            cards = [self.cards_of(devices) for devices in wanted]
            # Checking the library starts a child process: not on the event loop.
            grants = [await asyncio.to_thread(self._allocator.of, of_container) for of_container in cards]
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except (GpulimitError, OSError) as error:
            self._note("not_allocated", str(error), logging.ERROR)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self.allocations["refused"] -= 1
        self.allocations["granted"] += len(grants)
        for of_container, one in zip(cards, request.container_requests, strict=True):
            text = ", ".join(gpu.uuid for gpu in of_container)
            self._note("allocated", f"{len(one.devices_ids)} slices of {text}", logging.INFO)
        return messages.new("AllocateResponse", container_responses=[answer_of(grant) for grant in grants])

    async def _wait_until_well(self, devices: set[str]) -> None:
        """Wait until the daemon is ready and the cards of these devices answer, for PATIENCE_S at most."""
        with contextlib.suppress(ValueError):
            cards = slices.count(devices).keys()
            end_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < end_s:
                is_ready = not self._node.reasons_not_ready()
                if is_ready and all(self._is_well(uuid) for uuid in cards):
                    return
                await asyncio.sleep(LOOK_S)

    def _is_well(self, uuid: GpuUuid) -> bool:
        """True if a card is offered, or if no such card exists: waiting would not help."""
        return self._node.gpu(uuid) is None or self.health.healthy.get(uuid, False)

    def cards_of(self, devices: Sequence[str]) -> list[Gpu]:
        """Return the cards of a container's devices. Raises ValueError if a device is not offered."""
        if not devices:
            raise ValueError("no devices asked for")
        cards = []
        for uuid in sorted(slices.count(devices)):
            gpu = self._node.gpu(uuid)
            if gpu is None:
                raise ValueError(f"there is no card {uuid} here")
            if not self.health.healthy.get(uuid, False):
                raise ValueError(f"card {uuid} does not answer well")
            cards.append(gpu)
        unknown = [device for device in devices if slices.number_of(device) >= self._per_gpu]
        if unknown:
            raise ValueError(f"{unknown[0]}: cards have {self._per_gpu} slices here")
        return cards
