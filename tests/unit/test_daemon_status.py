# SPDX-License-Identifier: Apache-2.0
"""What a tenant does now, in a word."""

from __future__ import annotations

from typing import Any

import pytest

from limiter.daemon_status import doing, gang_lines

TENANT: dict[str, Any] = {"problem": "", "suspended": False}


@pytest.mark.parametrize(
    ("tenant", "gpu", "expected"),
    [
        ({}, {}, "idle"),
        ({}, {"turn": True}, "runs"),
        ({}, {"outstanding_ns": 5, "waiting": 1}, "runs"),
        ({}, {"waiting": 1}, "waits"),
        ({}, {"memory_waiting": 2, "turn": True}, "waits for memory"),
        ({"suspended": True}, {"memory_waiting": 1}, "suspended"),
        ({"problem": "its books are damaged"}, {"turn": True}, "its books are damaged"),
    ],
)
def test_what_a_tenant_does_now(tenant: dict[str, Any], gpu: dict[str, Any], expected: str) -> None:
    assert doing(TENANT | tenant, gpu) == expected


def test_a_gang_is_a_line_with_its_members_and_gpus() -> None:
    gang = {"id": "team-a/job", "members": ["pod-1", "pod-2"], "gpus": ["GPU-3430f778-7a25"], "turn": True}
    fresh = {"id": "uid:0/job", "members": ["a"], "gpus": [], "turn": False}
    assert gang_lines({"gangs": [gang, fresh]}) == [
        "gang team-a/job: pod-1, pod-2 on GPU-3430f778, has its turn",
        "gang uid:0/job: a on no GPU yet",
    ]
    assert gang_lines({}) == []  # of an older daemon
