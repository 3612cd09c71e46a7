# SPDX-License-Identifier: Apache-2.0
"""Is the node daemon there?"""

from __future__ import annotations

import os
import socket
from pathlib import Path

SOCKET = "/run/gpulimit/hypervisor.sock"


def answers() -> bool:
    """Whether somebody listens on the daemon's socket."""
    path = os.environ.get("GPULIMIT_SOCKET") or SOCKET
    if not Path(path).exists():
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(path)
        except OSError:
            return False
    return True
