# SPDX-License-Identifier: Apache-2.0
"""What a tenant does now, in a word."""

from __future__ import annotations

from typing import Any

import pytest

from limiter.daemon_status import doing

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
