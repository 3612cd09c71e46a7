# SPDX-License-Identifier: Apache-2.0
"""Renders a metrics snapshot as a page in the exposition format.

Belongs here: families, samples, labels, text. Does not: reading the driver or shared memory, locks.
Begin with `exporter`.
"""

from __future__ import annotations
