# SPDX-License-Identifier: Apache-2.0
"""The Python side of the limiter: bindings over csrc/, and the `gpulimit` command line.

What enforces a quota is libgpulimit.so, inside the limited process; this package finds it, checks quotas
before a program starts, reads the segments in shared memory, and brings a workload to try it all with.
It imports nothing of `hypervisor`, and nothing heavy at import time: `gpulimit lib` must answer at once.
"""

from __future__ import annotations
