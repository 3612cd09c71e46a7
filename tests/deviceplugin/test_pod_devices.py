# SPDX-License-Identifier: Apache-2.0
"""Which pod has which devices, by answers that name pods and a record that has their UIDs."""

from __future__ import annotations

from hypervisor.deviceplugin.assignments import by_uid, merged, names
from hypervisor.pods.pod import Pod

A, B = {"main": ("g::0", "g::1")}, {"main": ("g::2",)}


def pod(uid: str, name: str, *, has_ended: bool = False) -> Pod:
    return Pod(uid, uid, "ns", name, has_ended=has_ended)


def test_names_are_of_one_pod_each() -> None:
    pods = [pod("1", "a"), pod("2", "b"), pod("3", "b"), pod("4", "c", has_ended=True), pod("5", "c")]
    assert names(pods) == {"ns/a": "1", "ns/c": "5"}


def test_a_name_that_became_another_pod_s_is_nobody_s() -> None:
    before, after = {"ns/a": "1", "ns/b": "2"}, {"ns/a": "9", "ns/b": "2"}
    assert by_uid({"ns/a": A, "ns/b": B, "ns/unknown": A}, before, after) == {"2": B}
    assert by_uid({"ns/a": A}, before, {}) == {}


def test_what_was_told_comes_before_the_record() -> None:
    record = {"1": {"main": ("g::5",), "init": ("g::5",)}, "2": B}
    assert merged(record, {"1": A}) == {"1": {"main": ("g::0", "g::1"), "init": ("g::5",)}, "2": B}
    assert merged({}, {"1": A}) == {"1": A}


def test_an_answer_without_devices_may_be_older_than_the_record() -> None:
    assert merged({"1": A}, {"1": {"main": ()}}) == {"1": A}
    assert merged({}, {"1": {"main": ()}}) == {}


def test_devices_of_the_pod_that_has_the_name_now_are_not_its_predecessor_s() -> None:
    """The cluster still says that "a" is pod 1; the kubelet speaks of pod 2."""
    assert merged({"2": A}, {"1": A}) == {"2": A}
    assert merged({"1": B, "2": A}, {"1": A}) == {"1": B, "2": A}
