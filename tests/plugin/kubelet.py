# SPDX-License-Identifier: Apache-2.0
"""A kubelet for tests: real gRPC over Unix sockets, the manners of the real one.

It takes registrations, watches the newest plugin of a resource and hangs up on an earlier one, keeps the
record of who has what as the real one writes it, and when it starts removes all sockets from its folder.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from hypervisor.deviceplugin import api_v1beta1 as messages

RECORD = "kubelet_internal_checkpoint"


class Plugin:
    """A registered plugin, as the kubelet sees it."""

    def __init__(self, path: Path, request: Any) -> None:
        self.request = request
        self.channel = grpc.insecure_channel(f"unix://{path}")
        self.devices: dict[str, str] = {}
        self.listings: list[int] = []
        """How many healthy devices each list had."""
        self.has_ended = threading.Event()
        self._stream: Any = None

    def watch(self, changed: threading.Condition) -> None:
        """Follow ListAndWatch until it ends."""
        call = self.channel.unary_stream(
            messages.path_of("DevicePlugin", "ListAndWatch"),
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=messages.CLASSES["ListAndWatchResponse"].FromString,
        )
        self._stream = call(messages.new("Empty"), wait_for_ready=True, timeout=600)
        with contextlib.suppress(grpc.RpcError):
            for answer in self._stream:
                with changed:
                    self.devices = {d.ID: d.health for d in answer.devices}
                    self.listings.append(sum(h == messages.HEALTHY for h in self.devices.values()))
                    changed.notify_all()
        with changed:
            self.devices = dict.fromkeys(self.devices, messages.UNHEALTHY)
            self.has_ended.set()
            changed.notify_all()

    def call(self, name: str, request: Any) -> Any:
        asked, answered = messages.SERVICES["DevicePlugin"][name]
        call = self.channel.unary_unary(
            messages.path_of("DevicePlugin", name),
            request_serializer=messages.CLASSES[asked].SerializeToString,
            response_deserializer=messages.CLASSES[answered].FromString,
        )
        return call(request, timeout=15)

    def hang_up(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self.channel.close()


class Kubelet:
    """Start it with `start()`; `restart()` as a node's kubelet does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "device-plugins"
        self.folder.mkdir(parents=True)
        self.changed = threading.Condition()
        self.plugins: dict[str, Plugin] = {}
        self.registrations = 0
        self.refusal = ""
        self.entries: list[dict[str, Any]] = []
        self._server: grpc.Server | None = None

    # ---- its life ----

    def start(self) -> None:
        for path in self.folder.glob("*.sock"):
            path.unlink()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=messages.CLASSES["RegisterRequest"].FromString,
            response_serializer=lambda m: m.SerializeToString(),
        )
        service = f"{messages.PACKAGE}.Registration"
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"Register": handler}),)
        )
        assert self._server.add_insecure_port(f"unix://{self.folder / 'kubelet.sock'}")
        self._server.start()

    def stop(self) -> None:
        for plugin in self.plugins.values():
            plugin.hang_up()
        self.plugins.clear()
        if self._server is not None:
            self._server.stop(0).wait(5)
        self._server = None
        (self.folder / "kubelet.sock").unlink(missing_ok=True)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _register(self, request: Any, context: Any) -> Any:
        if self.refusal or request.version != messages.VERSION:
            context.abort(grpc.StatusCode.UNKNOWN, self.refusal or "unsupported version")
        plugin = Plugin(self.folder / request.endpoint, request)
        with self.changed:
            earlier = self.plugins.get(request.resource_name)
            self.plugins[request.resource_name] = plugin
            self.registrations += 1
            self.changed.notify_all()
        if earlier is not None:
            earlier.hang_up()
        threading.Thread(target=plugin.watch, args=(self.changed,), daemon=True).start()
        return messages.new("Empty")

    # ---- what tests ask ----

    def devices(self, resource: str = "gpulimit.io/gpu") -> dict[str, str]:
        plugin = self.plugins.get(resource)
        return dict(plugin.devices) if plugin else {}

    def healthy(self) -> list[str]:
        return [name for name, health in self.devices().items() if health == messages.HEALTHY]

    def wait_for(self, check: Any, within_s: float = 15.0) -> None:
        with self.changed:
            assert self.changed.wait_for(check, within_s), self.devices()

    def call(self, name: str, request: Any) -> Any:
        return self.plugins["gpulimit.io/gpu"].call(name, request)

    def preferred(self, available: Sequence[str], size: int, must: Sequence[str] = ()) -> list[str]:
        one = messages.new(
            "ContainerPreferredAllocationRequest",
            available_deviceIDs=available,
            must_include_deviceIDs=must,
            allocation_size=size,
        )
        request = messages.new("PreferredAllocationRequest", container_requests=[one])
        return list(self.call("GetPreferredAllocation", request).container_responses[0].deviceIDs)

    def allocate(self, *devices: str, pod: str = "", container: str = "main") -> Any:
        """Ask for one container, and write it down for a pod, as the kubelet does before it starts it."""
        one = messages.new("ContainerAllocateRequest", devices_ids=devices)
        answer = self.call("Allocate", messages.new("AllocateRequest", container_requests=[one]))
        grant = answer.container_responses[0]
        if pod:
            self.record(pod, container, devices, grant.SerializeToString())
        return grant

    def record(
        self,
        pod: str,
        container: str,
        devices: Sequence[str],
        answer: bytes = b"",
        resource: str = "gpulimit.io/gpu",
    ) -> None:
        with self.changed:
            self.entries.append(
                {
                    "PodUID": pod,
                    "ContainerName": container,
                    "ResourceName": resource,
                    "DeviceIDs": {"-1": list(devices)},
                    "AllocResp": base64.b64encode(answer).decode(),
                }
            )
            self.write()

    def forget(self, pod: str) -> None:
        with self.changed:
            self.entries = [entry for entry in self.entries if entry["PodUID"] != pod]
            self.write()

    def write(self) -> None:
        data = {"PodDeviceEntries": self.entries or None, "RegisteredDevices": {}}
        fresh = self.folder / ".record"
        fresh.write_text(json.dumps({"Data": data, "Checksum": 1}))
        fresh.rename(self.folder / RECORD)
