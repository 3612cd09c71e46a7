# SPDX-License-Identifier: Apache-2.0
"""Slices of cards: which go together, what they mean, and the kubelet's record of who has them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypervisor.deviceplugin import checkpoint, slices
from hypervisor.deviceplugin.health import DeviceHealth
from hypervisor.model import EffectiveQuota, GpuUuid
from hypervisor.node.quota_policy import with_slices
from limiter import quota
from limiter.quota import Quota

A, B = (
    GpuUuid("GPU-aaaa0000-0000-0000-0000-000000000001"),
    GpuUuid("GPU-bbbb0000-0000-0000-0000-000000000002"),
)
CARD = 80 << 30


def of(gpu: str, *numbers: int) -> list[str]:
    return [f"{gpu}::{n}" for n in numbers]


@given(
    st.lists(st.sampled_from([*of(A, *range(10)), *of(B, *range(10))]), unique=True),
    st.integers(0, 20),
    st.sampled_from(["pack", "spread"]),
)
def test_what_is_preferred_is_available_and_on_one_card_if_it_can_be(
    free: list[str], size: int, how: slices.Placement
) -> None:
    if size > len(free):
        with pytest.raises(ValueError):
            slices.preferred(free, [], size, placement=how)
        return
    chosen = slices.preferred(free, [], size, placement=how)
    assert len(chosen) == len(set(chosen)) == size and set(chosen) <= set(free)
    room = slices.count(free)
    if size and max(room.values()) >= size:
        assert len(slices.count(chosen)) == 1
        fitting = [n for n in room.values() if n >= size]
        assert room[slices.gpu_of(chosen[0])] == (min(fitting) if how == "pack" else max(fitting))


def test_what_must_be_included_is() -> None:
    assert slices.preferred([*of(A, 0, 1), *of(B, 0, 1, 2)], of(B, 2), 2, placement="pack") == of(B, 2, 0)
    assert slices.preferred(of(A, 0), of(A, 0), 1, placement="pack") == of(A, 0)


def test_a_quota_of_slices() -> None:
    said = slices.quota_of([*of(A, 0, 3, 7), *of(B, 1)], 10)
    assert said.memory_bytes(CARD, uuid=A) == pytest.approx(CARD * 0.3, rel=1e-6)
    assert said.memory_bytes(CARD, uuid=B) == pytest.approx(CARD * 0.1, rel=1e-6)
    assert said.memory_bytes(CARD, uuid="GPU-cccc0000-0000-0000-0000-000000000003") == 0
    assert said.request_percent == 10
    assert slices.quota_of([*of(A, 0, 1), *of(A, 1, 2)], 10).request_percent == 30, "1 is one slice"
    assert slices.quota_of(of(A, *range(3)), 3).memory_bytes(CARD, uuid=A) == CARD
    assert sum(slices.quota_of(of(A, n), 3).memory_bytes(CARD, uuid=A) or 0 for n in range(3)) <= CARD


@pytest.mark.parametrize("name", ["", "GPU-1", "::1", "GPU-1::", "GPU-1::x", "GPU-1::²"])
def test_names_that_are_no_slices(name: str) -> None:
    with pytest.raises(ValueError):
        slices.gpu_of(name)


def test_annotations_leave_the_rest_to_the_slices() -> None:
    of_slices = slices.quota_of(of(A, 0, 1), 10)
    assert with_slices(None, of_slices) == EffectiveQuota(of_slices, "slices")
    memory = with_slices(EffectiveQuota(quota.read({"GPULIMIT_MEMORY": "4GiB"}), "pod"), of_slices)
    assert memory is not None and memory.source == "pod"
    assert memory.quota.memory_bytes(CARD, uuid=A) == 4 << 30
    assert memory.quota.memory_bytes(CARD, uuid=B) == 0
    assert memory.quota.request_percent == 20
    compute = with_slices(EffectiveQuota(quota.read({"GPULIMIT_COMPUTE": "50"}), "pod"), of_slices)
    assert compute is not None and compute.quota.memory == of_slices.memory
    assert compute.quota.compute_percent(uuid=A) == 50 and compute.quota.request_percent is None
    operator = EffectiveQuota(Quota(weight=3), "api")
    assert with_slices(operator, of_slices) is operator
    assert with_slices(None, None) is None


def record(devices: object, **more: object) -> str:
    entry = {
        "PodUID": "u",
        "ContainerName": "c",
        "ResourceName": "r",
        "DeviceIDs": devices,
        "AllocResp": "aGk=",
    }
    other = {"PodUID": "u", "ContainerName": "c", "ResourceName": "other", "DeviceIDs": ["x"]}
    return json.dumps({"Data": {"PodDeviceEntries": [entry | more, other]}, "Checksum": 7})


@pytest.mark.parametrize("devices", [["a", "b"], {"-1": ["a"], "0": ["b"]}, {"0": ["b", "a"], "1": []}])
def test_the_record_of_every_kubelet_is_read(devices: object) -> None:
    assert checkpoint.allocations(record(devices), "r") == {"u": {"c": ("a", "b")}}
    assert checkpoint.answers(record(devices), "r") == [b"hi"]
    assert checkpoint.allocations('{"Data": {"PodDeviceEntries": null}}', "r") == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"Data": {}}',
        '{"Data": {"PodDeviceEntries": 1}}',
        record("a"),
        record([1]),
        record(None),
    ],
)
def test_a_record_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        checkpoint.allocations(text, "r")


def test_a_card_comes_back_after_a_while_of_good_answers() -> None:
    health = DeviceHealth(recovery_ns=5)
    assert health.look({A: True, B: True}, now_ns=0) == [A, B]
    assert health.look({A: True}, now_ns=1) == [B] and not health.healthy[B]
    assert health.look({A: True, B: True}, now_ns=5) == []
    assert health.look({A: True, B: True}, now_ns=6) == [B] and health.healthy[B]
    assert health.flaps == {A: 0, B: 1}
