# SPDX-License-Identifier: Apache-2.0
"""Virtual machines to ask. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.scraper.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Target:
    """One start of one machine, as whoever starts machines describes it; nothing here is the guest's word.

    When anything of it changes, its address above all, it is another target, and nothing that was read of
    the one is shown as the other's.
    """

    namespace: str
    name: str
    node: str
    endpoint: Endpoint | None
    """None: it is to be asked, but there is no way to."""
    source: str = "file"
    uid: str = ""
    """Of the object in the cluster."""
    token_file: str = ""
    ca_file: str = ""
    """Asks by TLS, and who must have signed the guest's certificate."""
    server_name: str = ""
    """The name in that certificate."""
    netns: str = ""
    """Network namespace to connect from; empty: the collector's own."""

    @property
    def who(self) -> tuple[str, str, str]:
        """What stays the same when the machine is started again or moved on this node."""
        return self.namespace, self.name, self.node

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} at {self.endpoint}"
