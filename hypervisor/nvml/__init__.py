# SPDX-License-Identifier: Apache-2.0
"""NVML in a child process that may hang or die without harm, and the client that supervises it.

Belongs here: reading NVML. Does not: what a reading is used for.
Begin with `client` for the daemon's side, `probe` for the child's.
"""

from __future__ import annotations
