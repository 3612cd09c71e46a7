# SPDX-License-Identifier: Apache-2.0
"""The kubelet's pod-resources API, v1, as protobuf classes made from the table below. Numbers and types are
compared with the published .proto in tests/plugin/test_plugin_wire.py.

List is there since Kubernetes 1.20, GetAllocatableResources since 1.21, Get since 1.27 (on by default since
1.34). What is for claims of dynamic resources alone is left out: unknown fields are skipped.
"""

from __future__ import annotations

from hypervisor.deviceplugin.protobuf import Wire

PACKAGE = "v1"
SERVICE = "PodResourcesLister"

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
"""What is asked with and what is answered."""

WIRE = Wire(PACKAGE, TABLE)
CLASSES = WIRE.classes
new = WIRE.new
path_of = WIRE.path_of
