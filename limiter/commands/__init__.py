# SPDX-License-Identifier: Apache-2.0
"""One module per command of `gpulimit`; limiter.cli imports the one that the user names."""

from __future__ import annotations
