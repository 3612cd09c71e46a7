# SPDX-License-Identifier: Apache-2.0
"""For the PYTHONPATH of a test's daemon: the kernel hands out no pidfds of connections, as before 6.5."""

from __future__ import annotations

from hypervisor.host import peer

peer.SO_PEERPIDFD = 9999
