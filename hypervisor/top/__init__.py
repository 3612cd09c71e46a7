# SPDX-License-Identifier: Apache-2.0
"""`gpulimit top`: what goes on on this node's cards, or on those of many nodes.

`model` is what is shown. It comes from `local` (the daemon's socket; NVML and books where there is none)
or from `fleet` (other nodes' metrics); `assemble` makes it of either's facts. `rows` lays it out as lines
for a width, which `once` prints and `screen` (in the extra `top`, on textual) shows and keeps fresh.
"""

from __future__ import annotations
