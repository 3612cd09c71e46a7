# SPDX-License-Identifier: Apache-2.0
"""GPU metrics from inside virtual machines: the agent in the guest, and the collector on the host.

Belongs here: which guests there are, what of their pages is accepted. Does not: parsing pages (`scraper`).
Begin with `collector`; `sanitizer` says what of a page is accepted, `target` identifies a guest. Both are
pure.
"""

from __future__ import annotations
