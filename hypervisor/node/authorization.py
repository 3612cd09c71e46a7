# SPDX-License-Identifier: Apache-2.0
"""Rights of callers: identifies operators, and processes of the node itself."""

from __future__ import annotations

import os
from collections.abc import Collection

from hypervisor.model import Peer

ROOT = 0


class Authorization:
    """Rights on this node. `operators_gid`: group whose members may change quotas; None: only root and the
    daemon's user may. `is_in_cluster`: containers may be of a runtime that is not known here.
    """

    def __init__(self, *, operators_gid: int | None, is_in_cluster: bool) -> None:
        self._operators_gid = operators_gid
        self._is_in_cluster = is_in_cluster

    def is_operator(self, peer: Peer) -> bool:
        """True if a peer may change quotas: root, the daemon's user or its group, and not in a pod."""
        return self.may_operate(peer.origin.uid, peer.groups) and self.is_of_the_node(peer)

    def may_operate(self, uid: int, groups: Collection[int]) -> bool:
        """True if processes of a user are operators, provided that they run on the node itself."""
        return uid in (ROOT, os.geteuid()) or self._operators_gid in groups

    def is_of_the_node(self, peer: Peer) -> bool:
        """True if a peer runs in no pod and no container but the daemon's own.

        In a cluster, a cgroup of unknown layout may belong to a container of an unknown runtime.
        """
        is_known = not (self._is_in_cluster and peer.origin.unknown_group)
        return peer.is_of_the_node and is_known
