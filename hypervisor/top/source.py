# SPDX-License-Identifier: Apache-2.0
"""What `gpulimit top` reads nodes from."""

from __future__ import annotations

from typing import Protocol

from hypervisor.top.model import NodeView


class NodeSource(Protocol):
    """Where nodes come from."""

    @property
    def interval_s(self) -> float:
        """How often to look, unless the user says otherwise."""
        ...

    async def read(self) -> tuple[NodeView, ...]:
        """Return all nodes, whatever is wrong with them."""
        ...

    async def close(self) -> None: ...
