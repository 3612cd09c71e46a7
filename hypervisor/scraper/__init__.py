# SPDX-License-Identifier: Apache-2.0
"""Fetches and parses other machines' metrics pages.

Belongs here: HTTP, the exposition format, retries. Does not: anything of the daemon. Every page is treated as
hostile: bytes, time and number of series are bounded.
Begin with `scraper`; `parser` reads a page.
"""

from __future__ import annotations
