# SPDX-License-Identifier: Apache-2.0
"""Virtual machines to scrape. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hypervisor.scraper.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Target:
    """One start of one machine, as the host's manager or file describes it. Nothing here comes from the
    guest.

    If any field changes, above all the address, it is another target. Values that were read from one target
    are never shown for another.
    """

    namespace: str
    name: str
    node: str
    endpoint: Endpoint | None
    """None if the machine should be scraped but has no usable address."""
    source: str = "file"
    uid: str = ""
    """UID of the object in the cluster."""
    token_file: str = ""
    ca_file: str = ""
    """Authority that must have signed the guest's certificate; a path turns TLS on, "" leaves it off."""
    server_name: str = ""
    """Name in that certificate."""
    netns: str = ""
    """Network namespace to connect from; empty for the collector's own."""

    @property
    def who(self) -> tuple[str, str, str]:
        """Key of the machine that stays the same over restarts and moves on this node."""
        return self.namespace, self.name, self.node

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} at {self.endpoint}"
