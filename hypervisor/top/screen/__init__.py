# SPDX-License-Identifier: Apache-2.0
"""The screen of `gpulimit top`, built on textual. No other package imports it, or needs textual."""

from __future__ import annotations
