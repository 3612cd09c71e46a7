# SPDX-License-Identifier: Apache-2.0
"""What touches the world: one neighbour per file, no decisions, and no edge imports another."""

from __future__ import annotations
