# SPDX-License-Identifier: Apache-2.0
"""`gpulimit demo`: a daemon and tenants with unequal shares of one GPU; a tenant and the daemon are killed.

`tenants` defines and starts the tenants, `daemon` runs the daemon, `sampler` reads all usage segments,
`display` draws, `scenario` is the sequence of events, and `verdict` compares each share with its due.
"""

from __future__ import annotations
