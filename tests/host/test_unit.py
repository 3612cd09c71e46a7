# SPDX-License-Identifier: Apache-2.0
"""The systemd unit in a cgroup's path."""

from __future__ import annotations

import pytest

from hypervisor.host.systemd_unit import unit_of


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/train.service", "train.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/jupyter.service", "jupyter.service"),
        ("/system.slice/train.service/worker", "train.service"),
        ("/init.scope", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_the_innermost_unit_counts(path, unit) -> None:
    assert unit_of(f"0::{path}\n") == unit


def test_the_deepest_hierarchy_counts() -> None:
    text = "12:pids:/user.slice\n1:name=systemd:/system.slice/train.service\n0::/\n"
    assert unit_of(text) == "train.service"
    assert unit_of("nonsense\n:\n") == ""
