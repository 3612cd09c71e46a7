# SPDX-License-Identifier: Apache-2.0
"""The node daemon: divides GPU time between tenants by weight, watches the GPUs, and exports metrics.

It is not there yet; without it the library enforces quotas from each process's environment alone.
`core` will hold every decision as plain synchronous code (no I/O, time is an argument), and `edge`
everything that touches the world, one neighbour per file.  `limiter` never imports this package.
"""

from __future__ import annotations
