# SPDX-License-Identifier: Apache-2.0
"""The node daemon: divides GPU time between tenants, keeps their quotas, watches the GPUs.

`core` holds every decision as plain synchronous code (no I/O, time is an argument); `edge` holds everything
that touches the world, one neighbour per file. `node`, `arbitration` and `daemon` put them together.
`limiter` never imports this package.
"""

from __future__ import annotations
