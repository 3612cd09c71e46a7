# SPDX-License-Identifier: Apache-2.0
"""Serves the catalogue: an immutable snapshot becomes families of samples, and those become a page.

Nothing here asks the driver, reads shared memory or takes a lock that another part needs.
"""

from __future__ import annotations
