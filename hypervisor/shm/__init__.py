# SPDX-License-Identifier: Apache-2.0
"""Shared-memory segments: the daemon makes, opens and passes them.

Belongs here: files in /dev/shm and their descriptors. Does not: the layout (csrc/layout.h), the counting.
Begin with `segments`.
"""

from __future__ import annotations
