# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes for `gpulimit sim node`: figures without a driver, pages by the daemon's own code.

Belongs here: making figures up. Does not: how they are aggregated and shown.
Begin with `node`; twenty of them are one small process.
"""

from __future__ import annotations
