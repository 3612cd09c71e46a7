# SPDX-License-Identifier: Apache-2.0
"""`gpulimit top`: the GPUs and tenants of this node, or of many nodes, on a terminal.

Belongs here: the model that is shown and its layout. Does not: collecting on other nodes (`scraper`).
Begin with `model`. `local` and `fleet` read the facts, `assemble` builds the model, and `*_rows` render it as
lines. `batch` prints the lines, `screen` (extra `top`, with textual) shows them.
"""

from __future__ import annotations
