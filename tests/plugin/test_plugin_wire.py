# SPDX-License-Identifier: Apache-2.0
"""The table of messages against the published api.proto, where one is found, and against bytes on the wire.

The real kubelet is asked in tests/k8s (make test-k8s). The file is looked for in $GPULIMIT_DEVICEPLUGIN_PROTO
and where Debian's golang-github-kubernetes-kubelet-dev has it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

messages = pytest.importorskip(
    "hypervisor.plugin.messages", reason="needs the extra k8s", exc_type=ImportError
)

PUBLISHED = (
    os.environ.get("GPULIMIT_DEVICEPLUGIN_PROTO", ""),
    "/usr/share/gocode/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto",
)
MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\s*(repeated |map<string, string> )?(\w+ )?(\w+) = (\d+)(?: \[.*\])?;", re.MULTILINE)
CALL = re.compile(r"rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\)")


def ours(name: str) -> set[tuple[str, str, int]]:
    """Return a message's fields, names without what differs between versions of the file."""
    found = set()
    for text in messages.TABLE[name].split():
        field, _, rest = text.partition(":")
        kind, _, number = rest.partition("=")
        found.add((plain(field), kind, int(number)))
    return found


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def test_the_table_is_the_published_one() -> None:
    path = next((Path(p) for p in PUBLISHED if p and Path(p).exists()), None)
    if path is None:
        pytest.skip("no published api.proto here")
    text = re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL))
    published = {}
    for name, body in MESSAGE.findall(text):
        fields = set()
        for prefix, kind, field, number in FIELD.findall(body):
            shown = "map" if prefix.startswith("map") else kind.strip() + ("*" if prefix else "")
            fields.add((plain(field), shown, int(number)))
        published[name] = fields
    assert published.keys() == messages.TABLE.keys()
    for name, fields in published.items():
        assert ours(name) == fields, name
    calls = {call: (asked, answered) for call, asked, _, answered in CALL.findall(text)}
    assert calls == {call: pair for service in messages.SERVICES.values() for call, pair in service.items()}
    assert [call for call, _, stream, _ in CALL.findall(text) if stream] == ["ListAndWatch"]


def text_field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def test_bytes_on_the_wire() -> None:
    register = messages.new(
        "RegisterRequest",
        version="v1beta1",
        endpoint="g.sock",
        resource_name="x/y",
        options=messages.new("DevicePluginOptions", get_preferred_allocation_available=True),
    )
    assert register.SerializeToString(deterministic=True) == (
        text_field(1, b"v1beta1")
        + text_field(2, b"g.sock")
        + text_field(3, b"x/y")
        + text_field(4, b"\x10\x01")
    )
    one = text_field(1, text_field(1, b"K") + text_field(2, b"V"))
    one += text_field(2, text_field(1, b"/c") + text_field(2, b"/h") + b"\x18\x01")
    one += text_field(3, text_field(1, b"/d") + text_field(2, b"/d") + text_field(3, b"rw"))
    one += text_field(5, text_field(1, b"v/c=d"))
    read = messages.CLASSES["AllocateResponse"].FromString(text_field(1, one)).container_responses[0]
    assert dict(read.envs) == {"K": "V"} and read.mounts[0].read_only and read.mounts[0].host_path == "/h"
    assert read.devices[0].permissions == "rw" and read.cdi_devices[0].name == "v/c=d"
    assert messages.path_of("Registration", "Register") == "/v1beta1.Registration/Register"


def test_a_newer_kubelet_may_say_more() -> None:
    request = messages.CLASSES["ContainerAllocateRequest"].FromString(
        text_field(1, b"a") + text_field(15, b"new")
    )
    assert list(request.devices_ids) == ["a"]
