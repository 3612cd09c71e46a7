# SPDX-License-Identifier: Apache-2.0
"""What `gpulimit top` reads nodes from."""

from __future__ import annotations

from typing import Protocol

from hypervisor.top.model import NodeView


class NodeSource(Protocol):
    """Where nodes come from."""

    interval_s: float
    """Seconds between two looks, unless the user says otherwise; changed where looks cost too much."""

    async def read(self) -> tuple[NodeView, ...]:
        """Return all nodes, whatever is wrong with them."""
        ...

    async def close(self) -> None: ...
