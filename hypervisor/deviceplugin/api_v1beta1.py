# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device plugin API, v1beta1, as protobuf classes made from the table below. Numbers and types
are compared with the published .proto in tests/plugin/test_plugin_wire.py.
"""

from __future__ import annotations

from hypervisor.deviceplugin.protobuf import Wire

PACKAGE = "v1beta1"
VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

TABLE = {
    "Empty": "",
    "DevicePluginOptions": "pre_start_required:bool=1 get_preferred_allocation_available:bool=2",
    "RegisterRequest": "version:string=1 endpoint:string=2 resource_name:string=3 "
    "options:DevicePluginOptions=4",
    "ListAndWatchResponse": "devices:Device*=1",
    "TopologyInfo": "nodes:NUMANode*=1",
    "NUMANode": "ID:int64=1",
    "Device": "ID:string=1 health:string=2 topology:TopologyInfo=3",
    "PreStartContainerRequest": "devices_ids:string*=1",
    "PreStartContainerResponse": "",
    "PreferredAllocationRequest": "container_requests:ContainerPreferredAllocationRequest*=1",
    "ContainerPreferredAllocationRequest": "available_deviceIDs:string*=1 must_include_deviceIDs:string*=2 "
    "allocation_size:int32=3",
    "PreferredAllocationResponse": "container_responses:ContainerPreferredAllocationResponse*=1",
    "ContainerPreferredAllocationResponse": "deviceIDs:string*=1",
    "AllocateRequest": "container_requests:ContainerAllocateRequest*=1",
    "ContainerAllocateRequest": "devices_ids:string*=1",
    "CDIDevice": "name:string=1",
    "AllocateResponse": "container_responses:ContainerAllocateResponse*=1",
    "ContainerAllocateResponse": "envs:map=1 mounts:Mount*=2 devices:DeviceSpec*=3 annotations:map=4 "
    "cdi_devices:CDIDevice*=5",
    "Mount": "container_path:string=1 host_path:string=2 read_only:bool=3",
    "DeviceSpec": "container_path:string=1 host_path:string=2 permissions:string=3",
}

SERVICES = {
    "Registration": {"Register": ("RegisterRequest", "Empty")},
    "DevicePlugin": {
        "GetDevicePluginOptions": ("Empty", "DevicePluginOptions"),
        "ListAndWatch": ("Empty", "ListAndWatchResponse"),
        "GetPreferredAllocation": ("PreferredAllocationRequest", "PreferredAllocationResponse"),
        "Allocate": ("AllocateRequest", "AllocateResponse"),
        "PreStartContainer": ("PreStartContainerRequest", "PreStartContainerResponse"),
    },
}
"""Per service its calls: what is asked with and what is answered. ListAndWatch answers as a stream."""

WIRE = Wire(PACKAGE, TABLE)
CLASSES = WIRE.classes
new = WIRE.new
path_of = WIRE.path_of
