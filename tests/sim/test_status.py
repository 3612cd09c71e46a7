# SPDX-License-Identifier: Apache-2.0
"""`gpulimit status` of a tenant that works on the simulated driver."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def test_a_working_tenant_is_shown(gpulimit, start_process, limited_env, tenant: str) -> None:
    load = ("load", "--kernel", "1ms", "--memory", "1GiB", "--seconds", "40")
    start_process([sys.executable, "-m", "limiter", *load], env=limited_env | {"GPULIMIT_MEMORY": "4GiB"})
    row = wait_for_row(gpulimit, tenant)
    assert row["processes"] == 1
    assert row["memory_limit_bytes"] == 4 << 30
    assert row["memory_used_bytes"] >= 1 << 30
    assert row["launches"]["kernel"] > 0


def wait_for_row(gpulimit, tenant: str) -> dict[str, Any]:
    deadline = time.monotonic() + 20
    while True:
        answer = json.loads(gpulimit("status", "--json", "--over", "0.5", expect=0).stdout)
        for row in answer["tenants"]:
            if row["tenant"] == tenant and row["launches"]["kernel"]:
                found: dict[str, Any] = row
                return found
        assert time.monotonic() < deadline, answer
