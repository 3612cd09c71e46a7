# SPDX-License-Identifier: Apache-2.0
"""Protobuf classes made from a table instead of generated code, which would tie the installed protobuf to the
one that generated it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "string": FIELD.TYPE_STRING,
    "bool": FIELD.TYPE_BOOL,
    "int32": FIELD.TYPE_INT32,
    "int64": FIELD.TYPE_INT64,
    "uint64": FIELD.TYPE_UINT64,
}


class Wire:
    """The messages of one package.

    `table`: per message its fields, NAME:TYPE=NUMBER; * is repeated, map is from text to text.
    """

    def __init__(self, package: str, table: Mapping[str, str]) -> None:
        self._package = package
        # A pool of its own: another package in this process may bring the published file, by the same names.
        pool = descriptor_pool.DescriptorPool()
        pool.Add(describe(package, table))
        self.classes: dict[str, Any] = {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in table
        }

    def new(self, kind: str, /, **fields: Any) -> Any:
        """Return a message."""
        return self.classes[kind](**fields)

    def path_of(self, service: str, call: str) -> str:
        """Return the path of a call."""
        return f"/{self._package}.{service}/{call}"


def describe(package: str, table: Mapping[str, str]) -> Any:
    """Return a table as a file descriptor."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"gpulimit/{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for text in fields.split():
            add_field(package, message, text)
    return file


def add_field(package: str, message: Any, text: str) -> None:
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
    field.type_name = f".{package}.{kind}"
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING)
        entry.field.add(name="value", number=2, label=FIELD.LABEL_OPTIONAL, type=FIELD.TYPE_STRING)
        field.type_name = f".{package}.{message.name}.{entry.name}"
