# SPDX-License-Identifier: Apache-2.0
"""What `gpulimit top` reads nodes from."""

from __future__ import annotations

from typing import Protocol

from hypervisor.top.model import Node


class Source(Protocol):
    """Where nodes come from."""

    @property
    def interval_s(self) -> float:
        """How often to look, unless the user says otherwise."""
        ...

    async def read(self) -> tuple[Node, ...]:
        """Return all nodes, whatever is wrong with them."""
        ...

    async def close(self) -> None: ...
