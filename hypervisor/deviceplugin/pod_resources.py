# SPDX-License-Identifier: Apache-2.0
"""Asks the kubelet for the devices of containers: its pod-resources API, over its Unix socket.

It lists all pods periodically and whenever the checkpoint has changed. It gets a single pod at once if a
process of that pod waits to be registered. A kubelet without Get, or with Get disabled, is asked to list all
pods instead. No registration waits for an answer: without one, the kubelet's checkpoint decides
(`checkpoint_file`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hypervisor.deviceplugin import assignments as pod_devices
from hypervisor.deviceplugin import pod_resources_v1 as pod_messages
from hypervisor.deviceplugin import slices
from hypervisor.deviceplugin.checkpoint import Allocations
from hypervisor.deviceplugin.service import Note
from hypervisor.model import GpuUuid
from hypervisor.pods.pod import Pod

SOCKET = Path("pod-resources", "kubelet.sock")
PERIOD_S = 10.0
APPEAR_S = 1.0
"""Interval at which a missing socket is looked for."""
SOONEST_S = 0.2
"""Shortest time between two requests, however many processes wait."""
ANSWER_S = 5.0
MAX_MESSAGE_BYTES = 16 << 20
NOT_THERE = "its socket is not there"


class PodResources:
    """The kubelet's answers. `pods` returns the node's pods as the cluster names them."""

    def __init__(
        self,
        folder: Path,
        resource: str,
        note: Note,
        pods: Callable[[], Iterable[Pod]],
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        self._socket = folder / SOCKET
        self._resource = resource
        self._note = note
        self._pods = pods
        self._period_s = period_s
        self._lacks: set[str] = set()
        """Calls that this kubelet lacks or has disabled."""
        self._wanted: set[str] = set()
        self._is_wanted = asyncio.Event()
        self._sure: set[str] = set()
        self.told: Allocations = {}
        self.allocatable: Counter[GpuUuid] | None = None
        """Number of slices of each card that the kubelet knows; None if it does not report them."""
        self.trouble = "not asked yet"

    @property
    def is_up(self) -> bool:
        return not self.trouble

    def want(self, pod_uid: str) -> None:
        """Request a pod as soon as possible: a process of it waits."""
        self._wanted.add(pod_uid)
        self._is_wanted.set()

    def look(self) -> None:
        """Request all pods as soon as possible: something has changed."""
        self._is_wanted.set()

    def knows(self, pod_uid: str) -> bool:
        """True if the answer for a pod was given after its containers were created."""
        return pod_uid in self._sure or any(self.told.get(pod_uid, {}).values())

    async def run(self) -> None:
        """Send requests until cancelled."""
        while True:
            wanted = frozenset(self._wanted)
            self._wanted.clear()
            self._is_wanted.clear()
            self._said(await self._ask(wanted))
            await asyncio.sleep(SOONEST_S)
            with contextlib.suppress(TimeoutError):
                is_away = self.trouble == NOT_THERE
                async with asyncio.timeout(min(APPEAR_S, self._period_s) if is_away else self._period_s):
                    await self._is_wanted.wait()

    def _said(self, trouble: str) -> None:
        if trouble != self.trouble and not (trouble == NOT_THERE and not self.is_up):
            text = f"the kubelet does not say which pods have which devices: {trouble}"
            level = logging.WARNING if trouble else logging.INFO
            self._note(
                "pod_resources", text if trouble else "the kubelet says which pods have which devices", level
            )
        self.trouble = trouble

    async def _ask(self, wanted: frozenset[str]) -> str:
        """Request the wanted pods, or all; return the reason that there is no answer, or ""."""
        if not self._socket.exists():
            return NOT_THERE
        try:
            async with grpc.aio.insecure_channel(
                f"unix://{self._socket}", options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
            ) as channel:
                if not (wanted and await self._get(channel, wanted)):
                    await self._list(channel, wanted)
                if not wanted:
                    await self._look_at_allocatable(channel)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                self._lacks.clear()  # the next kubelet may be another version
            return f"{error.code().name}: {str(error.details())[:200]}"
        except DecodeError as error:
            return f"its answer cannot be read: {error}"
        return ""

    async def _list(self, channel: Any, wanted: frozenset[str]) -> None:
        before = pod_devices.names(self._pods())
        # A large node's answer has 10 MiB and more: a thread decodes it, so that the event loop goes on.
        answer = await asyncio.to_thread(self._pods_in, await call(channel, "List"))
        self.told = pod_devices.by_uid(answer, before, pod_devices.names(self._pods()))
        self._sure = (self._sure | wanted) & self.told.keys()

    def _pods_in(self, raw: bytes) -> dict[str, dict[str, tuple[str, ...]]]:
        """Return the devices by pod in an answer to List. Any thread. Raises DecodeError."""
        answer = {}
        for part in pod_messages.items_in(raw):
            pod = pod_messages.CLASSES["PodResources"].FromString(part)
            answer[title_of(pod)] = self._devices(pod)
        return answer

    async def _get(self, channel: Any, wanted: frozenset[str]) -> bool:
        """Request single pods; return False if they must be looked up in the list of all pods."""
        before = pod_devices.names(self._pods())
        asked = {title: uid for title, uid in before.items() if uid in wanted}
        if "Get" in self._lacks or len(asked) < len(wanted):
            return False
        answer = {}
        for title in asked:
            namespace, _, name = title.partition("/")
            try:
                response = await call(channel, "Get", pod_name=name, pod_namespace=namespace)
            except grpc.aio.AioRpcError as error:
                self._refused("Get", error)
                return False
            answer[title] = self._devices(read("Get", response).pod_resources)
        found = pod_devices.by_uid(answer, before, pod_devices.names(self._pods()))
        self.told = {**self.told, **found}
        self._sure |= found.keys()
        return True

    async def _look_at_allocatable(self, channel: Any) -> None:
        if "GetAllocatableResources" in self._lacks:
            return
        try:
            response = await call(channel, "GetAllocatableResources")
            self.allocatable = await asyncio.to_thread(self._count, response)
        except grpc.aio.AioRpcError as error:
            self.allocatable = None
            self._refused("GetAllocatableResources", error)
        except (
            DecodeError,
            ValueError,
        ):  # ValueError: devices that an earlier daemon offered in another form
            self.allocatable = None

    def _count(self, raw: bytes) -> Counter[GpuUuid]:
        """Count the slices of each card in an answer. Any thread. Raises DecodeError, ValueError."""
        return slices.count(self._ours(read("GetAllocatableResources", raw).devices))

    def _refused(self, name: str, error: grpc.aio.AioRpcError) -> None:
        # The kubelet answers a disabled call with UNKNOWN and this text.
        if error.code() == grpc.StatusCode.UNIMPLEMENTED or "disabled" in str(error.details()):
            self._lacks.add(name)

    def _devices(self, pod: Any) -> dict[str, tuple[str, ...]]:
        return {one.name: tuple(sorted(self._ours(one.devices))) for one in pod.containers}

    def _ours(self, devices: Iterable[Any]) -> set[str]:
        return {name for one in devices if one.resource_name == self._resource for name in one.device_ids}


def title_of(pod: Any) -> str:
    return f"{pod.namespace}/{pod.name}"


async def call(channel: Any, name: str, **fields: Any) -> bytes:
    """Return the undecoded answer to a call. Raises AioRpcError."""
    ask = channel.unary_unary(
        pod_messages.path_of(pod_messages.SERVICE, name),
        request_serializer=lambda message: message.SerializeToString(),
        # gRPC itself would turn an undecodable answer into None, with a traceback in the log.
        response_deserializer=None,
    )
    asked, _ = pod_messages.CALLS[name]
    answer: bytes = await ask(pod_messages.new(asked, **fields), timeout=ANSWER_S)
    return answer


def read(name: str, raw: bytes) -> Any:
    """Return an answer to a call. Raises DecodeError."""
    _, answered = pod_messages.CALLS[name]
    return pod_messages.CLASSES[answered].FromString(raw)
