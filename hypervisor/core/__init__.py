# SPDX-License-Identifier: Apache-2.0
"""Decisions. Pure and synchronous: no I/O, no clock, no asyncio, nothing of `edge`; time is an argument."""

from __future__ import annotations
