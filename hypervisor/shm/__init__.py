# SPDX-License-Identifier: Apache-2.0
"""Shared-memory segments as the daemon makes, opens and hands them over.

Belongs here: files in /dev/shm and their descriptors. Does not: the layout (csrc/layout.h), what is counted.
Begin with `segments`.
"""

from __future__ import annotations
