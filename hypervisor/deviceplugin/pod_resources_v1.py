# SPDX-License-Identifier: Apache-2.0
"""Protobuf classes of the kubelet's pod-resources API v1, built from the table below.

tests/plugin/test_plugin_wire.py compares numbers and types with the published .proto. List exists since
Kubernetes 1.20, GetAllocatableResources since 1.21, Get since 1.27 (on by default since 1.34). Fields that
only serve dynamic resource claims are left out: the decoder skips unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from hypervisor.deviceplugin.protobuf import Wire

PACKAGE = "v1"
SERVICE = "PodResourcesLister"
PODS_FIELD = 1
VARINT, LENGTH_DELIMITED = 0, 2
FIXED_BYTES = {1: 8, 5: 4}
"""Lengths of the other wire types."""

TABLE = {
    "ListPodResourcesRequest": "",
    "ListPodResourcesResponse": "pod_resources:PodResources*=1",
    "GetPodResourcesRequest": "pod_name:string=1 pod_namespace:string=2",
    "GetPodResourcesResponse": "pod_resources:PodResources=1",
    "AllocatableResourcesRequest": "",
    "AllocatableResourcesResponse": "devices:ContainerDevices*=1 cpu_ids:int64*=2 memory:ContainerMemory*=3",
    "PodResources": "name:string=1 namespace:string=2 containers:ContainerResources*=3",
    "ContainerResources": "name:string=1 devices:ContainerDevices*=2 cpu_ids:int64*=3 "
    "memory:ContainerMemory*=4",
    "ContainerMemory": "memory_type:string=1 size:uint64=2 topology:TopologyInfo=3",
    "ContainerDevices": "resource_name:string=1 device_ids:string*=2 topology:TopologyInfo=3",
    "TopologyInfo": "nodes:NUMANode*=1",
    "NUMANode": "ID:int64=1",
}

CALLS = {
    "List": ("ListPodResourcesRequest", "ListPodResourcesResponse"),
    "Get": ("GetPodResourcesRequest", "GetPodResourcesResponse"),
    "GetAllocatableResources": ("AllocatableResourcesRequest", "AllocatableResourcesResponse"),
}
"""Request and answer messages of each call."""

WIRE = Wire(PACKAGE, TABLE)
CLASSES = WIRE.classes
new = WIRE.new
path_of = WIRE.path_of


def items_in(raw: bytes) -> Iterator[bytes]:
    """Yield the messages of a ListPodResourcesResponse, undecoded. Raises DecodeError.

    Decoding a message holds the interpreter's lock until its end. A large list is therefore split into pods
    first, so that other threads run in between.
    """
    place, end = 0, len(raw)
    while place < end:
        tag, place = varint_at(raw, place)
        number, kind = tag >> 3, tag & 7
        if kind == LENGTH_DELIMITED:
            length, place = varint_at(raw, place)
        elif kind == VARINT:
            length = varint_at(raw, place)[1] - place
        else:
            length = FIXED_BYTES.get(kind, end)
        if number == 0 or place + length > end:
            raise DecodeError("it is cut off, or no such message")
        if number == PODS_FIELD and kind == LENGTH_DELIMITED:
            yield raw[place : place + length]
        place += length


def varint_at(raw: bytes, place: int) -> tuple[int, int]:
    """Return a protobuf varint, and the offset behind it. Raises DecodeError."""
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(raw):
            break
        byte = raw[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise DecodeError("a number in it has no end")
