# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device plugin API, v1beta1, as protobuf classes.

Made from the table below instead of generated code, which would tie the installed protobuf to the one that
generated it. Numbers and types are compared with the published .proto in tests/plugin/test_plugin_wire.py.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
"""Per message its fields, NAME:TYPE=NUMBER; * is repeated, map is from text to text."""

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

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "string": FIELD.TYPE_STRING,
    "bool": FIELD.TYPE_BOOL,
    "int32": FIELD.TYPE_INT32,
    "int64": FIELD.TYPE_INT64,
}


def path_of(service: str, call: str) -> str:
    """Return the path of a call."""
    return f"/{PACKAGE}.{service}/{call}"


def describe() -> Any:
    """Return the table as a file descriptor."""
    file = descriptor_pb2.FileDescriptorProto(
        name="gpulimit/deviceplugin.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in TABLE.items():
        message = file.message_type.add(name=name)
        for text in fields.split():
            add_field(message, text)
    return file


def add_field(message: Any, text: str) -> None:
    name, _, rest = text.partition(":")
    kind, _, number = rest.partition("=")
    field = message.field.add(name=name, number=int(number), label=FIELD.LABEL_OPTIONAL)
    if kind.endswith("*") or kind == "map":
        field.label = FIELD.LABEL_REPEATED
    kind = kind.removesuffix("*")
    if kind in SCALARS:
        field.type = SCALARS[kind]
        return
    field.type = FIELD.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{kind}"
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING)
        entry.field.add(name="value", number=2, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING)
        field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"


# A pool of its own: another package in this process may bring the published file under the same names.
POOL = descriptor_pool.DescriptorPool()
POOL.Add(describe())
CLASSES: dict[str, Any] = {
    name: message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in TABLE
}


def new(kind: str, /, **fields: Any) -> Any:
    """Return a message."""
    return CLASSES[kind](**fields)
