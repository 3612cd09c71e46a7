# SPDX-License-Identifier: Apache-2.0
"""Decides which tenant may use a GPU now. Pure: time is an argument, nothing is read or written.

Belongs here: turns, shares, preemption, token buckets. Does not: threads and shared memory (`dispatcher`).
Begin with `scheduler`; `entity` is one tenant's state, `types` the configuration and the grants.
"""

from __future__ import annotations
