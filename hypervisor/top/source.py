# SPDX-License-Identifier: Apache-2.0
"""Interface of the sources that `gpulimit top` reads nodes from."""

from __future__ import annotations

from typing import Protocol

from hypervisor.top.model import NodeView


class NodeSource(Protocol):
    """A source of nodes: the local daemon, this node without a daemon, or scraped hosts."""

    interval_s: float
    """Default seconds between two readings. The caller waits longer if readings take too long."""

    async def read(self) -> tuple[NodeView, ...]:
        """Return all nodes, including those with problems."""
        ...

    async def close(self) -> None: ...
