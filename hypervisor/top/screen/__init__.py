# SPDX-License-Identifier: Apache-2.0
"""The screen of `gpulimit top`, on textual. Nothing else imports it, so that nothing else needs textual."""

from __future__ import annotations
