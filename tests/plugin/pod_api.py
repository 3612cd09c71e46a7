# SPDX-License-Identifier: Apache-2.0
"""A kubelet's pod-resources API for tests: real gRPC over its Unix socket, as several versions speak it."""

from __future__ import annotations

import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from hypervisor.deviceplugin import pod_resources_v1 as pod_messages

OURS = "gpulimit.io/gpu"


class PodApi:
    """Start it with `start()`. `manners` by call: "" answers, "unimplemented", "disabled" as kubelets with
    the feature off say it, "slow", "garbage", "limited".
    """

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "pod-resources" / "kubelet.sock"
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.pods: dict[tuple[str, str], dict[str, list[str]]] = {}
        """Devices by (namespace, name) and container."""
        self.known: list[str] = []
        self.manners: dict[str, str] = {}
        self.calls: list[str] = []
        self.before_answer: Any = None
        """Called when an answer is ready and has not been sent."""
        self._server: grpc.Server | None = None
        self._ending = threading.Event()

    def start(self) -> None:
        self._ending.clear()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                lambda request, context, name=name: self._call(name, request, context),
                request_deserializer=pod_messages.CLASSES[asked].FromString,
                response_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            )
            for name, (asked, _) in pod_messages.CALLS.items()
            if self.manners.get(name) != "unimplemented"
        }
        service = f"{pod_messages.PACKAGE}.{pod_messages.SERVICE}"
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self.socket.unlink(missing_ok=True)
        assert self._server.add_insecure_port(f"unix://{self.socket}")
        self._server.start()

    def stop(self) -> None:
        self._ending.set()
        if self._server is not None:
            self._server.stop(0).wait(5)
        self._server = None

    def _call(self, name: str, request: Any, context: Any) -> Any:
        self.calls.append(name)
        manners = self.manners.get(name, "")
        if manners == "disabled":
            context.abort(grpc.StatusCode.UNKNOWN, f"PodResources API {name} method disabled")
        if manners == "limited":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        if manners == "slow":
            self._ending.wait(30)
        if manners == "garbage":
            return b"\xff\xff\xff not a message"
        answer = {"List": self._list, "Get": self._get, "GetAllocatableResources": self._allocatable}[name](
            request, context
        )
        if self.before_answer is not None:
            self.before_answer()
        return answer

    def _list(self, _: Any, __: Any) -> Any:
        pods = [self._pod(*key) for key in self.pods]
        return pod_messages.new("ListPodResourcesResponse", pod_resources=pods)

    def _get(self, request: Any, context: Any) -> Any:
        key = request.pod_namespace, request.pod_name
        if key not in self.pods:
            context.abort(grpc.StatusCode.UNKNOWN, f"pod {key[1]} in namespace {key[0]} not found")
        return pod_messages.new("GetPodResourcesResponse", pod_resources=self._pod(*key))

    def _allocatable(self, _: Any, __: Any) -> Any:
        return pod_messages.new("AllocatableResourcesResponse", devices=devices_of(self.known))

    def _pod(self, namespace: str, name: str) -> Any:
        containers = [
            pod_messages.new("ContainerResources", name=container, devices=devices_of(devices))
            for container, devices in self.pods[namespace, name].items()
        ]
        return pod_messages.new("PodResources", name=name, namespace=namespace, containers=containers)


def devices_of(names: list[str]) -> list[Any]:
    """Return devices as kubelets list them: an entry for each NUMA node, among those of other resources."""
    found = [("example.com/other", ["GPU-other::0"])]
    found += [(OURS, [name]) for name in names]
    return [pod_messages.new("ContainerDevices", resource_name=r, device_ids=d) for r, d in found]
