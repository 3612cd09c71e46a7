# SPDX-License-Identifier: Apache-2.0
"""Fetches and parses other machines' metrics pages.

Belongs here: HTTP, the exposition format, retries. Does not: anything of the daemon. Every page is taken for
hostile: it is bounded in bytes, time and number before it is parsed.
Begin with `scraper`; `parser` reads a page.
"""

from __future__ import annotations
