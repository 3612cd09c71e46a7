# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes for `gpulimit sim node`: invented values without a driver, rendered by the daemon's code.

Belongs here: inventing values. Does not: aggregating and rendering them.
Begin with `node`; one small process serves twenty nodes.
"""

from __future__ import annotations
