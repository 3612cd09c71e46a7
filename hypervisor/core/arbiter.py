# SPDX-License-Identifier: Apache-2.0
"""Who may use a GPU now, and for how long."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.core.model import TenantName
from hypervisor.core.pace import Decision, Grant, Pace, Seen, Terms


class Arbiter:
    """One GPU."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def step(
        self, now_ns: int, seen: Mapping[TenantName, Seen], terms: Mapping[TenantName, Terms]
    ) -> Decision:
        del terms
        grants = {name: Grant(s.spent_ns, 0, is_shared=False) for name, s in seen.items()}
        return Decision(grants, None, now_ns + 100_000_000)
