# SPDX-License-Identifier: Apache-2.0
"""GPU metrics from inside virtual machines: the agent in the guest, and the collector on the host.

Belongs here: the list of guests, and the values accepted from their pages. Does not: parsing pages
(`scraper`). Begin with `collector`; `sanitizer` accepts or drops values, `target` identifies a guest. Both
are pure.
"""

from __future__ import annotations
