# SPDX-License-Identifier: Apache-2.0
"""The Python side of the limiter: bindings over csrc/, and the `gpulimit` command line.

libgpulimit.so enforces a quota inside the limited process.  This package finds the library, checks quotas
before a program starts, reads the segments in shared memory, and has a workload to try it with.  It imports
nothing of `hypervisor`, and nothing heavy at import time: `gpulimit lib` must answer at once.
"""

from __future__ import annotations
