# SPDX-License-Identifier: Apache-2.0
"""The table of messages against the published api.proto, where one is found, and against bytes on the wire.

The real kubelet is asked in tests/k8s (make test-k8s). The files are looked for in $GPULIMIT_KUBELET_APIS and
where Debian's golang-github-kubernetes-kubelet-dev has them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

messages = pytest.importorskip(
    "hypervisor.deviceplugin.api_v1beta1", reason="needs the extra k8s", exc_type=ImportError
)

pod_messages = pytest.importorskip("hypervisor.deviceplugin.pod_resources_v1")

PUBLISHED = Path(os.environ.get("GPULIMIT_KUBELET_APIS", "/usr/share/gocode/src/k8s.io/kubelet/pkg/apis"))
FOR_CLAIMS = {"DynamicResource", "ClaimResource", "CDIDevice"}
MESSAGE = re.compile(r"^message (\w+) \{([^}]*)\}", re.MULTILINE)
FIELD = re.compile(r"^\s*(repeated |map<string, string> )?(\w+ )?(\w+) = (\d+)(?: \[.*\])?;", re.MULTILINE)
CALL = re.compile(r"rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\)")


def ours(table: dict[str, str], name: str) -> set[tuple[str, str, int]]:
    """Return a message's fields, names without what differs between versions of the file."""
    found = set()
    for text in table[name].split():
        field, _, rest = text.partition(":")
        kind, _, number = rest.partition("=")
        found.add((plain(field), kind, int(number)))
    return found


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def published(name: str) -> tuple[str, dict[str, set[tuple[str, str, int]]]]:
    """Return a published file, without comments, and its messages."""
    path = PUBLISHED / name / "api.proto"
    if not path.exists():
        pytest.skip("no published api.proto here")
    text = re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL))
    found = {}
    for message, body in MESSAGE.findall(text):
        fields = set()
        for prefix, kind, field, number in FIELD.findall(body):
            shown = "map" if prefix.startswith("map") else kind.strip() + ("*" if prefix else "")
            fields.add((plain(field), shown, int(number)))
        found[message] = fields
    return text, found


def test_the_table_is_the_published_one() -> None:
    text, found = published("deviceplugin/v1beta1")
    assert found.keys() == messages.TABLE.keys()
    for name, fields in found.items():
        assert ours(messages.TABLE, name) == fields, name
    calls = {call: (asked, answered) for call, asked, _, answered in CALL.findall(text)}
    assert calls == {call: pair for service in messages.SERVICES.values() for call, pair in service.items()}
    assert [call for call, _, stream, _ in CALL.findall(text) if stream] == ["ListAndWatch"]


def test_the_pod_resources_are_the_published_ones() -> None:
    text, found = published("podresources/v1")
    assert found.keys() - FOR_CLAIMS == pod_messages.TABLE.keys()
    for name in pod_messages.TABLE:
        known = {field for field in found[name] if field[1].removesuffix("*") not in FOR_CLAIMS}
        assert ours(pod_messages.TABLE, name) == known, name
    assert {call: (asked, answered) for call, asked, _, answered in CALL.findall(text)} == pod_messages.CALLS
    assert f"package {pod_messages.PACKAGE};" in text and f"service {pod_messages.SERVICE} " in text


def test_pod_resources_on_the_wire() -> None:
    devices = text_field(1, b"gpulimit.io/gpu") + text_field(2, b"GPU-1::0") + text_field(2, b"GPU-1::1")
    devices += text_field(3, text_field(1, b"\x08\x01"))
    container = text_field(1, b"main") + text_field(2, devices) + b"\x1a\x02\x03\x04"
    container += text_field(4, text_field(1, b"memory") + b"\x10\x80\x08") + text_field(
        5, text_field(2, b"claim")
    )
    one = text_field(1, b"train") + text_field(2, b"ml") + text_field(3, container)
    (read,) = pod_messages.CLASSES["ListPodResourcesResponse"].FromString(text_field(1, one)).pod_resources
    assert (read.name, read.namespace, read.containers[0].name) == ("train", "ml", "main")
    (ours,) = read.containers[0].devices
    assert list(ours.device_ids) == ["GPU-1::0", "GPU-1::1"] and ours.topology.nodes[0].ID == 1
    assert list(read.containers[0].cpu_ids) == [3, 4] and read.containers[0].memory[0].size == 1024
    asked = pod_messages.new("GetPodResourcesRequest", pod_name="train", pod_namespace="ml")
    assert asked.SerializeToString() == text_field(1, b"train") + text_field(2, b"ml")
    assert pod_messages.path_of(pod_messages.SERVICE, "List") == "/v1.PodResourcesLister/List"


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
