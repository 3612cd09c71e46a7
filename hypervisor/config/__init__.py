# SPDX-License-Identifier: Apache-2.0
"""The daemon's settings: one table of flag, variable, TOML key, default and reason.

Belongs here: parsing and checking values. Does not: what a setting causes.
Begin with `settings`.
"""

from __future__ import annotations
